"""Results: tables, facts and summary of a run, in memory or read from its folder.

RunTables -> window, latencies, gaps, SLOs -> tables with the derived columns, time series, summary, vllm_bench
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simserve.errors import OutputError
from simserve.input_files import SCENARIO_BYTES, parse_json, read_file
from simserve.metrics.drawn_load import ArrivalRates
from simserve.metrics.reduce_run import reduce_run
from simserve.metrics.timeseries import interval_s
from simserve.tables.columns import Columns, frame
from simserve.tables.facts import RunFacts, facts_from_dict, facts_to_dict
from simserve.tables.files import json_text, plain, read_json
from simserve.tables.folder import RUN, check_folder, check_run, result_folder
from simserve.tables.run_tables import RunTables, full_steps
from simserve.tables.schema import MORE_TABLES, MOST, TABLES

if TYPE_CHECKING:
    import pandas as pd

FEW_CELLS, CELLS_PER_ROW = 1_000_000, 8
"""Limit on the intervals of all replicas that a page spreads the rows of the time series over."""

StepRows = Literal["stretch", "full", "none"]
"""Rows of steps.parquet: one per step run, one per step, or no file and no spans.parquet."""


class Results:
    """One run. The tables are pandas DataFrames, made when first asked for; times are in seconds."""

    def __init__(
        self,
        columns: dict[str, Columns],
        facts: RunFacts,
        scenario_yaml: str,
        summary: dict[str, Any],
        vllm_bench: dict[str, Any],
    ) -> None:
        self.columns = columns
        """The tables as numpy columns, by their names in `tables.schema`; not all have steps, spans, replications."""
        self.facts = facts
        self.scenario_yaml = scenario_yaml
        self.summary = summary
        """Contents of summary.json."""
        self.vllm_bench = vllm_bench
        """Contents of vllm_bench.json."""

    @classmethod
    def from_run(
        cls, tables: RunTables, facts: RunFacts, scenario_yaml: str, arrivals: ArrivalRates | None = None
    ) -> "Results":
        """Reduce what the engine recorded. Columns of the tables are shared, not copied, and not changed."""
        reduced = reduce_run(tables, facts, arrivals)
        return cls(reduced.columns, facts, scenario_yaml, plain(reduced.summary), plain(reduced.vllm_bench))

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request."""
        return self._frame("requests")

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row a stretch of steps. Raises OutputError where the run was written without."""
        return self._frame("steps")

    @cached_property
    def spans(self) -> "pd.DataFrame":
        """One row a completed prefill and the decode steps after it. Raises OutputError where written without."""
        return self._frame("spans")

    @cached_property
    def timeseries(self) -> "pd.DataFrame":
        """One row a replica and interval."""
        return self._frame("timeseries")

    @cached_property
    def members(self) -> "pd.DataFrame":
        """One row a replica: when it was in the fleet, and why. Raises OutputError for a run of an earlier version."""
        return self._frame("members")

    @cached_property
    def replications(self) -> "pd.DataFrame":
        """One row a seed. Raises OutputError for a run without replications."""
        return self._frame("replications")

    def write(
        self, directory: str | Path, steps: StepRows = "stretch", report: Callable[["Results"], str] | None = None
    ) -> None:
        """Write all files into a folder, whole or not at all; `report` makes the page, None leaves it out.

        Raises OutputError if the folder holds anything but an earlier result, or cannot be written.
        """
        check_folder(Path(directory))
        page = report(self) if report else None
        with result_folder(Path(directory)) as folder:
            self._write_tables(folder, steps)
            texts = {
                "scenario.yaml": self.scenario_yaml,
                "summary.json": json_text(self.summary),
                "vllm_bench.json": json_text(self.vllm_bench),
            }
            for name, text in (texts | ({"report.html": page} if page is not None else {})).items():
                (folder / name).write_text(text, encoding="utf-8")

    def _write_tables(self, folder: Path, steps: StepRows) -> None:
        from simserve.tables.parquet import write_table  # late: pyarrow

        facts = {"facts": json_text(facts_to_dict(self.facts))}
        for name, columns in self.columns.items():
            if steps == "none" and name in ("steps", "spans"):
                continue
            if steps == "full" and name == "steps":
                columns = full_steps(columns)
            fields = (TABLES | MORE_TABLES)[name]
            write_table(folder / f"{name}.parquet", fields, columns, facts if name == "requests" else None)

    def _frame(self, name: str) -> "pd.DataFrame":
        if name not in self.columns:
            remedies = dict.fromkeys(MORE_TABLES, "with --replications") | {"members": "with this version"}
            remedy = remedies.get(name, "without --steps none")
            raise OutputError(f"{name}: this run was written without them; run it again {remedy}")
        return frame((TABLES | MORE_TABLES)[name], self.columns[name])


def load_results(directory: str | Path) -> Results:
    """Read the results of a run. Raises OutputError if the folder does not hold any."""
    from simserve.metrics.result_folder import read_answer
    from simserve.tables.read_back import read_table

    folder = Path(directory)
    check_run(folder)
    summary = read_answer(folder, RUN)
    tables = {
        name: read_table(folder / f"{name}.parquet", fields)
        for name, fields in (TABLES | MORE_TABLES).items()
        if _is_there(folder, name)
    }
    facts = _facts(folder / "requests.parquet", tables["requests"][1], summary.get("wall_s") or 0.0)
    scenario = folder / "scenario.yaml"
    try:
        scenario_yaml = read_file(scenario, SCENARIO_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise OutputError(f"{scenario}: no such file; run the command again") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"{scenario}: cannot be read ({error}); run the command again") from None
    columns = {name: columns for name, (columns, _) in tables.items()}
    _check_bounds(folder, columns, len(facts.replica_pool))
    return Results(columns, facts, scenario_yaml, summary, read_json(folder / "vllm_bench.json"))


def _is_there(folder: Path, name: str) -> bool:
    """Return whether a table exists; steps and spans may be left out, most runs have no replications, and those of
    earlier versions no members."""
    return name not in ("steps", "spans", "members", *MORE_TABLES) or (folder / f"{name}.parquet").exists()


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
