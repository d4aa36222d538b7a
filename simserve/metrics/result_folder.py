"""ResultFolder: the output folder of any command, read back to be shown elsewhere."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simserve.errors import OutputError
from simserve.metrics.figures import Summary
from simserve.metrics.study_schemas import CapacityAnswer, ComparisonAnswer, PlanAnswer, SweepAnswer
from simserve.tables.columns import Columns
from simserve.tables.files import read_json
from simserve.tables.folder import CAPACITY, COMPARISON, PLAN, RUN, SWEEP, Kind, is_older_answer, kind_of
from simserve.tables.schema import TABLES

ANSWERS: dict[Kind, tuple[str, Any]] = {
    RUN: ("summary.json", Summary),
    CAPACITY: ("capacity.json", CapacityAnswer),
    COMPARISON: ("comparison.json", ComparisonAnswer),
    PLAN: ("plan.json", PlanAnswer),
    SWEEP: ("sweep.json", SweepAnswer),
}
"""The answer file of each command, and its schema."""


@dataclass(frozen=True)
class ResultFolder:
    """The answer of one folder."""

    command: str
    """The command that wrote it: run, capacity, compare, plan or sweep."""
    label: str
    """The label among results of one command."""
    answer: Mapping[str, Any]
    """The answer that `--json` printed."""
    rows: Columns | None = None
    """The time series of a run."""

    @property
    def title(self) -> str:
        """The title among results of several commands: `Plan chat-burst`."""
        return f"{self.command.capitalize()} {self.label}"


def read_result_folders(directories: list[Path]) -> list[ResultFolder]:
    """Read the folders in their order. Raises OutputError for a folder without a complete result."""
    places = [directory.resolve() for directory in directories]
    for place, directory in zip(places, directories, strict=True):
        if places.count(place) > 1:
            raise OutputError(f"{directory}: must be named once, got it twice; leave one out")
    folders = [_read(directory) for directory in directories]
    names = [(folder.command, folder.label) for folder in folders]
    return [
        replace(folder, label=str(directory)) if names.count(name) > 1 else folder  # distinguished by folder
        for folder, name, directory in zip(folders, names, directories, strict=True)
    ]


def _read(directory: Path) -> ResultFolder:
    kind = kind_of(directory)
    answer = read_answer(directory, kind)
    if is_older_answer(directory, kind):
        text = "simserve: %s: holds the answer of an earlier %s; rerun the interrupted one to replace it"
        logging.getLogger("simserve").warning(text, directory, kind.name)
    return ResultFolder(kind.name, _label(kind, answer), answer, _rows(directory, kind))


def read_answer(directory: Path, kind: Kind) -> dict[str, Any]:
    """Read the answer file of a folder. Raises OutputError unless it has the names and types of its schema."""
    from pydantic import TypeAdapter, ValidationError  # late: only folders that are read back need it

    from simserve.plugins.validation import problems_of

    name, schema = ANSWERS[kind]
    answer = read_json(directory / name)
    try:
        TypeAdapter(schema).validate_python(answer, strict=True)
    except ValidationError as error:
        problem = replace(problems_of(error, answer)[0], remedy="run the command again")
        raise OutputError(f"{directory / name}: {problem}") from None
    return answer


def _label(kind: Kind, answer: Mapping[str, Any]) -> str:
    if kind is COMPARISON:
        return f"{answer['b']} against {answer['a']}"
    scenario = answer.get("scenario")
    name = scenario.get("name") if isinstance(scenario, Mapping) else scenario
    return str(name or answer.get("name") or kind.name)


def _rows(directory: Path, kind: Kind) -> Columns | None:
    if kind is not RUN:
        return None
    from simserve.tables.read_back import read_table  # late import: pyarrow

    return read_table(directory / "timeseries.parquet", TABLES["timeseries"])[0]
