"""Plan folder: the files of a plan: JSON, a table of the options, the winner as a scenario, and what people look at."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simserve.study.plan.columns import AMOUNTS, COLUMNS, COUNTS, FLAGS, TEXTS
from simserve.study.plan.options import Fleets
from simserve.study.plan.plan import Plan
from simserve.tables.columns import Categorical, Columns
from simserve.tables.files import json_text
from simserve.tables.folder import result_folder
from simserve.tables.kinds import PLAN


def write_plan(directory: Path, plan: Plan, found: Mapping[str, Any], drawn: Mapping[str, bytes]) -> None:
    """Write all files into a folder, whole or not at all; `drawn`: page and spreadsheet by name. Raises OutputError."""
    from simserve.tables.parquet import write_table  # late: pyarrow

    with result_folder(directory, PLAN) as folder:
        (folder / "plan.json").write_text(json_text(found), encoding="utf-8")
        for name, content in drawn.items():
            (folder / name).write_bytes(content)
        write_table(folder / "plan.parquet", COLUMNS, columns_of(found["options"]))
        if plan.best is not None:
            (folder / "scenario.yaml").write_text(winner_yaml(plan), encoding="utf-8")


def winner_yaml(plan: Plan) -> str:
    """The scenario that was asked about, with the fleet to take, spare replicas included."""
    assert plan.best is not None, "something holds"
    fleets = Fleets(plan.asked.scenario, plan.best.outcome.option)
    return fleets.of(plan.best.sized.all_up.replicas).to_yaml()


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """The rows of `options` as columns, `(n_options,)` each."""
    columns: Columns = {name: _words([row.get(name) for row in rows]) for name in TEXTS}
    for name in COUNTS:
        columns[name] = np.array([-1 if (value := row.get(name)) is None else value for row in rows], np.int32)
    for name in FLAGS:
        columns[name] = np.array([bool(row.get(name)) for row in rows], np.bool_)
    for name in AMOUNTS:
        columns[name] = np.array([np.nan if (value := row.get(name)) is None else value for row in rows], np.float64)
    return columns


def _words(values: Sequence[str | None]) -> Categorical:
    words = tuple(dict.fromkeys(value for value in values if value))
    return Categorical(np.array([words.index(value) if value else -1 for value in values], np.int32), words)
