"""ResultFolder: the output folder of any command, read back: its answer, or a whole run."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import OutputError
from simserve.input_files import SCENARIO_BYTES, parse_json, read_file
from simserve.metrics.answers.autoscale import AutoscaleAnswer
from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.check import CheckAnswer
from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.metrics.answers.plan import PlanAnswer
from simserve.metrics.answers.resilience import ResilienceAnswer
from simserve.metrics.answers.struct import READ
from simserve.metrics.answers.sweep import SweepAnswer
from simserve.metrics.answers.tune import TuneAnswer
from simserve.metrics.answers.twin import TwinAnswer
from simserve.metrics.figures import Summary
from simserve.metrics.reduction import Contents
from simserve.metrics.results import Results
from simserve.metrics.timeseries import interval_s
from simserve.tables import folder as commands
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts, facts_from_dict
from simserve.tables.files import read_json
from simserve.tables.schema import MORE_TABLES, MOST, TABLES

ANSWERS: dict[commands.Kind, tuple[str, Any]] = {
    commands.RUN: ("summary.json", Summary),
    commands.CAPACITY: ("capacity.json", CapacityAnswer),
    commands.CHECK: ("check.json", CheckAnswer),
    commands.COMPARISON: ("comparison.json", ComparisonAnswer),
    commands.PLAN: ("plan.json", PlanAnswer),
    commands.SWEEP: ("sweep.json", SweepAnswer),
    commands.TWIN: ("twin.json", TwinAnswer),
    commands.TUNE: ("tune.json", TuneAnswer),
    commands.AUTOSCALE: ("autoscale.json", AutoscaleAnswer),
    commands.RESILIENCE: ("resilience.json", ResilienceAnswer),
}
"""The answer file of each command, and its schema."""

FEW_CELLS, CELLS_PER_ROW = 1_000_000, 8
"""Limit on the intervals of all replicas that a page spreads the rows of the time series over."""


@dataclass(frozen=True)
class ResultFolder:
    """The answer of one folder."""

    command: str
    """The command that wrote it: run, capacity, check, compare, plan or sweep."""
    label: str
    """The label among results of one command."""
    answer: Any
    """The answer that `--json` printed: the struct of a study, or the figures of a run."""
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


def load_results(directory: str | Path) -> Results:
    """Read the results of a run. Raises OutputError if the folder does not hold any."""
    from simserve.tables.read_back import read_table  # late: pyarrow

    folder = Path(directory)
    commands.check_run(folder)
    summary = read_answer(folder, commands.RUN)
    # Steps and spans may be left out, most runs have no replications, and those of earlier versions no members.
    optional = ("steps", "spans", "members", *MORE_TABLES)
    tables = {
        name: read_table(folder / f"{name}.parquet", fields)
        for name, fields in (TABLES | MORE_TABLES).items()
        if name not in optional or (folder / f"{name}.parquet").exists()
    }
    facts = _facts(folder / "requests.parquet", tables["requests"][1], summary.wall_s)
    scenario = folder / "scenario.yaml"
    try:
        scenario_yaml = read_file(scenario, SCENARIO_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise OutputError(f"{scenario}: no such file; run the command again") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"{scenario}: cannot be read ({error}); run the command again") from None
    columns = {name: columns for name, (columns, _) in tables.items()}
    _check_bounds(folder, columns, len(facts.replica_pool))
    return Results(facts, scenario_yaml, Contents(columns, summary, read_json(folder / "vllm_bench.json")))


def read_answer(directory: Path, kind: commands.Kind) -> Any:
    """Read the answer file of a folder. Raises OutputError unless it has the names and types of its schema."""
    from pydantic import TypeAdapter, ValidationError  # late: only folders that are read back need it

    from simserve.plugins.validation import problems_of

    name, schema = ANSWERS[kind]
    answer = read_json(directory / name)
    try:
        read = TypeAdapter(schema).validate_python(answer, strict=True, context=READ)
    except ValidationError as error:
        problem = replace(problems_of(error, answer)[0], remedy="run the command again")
        raise OutputError(f"{directory / name}: {problem}") from None
    return read


def _read(directory: Path) -> ResultFolder:
    kind = commands.kind_of(directory)
    if kind in (commands.TWIN, commands.TUNE):
        rule = f"must have runs, got that of `simserve {kind.name}`"
        raise OutputError(f"{directory}: {rule}; run its scenario first: simserve run {directory / 'scenario.yaml'}")
    answer = read_answer(directory, kind)
    if commands.is_older_answer(directory, kind):
        text = "simserve: %s: holds the answer of an earlier %s; rerun the interrupted one to replace it"
        logging.getLogger("simserve").warning(text, directory, kind.name)
    if kind is not commands.RUN:
        return ResultFolder(kind.name, _label(kind, answer), answer)
    from simserve.tables.read_back import read_table  # late import: pyarrow

    rows, _ = read_table(directory / "timeseries.parquet", TABLES["timeseries"])
    return ResultFolder(kind.name, _label(kind, answer), answer, rows)


def _label(kind: commands.Kind, answer: Any) -> str:
    if kind in (commands.CAPACITY, commands.CHECK, commands.PLAN, commands.SWEEP):
        return str(answer.scenario.name or kind.name)
    if kind is commands.COMPARISON:
        return f"{answer.b} against {answer.a}"
    return str(answer.name or kind.name)


def _facts(path: Path, metadata: dict[str, str], wall_s: Any) -> RunFacts:
    """Read the facts of the run from the metadata of its table of requests."""
    from pydantic import ValidationError  # late: only folders that are read back need it

    from simserve.plugins.validation import ValueProblem, problems_of

    problem = ValueProblem(("facts",), "must be those of a run, as this version of simserve writes them")
    try:
        given = parse_json(metadata["facts"])
        facts = facts_from_dict(given, wall_s)
        if facts.is_consistent:
            return facts
    except ValidationError as error:
        problem = problems_of(error, given)[0].below(("facts",))
    except (KeyError, TypeError, ValueError):
        pass
    raise OutputError(f"{path}: {replace(problem, remedy='run the command again')}")


def _check_bounds(folder: Path, columns: Mapping[str, Columns], n_replicas: int) -> None:
    """Raise OutputError unless rows name replicas and requests of the run, and what is drawn as it is has no gaps."""
    limits = {("spans", "request_id"): (0.0, len(columns["requests"]["arrival_s"]) - 1.0)}
    limits |= {(table, "replica"): (0.0, n_replicas - 1.0) for table in ("steps", "spans", "timeseries", "members")}
    limits |= {("requests", name): (-1.0, n_replicas - 1.0) for name in ("replica", "prefill_replica")}  # -1: nowhere
    limits |= {("timeseries", field.name): (0.0, MOST) for field in TABLES["timeseries"] if field.kind == "float"}
    limits |= {("requests", name): (0.0, MOST) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    for (table, name), (least, most) in limits.items():
        column = columns[table][name] if table in columns else np.zeros(0)
        wrong = column[~((column >= least) & (column <= most))]
        if len(wrong):
            rule = f"must be from {least:g} to {most:g}, got {wrong[0]:g}"
            raise OutputError(f"{folder / table}.parquet: {name}: {rule}; run the command again")
    _check_intervals(folder, columns["timeseries"], n_replicas)


def _check_intervals(folder: Path, series: Columns, n_replicas: int) -> None:
    """Raise OutputError where a page would have far more intervals than the time series has rows."""
    n_cells = n_replicas * (float(series["start_s"].max(initial=0.0)) / interval_s(series) + 1)
    most_cells = FEW_CELLS + CELLS_PER_ROW * len(series["start_s"])
    if n_cells > most_cells:
        rule = f"must be of at most {most_cells:,} intervals of all replicas, got {n_cells:,.0f}"
        raise OutputError(f"{folder / 'timeseries'}.parquet: start_s: {rule}; run the command again")
