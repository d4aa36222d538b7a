"""Reduction: from the engine's tables to all metrics of a run; each step is a module of this package."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from simserve.metrics.basis import RunBasis
from simserve.metrics.decode_rows import DecodeRows, decode_rows
from simserve.metrics.drawn_load import ArrivalRates
from simserve.metrics.figures import summary
from simserve.metrics.goodput import all_met, met_by_goal
from simserve.metrics.intervals import inefficiency
from simserve.metrics.itl import itl_intervals, largest_gaps, pooled_itl
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.stats import Distribution, distribution, with_intervals
from simserve.metrics.time_split import split_columns
from simserve.metrics.timeseries import time_series
from simserve.metrics.utilization import utilization
from simserve.metrics.vllm_bench import max_output_tokens_per_s, vllm_bench
from simserve.metrics.window import measured_window, n_in_system
from simserve.tables.columns import Columns, Flags, Floats
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import Derived, computed, in_turn, release
from simserve.tables.run_tables import RunTables
from simserve.tables.schema import REQUESTS

SAMPLED = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
"""Latencies with a column in requests; the fifth, itl_s, is pooled over gaps."""


@dataclass(frozen=True)
class Reduced:
    """All metrics of a run."""

    columns: dict[str, Columns]
    summary: dict[str, Any]
    vllm_bench: dict[str, Any]


def reduce_run(tables: RunTables, facts: RunFacts, arrivals: ArrivalRates | None = None) -> Reduced:
    """Compute all metrics of a run, from the arguments alone."""
    spans = tables.spans
    requests = tables.requests | computed(latency_columns, tables.requests)
    window = measured_window(requests, facts.measure, facts.last_arrival_s, facts.end_s)
    finished = requests["status"].is_("finished")
    answers_whole = _answers_whole(requests, facts)
    rows = decode_rows(tables.steps, spans)
    requests["max_itl_s"] = largest_gaps(rows, spans, finished, answers_whole, requests["output_tokens"])
    requests |= split_columns(tables, rows, facts)
    met = met_by_goal(requests, facts.slo, facts.slo_classes)
    requests |= {"in_window": window.has, "slo_met": all_met(met), "n_in_system": n_in_system(requests)}
    counted = finished & window.has
    release(requests)
    sample = partial(with_intervals, inefficiency=inefficiency(requests["n_in_system"][window.has]))
    latencies = _latencies(requests, counted, rows, spans, answers_whole, sample)
    if not any(
        pool.speculation for pool in facts.pools
    ):  # with speculation, gaps are between chunks, of unknown number
        latencies["itl_s"] = replace(latencies["itl_s"], intervals=itl_intervals(requests, counted, latencies["itl_s"]))
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
    return Reduced(columns, summary(run), vllm_bench(requests, window, latencies, met, fastest))


def latency_columns(requests: Columns) -> Derived:
    """Return queue_s, ttft_s, tpot_s and e2e_s, `(n_requests,)` each; NaN where a timestamp is missing.

    TPOT is (last token - first token) / (output tokens - 1); a request with one output token has none. It is vLLM's
    `tpot`, and the inter-token latency of GuideLLM and AIPerf.
    """
    arrival_s, first_token_s, finish_s = (requests[f"{name}_s"] for name in ("arrival", "first_token", "finish"))
    n_gaps = np.asarray(requests["output_tokens"] - 1, np.float64)
    n_gaps[n_gaps < 1] = np.nan
    return {
        "queue_s": requests["scheduled_s"] - arrival_s,
        "ttft_s": first_token_s - arrival_s,
        "tpot_s": (finish_s - first_token_s) / n_gaps,
        "e2e_s": finish_s - arrival_s,
    }


def _answers_whole(requests: Columns, facts: RunFacts) -> Flags:
    """Mark requests with an answer that is returned whole at finish_s, `(n_requests,)`."""
    whole = np.array([not facts.pools[pool].streamed for pool in facts.replica_pool] + [False])
    flags: Flags = whole[requests["replica"]]  # -1 (no replica) takes the last
    return flags


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
