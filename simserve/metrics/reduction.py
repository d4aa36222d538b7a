"""Reduction: what the tables of a run come to, as far as it is asked for: a decision needs a fraction of a report.

RunTables -> window, latencies, SLOs -> decision
          -> gaps, split times, time series, utilization -> tables with all columns, figures, vllm_bench
"""

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simserve.metrics.basis import RunBasis
from simserve.metrics.decision import Decision
from simserve.metrics.decode_rows import DecodeRows, decode_rows
from simserve.metrics.figures import Summary, figures_of, part_of
from simserve.metrics.goodput import GOALS, all_met, met_by_goal
from simserve.metrics.intervals import inefficiency
from simserve.metrics.itl import itl_intervals, largest_gaps, pooled_itl
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.outcomes import with_answer
from simserve.metrics.stats import Distribution, distribution, latency_columns, with_intervals
from simserve.metrics.time_split import split_columns
from simserve.metrics.timeseries import TimeSeries, time_series
from simserve.metrics.utilization import Utilization, utilization
from simserve.metrics.vllm_bench import max_output_tokens_per_s, vllm_bench
from simserve.metrics.window import ArrivalRates, measured_window, n_in_system
from simserve.tables.columns import Columns, Flags, Floats
from simserve.tables.facts import RunFacts
from simserve.tables.files import plain
from simserve.tables.pieces import computed, in_turn, release
from simserve.tables.run_tables import RunTables
from simserve.tables.schema import REQUESTS

SAMPLED = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
"""Latencies with a column in requests."""

ITL = "itl_s"
"""The one that is pooled over gaps."""


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

    def part(self, keys: Collection[str]) -> Summary:
        """Return all figures."""
        return self.figures


class Reduction:
    """What a run comes to. Columns of the tables are shared, not copied, and not changed."""

    def __init__(self, tables: RunTables, facts: RunFacts, arrivals: ArrivalRates | None) -> None:
        self._tables, self._facts = tables, facts
        self._known: dict[str, Distribution] = {}
        requests = tables.requests | computed(latency_columns, tables.requests)
        window = measured_window(requests, facts.measure, facts.last_arrival_s, facts.end_s)
        self._finished = requests["status"].is_("finished")
        self._answers_whole = facts.in_pools(requests["replica"], lambda pool: not pool.streamed)
        if any("itl_s" in limits for limits in (facts.slo, *facts.slo_classes.values())):
            requests |= self._gaps(requests)
        met = met_by_goal(requests, facts.slo, facts.slo_classes)
        requests |= {"in_window": window.has, "slo_met": all_met(met), "n_in_system": n_in_system(requests)}
        release(requests)
        self.run = RunBasis(requests, tables.spans, tables.steps, facts, window, met, arrivals, self)

    @property
    def recorded(self) -> Columns:
        """The requests as far as a decision needs them."""
        return self.run.requests

    @property
    def decision(self) -> Decision | None:
        """What the decision of the summary rests on; None without an SLO."""
        return self.run.decision

    def part(self, keys: Collection[str]) -> Summary:
        """Return the figures with these keys; no other can be read from it."""
        return part_of(self.run, keys)

    def contents(self) -> Contents:
        """Return all."""
        run, requests = self.run, self.split  # what takes memory comes first, one thing at a time
        latencies = {name: self.latency(name) for name in in_turn((*SAMPLED, ITL), requests)}
        release(requests)
        series = self._series.columns
        release(requests)
        fastest = max_output_tokens_per_s(requests, self._rows, run.spans, self._counted, self._answers_whole)
        columns = {
            "requests": {field.name: requests[field.name] for field in REQUESTS},
            "steps": run.steps,
            "spans": run.spans,
            "timeseries": series,
            "members": Lifetimes(self._facts).table(),
        }
        bench = vllm_bench(requests, run.window, latencies, run.met, fastest, self._facts)
        figures = with_answer(figures_of(run), None if run.decision is None else run.decision.old_word)
        return Contents(columns, figures, plain(bench))

    @cached_property
    def _rows(self) -> DecodeRows:
        return decode_rows(self._tables.steps, self._tables.spans)

    def _gaps(self, requests: Columns) -> Columns:
        how = (self._rows, self._tables.spans, self._finished, self._answers_whole, requests["output_tokens"])
        return {GOALS["itl_s"]: largest_gaps(*how)}

    @cached_property
    def split(self) -> Columns:
        """All requests, with their largest gaps and the parts of their time."""
        requests = self.run.requests
        requests |= self._gaps(requests) | split_columns(self._tables, self._rows, self._facts)
        return requests

    @cached_property
    def _series(self) -> TimeSeries:
        return time_series(self._tables, self._rows, self._facts, self.run.window.span_s)

    @cached_property
    def use(self) -> Utilization:
        """The use of replicas."""
        return utilization(self._series.window_work, self.run.window, self._facts)

    @property
    def _counted(self) -> Flags:
        counted: Flags = self._finished & self.run.window.has
        return counted

    def latency(self, name: str) -> Distribution:
        """Return a latency of the window's finished requests, with intervals."""
        if name not in self._known:
            self._known[name] = self._latency(name)
        return self._known[name]

    def _latency(self, name: str) -> Distribution:
        requests, window = self.run.requests, self.run.window
        if name != ITL:
            values = self._values(name, self._counted)
            return with_intervals(values, inefficiency(requests["n_in_system"][window.has]))
        pooled = self._pooled(self._counted)
        if any(pool.speculation for pool in self._facts.pools):  # gaps are between chunks, of unknown number
            return pooled
        return replace(pooled, intervals=itl_intervals(requests, self._counted, pooled))

    def latencies_of(self, some: Flags) -> dict[str, Distribution]:
        """Return the latencies of some of them."""
        counted = self._counted & some
        in_order = in_turn(SAMPLED, self.run.requests)
        sampled = {name: distribution(self._values(name, counted)) for name in in_order}
        return sampled | {ITL: self._pooled(counted)}

    def _values(self, name: str, counted: Flags) -> Floats:
        requests = self.run.requests
        values: Floats = requests[name][counted]
        values = values[~np.isnan(values)]
        release(requests)
        return values

    def _pooled(self, counted: Flags) -> Distribution:
        n_whole_gaps = int((self.run.requests["output_tokens"][counted & self._answers_whole] - 1).sum())
        return pooled_itl(self._rows, self.run.spans, counted & ~self._answers_whole, n_whole_gaps)
