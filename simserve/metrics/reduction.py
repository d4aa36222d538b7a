"""Reduction: what the tables of a run come to, as far as it is asked for: a decision needs a fraction of a report.

RunTables -> window, latencies, SLOs -> decision
          -> gaps, split times, time series, utilization -> tables with all columns, figures, vllm_bench
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from simserve.metrics.basis import Measured, RunBasis
from simserve.metrics.decision import Decision
from simserve.metrics.decode_rows import DecodeRows, decode_rows
from simserve.metrics.figures import Summary, figures_of
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import GOALS, all_met, met_by_goal
from simserve.metrics.intervals import inefficiency
from simserve.metrics.itl import itl_intervals, largest_gaps, pooled_itl
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.outcomes import with_answer
from simserve.metrics.stats import Distribution, distribution, latency_columns, with_intervals
from simserve.metrics.time_split import split_columns
from simserve.metrics.timeseries import time_series
from simserve.metrics.utilization import utilization
from simserve.metrics.vllm_bench import max_output_tokens_per_s, vllm_bench
from simserve.metrics.window import ArrivalRates, measured_window, n_in_system
from simserve.tables.columns import Columns, Flags, Floats
from simserve.tables.facts import RunFacts
from simserve.tables.files import plain
from simserve.tables.pieces import computed, in_turn, release
from simserve.tables.run_tables import RunTables
from simserve.tables.schema import REQUESTS

SAMPLED = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
"""Latencies with a column in requests; the fifth, itl_s, is pooled over gaps."""


class Contents(NamedTuple):
    """The files of a run, as they are, or as they were read."""

    columns: dict[str, Columns]
    figures: Summary
    vllm_bench: dict[str, Any]

    def contents(self) -> "Contents":
        """Return all."""
        return self

    @property
    def decision(self) -> Decision | None:
        """What the decision of the summary rests on is not in files."""
        return None

    @property
    def recorded(self) -> Columns:
        """The requests."""
        return self.columns["requests"]


class Reduction:
    """What a run comes to. Columns of the tables are shared, not copied, and not changed."""

    def __init__(self, tables: RunTables, facts: RunFacts, arrivals: ArrivalRates | None) -> None:
        self._tables, self._facts = tables, facts
        requests = tables.requests | computed(latency_columns, tables.requests)
        window = measured_window(requests, facts.measure, facts.last_arrival_s, facts.end_s)
        self._finished = requests["status"].is_("finished")
        self._answers_whole = facts.in_pools(requests["replica"], lambda pool: not pool.streamed)
        if any("itl_s" in limits for limits in (facts.slo, *facts.slo_classes.values())):
            requests |= self._gaps(requests)
        met = met_by_goal(requests, facts.slo, facts.slo_classes)
        requests |= {"in_window": window.has, "slo_met": all_met(met), "n_in_system": n_in_system(requests)}
        release(requests)
        self.run = RunBasis(requests, tables.spans, tables.steps, facts, window, met, arrivals, self._measured)

    @property
    def recorded(self) -> Columns:
        """The requests as the engine recorded them, without what is computed of them."""
        return self._tables.requests

    @property
    def decision(self) -> Decision | None:
        """What the decision of the summary rests on; None without an SLO."""
        return self.run.decision

    def contents(self) -> Contents:
        """Return all."""
        run, measured = self.run, self.run.measured
        columns = {
            "requests": {field.name: run.requests[field.name] for field in REQUESTS},
            "steps": run.steps,
            "spans": run.spans,
            "timeseries": measured.timeseries,
            "members": Lifetimes(self._facts).table(),
        }
        bench = vllm_bench(run.requests, run.window, measured.latencies, run.met, measured.fastest)
        figures = with_answer(figures_of(run), GOAL_FRAC, None if run.decision is None else run.decision.old_word)
        return Contents(columns, figures, plain(bench))

    @cached_property
    def _rows(self) -> DecodeRows:
        return decode_rows(self._tables.steps, self._tables.spans)

    def _gaps(self, requests: Columns) -> Columns:
        how = (self._rows, self._tables.spans, self._finished, self._answers_whole, requests["output_tokens"])
        return {GOALS["itl_s"]: largest_gaps(*how)}

    def _measured(self) -> Measured:
        """Measure what a decision does not need."""
        run, rows, tables, facts = self.run, self._rows, self._tables, self._facts
        window, spans, counted = run.window, tables.spans, self._finished & run.window.has
        requests = run.requests
        requests |= self._gaps(requests) | split_columns(tables, rows, facts)
        sample = partial(with_intervals, inefficiency=inefficiency(requests["n_in_system"][window.has]))
        latencies = self._latencies(counted, sample)
        if not any(pool.speculation for pool in facts.pools):  # else gaps are between chunks, of unknown number
            itl = latencies["itl_s"]
            latencies["itl_s"] = replace(itl, intervals=itl_intervals(requests, counted, itl))
        release(requests)
        series = time_series(tables, rows, facts, window.span_s)
        use = utilization(series.window_work, window, facts)
        release(requests)
        fastest = max_output_tokens_per_s(requests, rows, spans, counted, self._answers_whole)
        return Measured(latencies, lambda some: self._latencies(counted & some), use, series.columns, fastest)

    def _latencies(
        self, counted: Flags, sample: Callable[[Floats], Distribution] = distribution
    ) -> dict[str, Distribution]:
        """Return the latencies of the requests that count: the window's finished ones."""
        distributions, requests = {}, self.run.requests
        for name in in_turn(SAMPLED, requests):
            values = requests[name][counted]
            values = values[~np.isnan(values)]
            release(requests)
            distributions[name] = sample(values)
        n_whole_gaps = int((requests["output_tokens"][counted & self._answers_whole] - 1).sum())
        itl = pooled_itl(self._rows, self._tables.spans, counted & ~self._answers_whole, n_whole_gaps)
        return {"ttft_s": distributions["ttft_s"], "tpot_s": distributions["tpot_s"], "itl_s": itl, **distributions}
