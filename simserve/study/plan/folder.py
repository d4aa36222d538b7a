"""Files of a plan: JSON, a table of the options, the best option as a scenario, page and workbook."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.study.plan.columns import COLUMNS
from simserve.study.plan.options import Fleets
from simserve.study.plan.plan import Plan
from simserve.tables.files import json_text
from simserve.tables.folder import result_folder
from simserve.tables.kinds import PLAN
from simserve.tables.typed import typed_columns


def write_plan(directory: Path, plan: Plan, result: Mapping[str, Any], drawn: Mapping[str, bytes]) -> None:
    """Write all files into a folder, whole or not at all; `drawn`: page and spreadsheet by name. Raises OutputError."""
    from simserve.tables.parquet import write_table  # late: pyarrow

    with result_folder(directory, PLAN) as folder:
        (folder / "plan.json").write_text(json_text(result), encoding="utf-8")
        for name, content in drawn.items():
            (folder / name).write_bytes(content)
        write_table(folder / "plan.parquet", COLUMNS, typed_columns(COLUMNS, result["options"]))
        if plan.best is not None:
            (folder / "scenario.yaml").write_text(winner_yaml(plan), encoding="utf-8")


def winner_yaml(plan: Plan) -> str:
    """Return the scenario with the fleet to take, including spare replicas."""
    assert plan.best is not None, "something holds"
    fleets = Fleets(plan.question.scenario, plan.best.outcome.option)
    return fleets.of(plan.best.sized.all_up.replicas).to_yaml()
