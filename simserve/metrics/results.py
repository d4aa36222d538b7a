"""Results: tables, facts and summary of a run, reduced from what the engine recorded.

RunTables -> window, latencies, gaps, SLOs -> tables with the derived columns, time series, summary, vllm_bench
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simserve.errors import OutputError
from simserve.metrics.answers.shown import Shown
from simserve.metrics.basis import RunBasis
from simserve.metrics.decision import Decision
from simserve.metrics.decision_json import DecisionJson
from simserve.metrics.decode_rows import DecodeRows, decode_rows
from simserve.metrics.figures import Summary, figures_of
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import all_met, met_by_goal
from simserve.metrics.intervals import inefficiency
from simserve.metrics.itl import itl_intervals, largest_gaps, pooled_itl
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.outcomes import with_answer
from simserve.metrics.stats import Distribution, distribution, latency_columns, with_intervals
from simserve.metrics.tails import Sample
from simserve.metrics.time_split import split_columns
from simserve.metrics.timeseries import time_series
from simserve.metrics.utilization import utilization
from simserve.metrics.vllm_bench import max_output_tokens_per_s, vllm_bench
from simserve.metrics.window import ArrivalRates, measured_window, n_in_system
from simserve.tables.columns import Columns, Flags, Floats, TableRows, frame
from simserve.tables.facts import RunFacts, facts_to_dict
from simserve.tables.files import json_text, plain
from simserve.tables.folder import check_folder, result_folder
from simserve.tables.pieces import computed, in_turn, release
from simserve.tables.run_tables import RunTables, full_steps
from simserve.tables.schema import MORE_TABLES, REQUESTS, TABLES

if TYPE_CHECKING:
    import pandas as pd

SAMPLED = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
"""Latencies with a column in requests; the fifth, itl_s, is pooled over gaps."""

StepRows = Literal["stretch", "full", "none"]
"""Rows of steps.parquet: one per step run, one per step, or no file and no spans.parquet."""


class Results(Shown):
    """One run. The tables are pandas DataFrames, made when first asked for; times are in seconds."""

    command = "run"

    def __init__(
        self,
        columns: dict[str, Columns],
        facts: RunFacts,
        scenario_yaml: str,
        figures: Summary,
        vllm_bench: dict[str, Any],
        decision: Decision | None = None,
    ) -> None:
        self.columns = columns
        """The tables as numpy columns, by their names in `tables.schema`; not all have steps, spans, replications."""
        self.facts = facts
        self.scenario_yaml = scenario_yaml
        self.figures = figures
        """What summary.json has, as a struct."""
        self.vllm_bench = vllm_bench
        """Contents of vllm_bench.json."""
        self.basis = decision
        """What the decision of the summary rests on; None without an SLO, and read from a folder."""

    @classmethod
    def from_run(
        cls, tables: RunTables, facts: RunFacts, scenario_yaml: str, arrivals: ArrivalRates | None = None
    ) -> "Results":
        """Reduce what the engine recorded. Columns of the tables are shared, not copied, and not changed."""
        spans = tables.spans
        requests = tables.requests | computed(latency_columns, tables.requests)
        window = measured_window(requests, facts.measure, facts.last_arrival_s, facts.end_s)
        finished = requests["status"].is_("finished")
        answers_whole = facts.in_pools(requests["replica"], lambda pool: not pool.streamed)
        rows = decode_rows(tables.steps, spans)
        requests["max_itl_s"] = largest_gaps(rows, spans, finished, answers_whole, requests["output_tokens"])
        requests |= split_columns(tables, rows, facts)
        met = met_by_goal(requests, facts.slo, facts.slo_classes)
        requests |= {"in_window": window.has, "slo_met": all_met(met), "n_in_system": n_in_system(requests)}
        counted = finished & window.has
        release(requests)
        sample = partial(with_intervals, inefficiency=inefficiency(requests["n_in_system"][window.has]))
        latencies = _latencies(requests, counted, rows, spans, answers_whole, sample)
        if not any(pool.speculation for pool in facts.pools):  # else gaps are between chunks, of unknown number
            itl = latencies["itl_s"]
            latencies["itl_s"] = replace(itl, intervals=itl_intervals(requests, counted, itl))
        release(requests)
        series = time_series(tables, rows, facts, window.span_s)
        use = utilization(series.window_work, window, facts)
        release(requests)
        fastest = max_output_tokens_per_s(requests, rows, spans, counted, answers_whole)
        columns = {
            "requests": {field.name: requests[field.name] for field in REQUESTS},
            "steps": tables.steps,
            "spans": spans,
            "timeseries": series.columns,
            "members": Lifetimes(facts).table(),
        }

        def latencies_of(some: Flags) -> dict[str, Distribution]:
            return _latencies(requests, counted & some, rows, spans, answers_whole)

        run = RunBasis(requests, spans, tables.steps, facts, window, met, use, latencies, latencies_of, arrivals)
        bench = vllm_bench(requests, window, latencies, met, fastest)
        figures = with_answer(figures_of(run), GOAL_FRAC, None if run.decision is None else run.decision.old_word)
        return cls(columns, facts, scenario_yaml, figures, plain(bench), run.decision)

    @property
    def sample(self) -> Sample:
        """The run itself, as a decision sees it; without requests where it has no SLO."""
        return Sample({}, 1.0, None, None) if self.basis is None else self.basis.runs[0]

    def decide(self, decision: Decision) -> None:
        """Put a decision that rests on more than this run into the summary."""
        self.basis, answer = decision, self.figures.answer
        old = {"decision": decision.old_word, "queue": decision.queue}
        self.put(decision=decision.facts(), answer=answer and answer.model_copy(update=old))

    def put(self, **figures: Any) -> None:
        """Put what further runs tell into the summary."""
        self.figures = self.figures.model_copy(update=figures)

    @property
    def summary(self) -> dict[str, Any]:
        """Contents of summary.json."""
        return self.figures.facts()

    @property
    def decision(self) -> DecisionJson | None:
        """The decision about the SLO; None without one."""
        return self.figures.decided

    @property
    def rows(self) -> TableRows:
        """The rows of requests.parquet."""
        return TableRows("requests.parquet", REQUESTS, self.columns["requests"])

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


def _latencies(
    requests: Columns,
    counted: Flags,
    rows: DecodeRows,
    spans: Columns,
    answers_whole: Flags,
    sample: Callable[[Floats], Distribution] = distribution,
) -> dict[str, Distribution]:
    """Return the latencies of the requests that count: the window's finished ones."""
    distributions = {}
    for name in in_turn(SAMPLED, requests):
        values = requests[name][counted]
        values = values[~np.isnan(values)]
        release(requests)
        distributions[name] = sample(values)
    n_whole_gaps = int((requests["output_tokens"][counted & answers_whole] - 1).sum())
    itl = pooled_itl(rows, spans, counted & ~answers_whole, n_whole_gaps)
    return {"ttft_s": distributions["ttft_s"], "tpot_s": distributions["tpot_s"], "itl_s": itl, **distributions}
