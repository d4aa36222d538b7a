"""vllm_bench: the result of `vllm bench serve` for the window's requests, with its keys, units and definitions."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.goodput import all_met
from simserve.metrics.itl import of_spans
from simserve.metrics.stats import Distribution
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags, Floats, Ints, bounds
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import cumulated, pieces
from simserve.units import array_to_ps

NAMES = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "e2e_s": "e2el"}
"""Our latencies and vLLM's names for them."""

GOALS = ("ttft_s", "tpot_s", "e2e_s")
"""The goals that vLLM's --goodput accepts."""


def vllm_bench(
    requests: Columns,
    window: Window,
    latencies: Mapping[str, Distribution],
    met_goals: Mapping[str, Flags],
    max_tokens_per_s: float,
    facts: RunFacts,
) -> dict[str, Any]:
    """Return all scalars of the result; milliseconds where the key says so; rates divide by `duration`.

    `facts` give the labels of the setup. The result has no `date`: the same run writes the same file.

    duration is from the first send of the window to the last finish of its requests. latencies: of the finished ones.
    Without completed requests all values are zero, as in vLLM.
    """
    completed = window.finished(requests)
    n = int(np.count_nonzero(completed))
    n_input = int(requests["prompt_tokens"][completed].sum())
    n_output = int(requests["output_tokens"][completed].sum())
    duration_s = float(requests["finish_s"][completed].max() - requests["arrival_s"][window.has].min()) if n else 0.0
    per_s = 1 / duration_s if duration_s else 0.0
    met = all_met({goal: flags for goal, flags in met_goals.items() if goal in GOALS})
    return {
        "model_id": facts.pools[0].model,
        **({} if facts.bench is None else asdict(facts.bench)),
        "num_prompts": window.n_requests,
        "duration": duration_s,
        "completed": n,
        "failed": window.n_requests - n,
        "total_input_tokens": n_input,
        "total_output_tokens": n_output,
        "request_throughput": n * per_s,
        "request_goodput": None if met is None else np.count_nonzero(met & window.has) * per_s,
        "output_throughput": n_output * per_s,
        "total_token_throughput": (n_input + n_output) * per_s,
        "max_output_tokens_per_s": max_tokens_per_s,
        "max_concurrent_requests": most_in_a_second(requests["arrival_s"][completed], requests["finish_s"][completed]),
        **{key: value for name in NAMES for key, value in _latency_keys(NAMES[name], latencies[name]).items()},
    }


def _latency_keys(name: str, sample: Distribution) -> dict[str, float]:
    values = {"mean": sample.mean, "median": sample.percentiles[50.0], "std": sample.std} | sample.levels
    return {f"{what}_{name}_ms": value * 1e3 if sample.n else 0.0 for what, value in values.items()}


def most_in_a_second(start_s: Floats, end_s: Floats) -> int:
    """Return the most requests in flight in any one second, `(n_requests,)` each, counted from the first send.

    This is vLLM's max_concurrent_requests: a request counts in every second that it touches, so the value may exceed
    the peak at one instant.
    """
    if not len(start_s):
        return 0
    origin_s = start_s.min()
    first, last = np.zeros((2, int(end_s.max() - origin_s) + 1), np.int64)
    for part in pieces({"first": start_s, "last": end_s}):
        for name, counts in (("first", first), ("last", last)):
            counts += np.bincount((part[name] - origin_s).astype(np.int64), minlength=len(counts))
    ended_before = np.cumsum(last) - last
    return int((np.cumsum(first) - ended_before).max())


def max_output_tokens_per_s(
    requests: Columns, rows: DecodeRows, spans: Columns, completed: Flags, answers_whole: Flags
) -> float:
    """Return the most tokens of completed requests in one second, counted from their first send.

    completed, answers_whole: `(n_requests,)`; whole answers deliver all tokens at finish_s.
    """
    if not completed.any():
        return 0.0
    origin_s = float(requests["arrival_s"][completed].min())
    n_seconds = int(float(requests["finish_s"][completed].max()) - origin_s) + 1
    whole = completed & answers_whole
    counts = _per_second(requests["finish_s"][whole], origin_s, n_seconds, requests["output_tokens"][whole])
    counted = of_spans(spans, completed & ~answers_whole)
    for part in pieces({"join_s": spans["join_s"], "counted": counted}):
        counts += _per_second(part["join_s"][part["counted"]], origin_s, n_seconds)
    members, _ = rows.members(counted)
    counts += _decoded_per_second(rows, members, origin_s, n_seconds)
    return float(counts.max())


def _per_second(at_s: Floats, origin_s: float, n_seconds: int, n_tokens: Ints | None = None) -> Floats:
    second = (at_s - origin_s).astype(np.int64)
    return np.bincount(second, n_tokens, minlength=n_seconds).astype(np.float64)


def _decoded_per_second(rows: DecodeRows, members: Ints, origin_s: float, n_seconds: int) -> Floats:
    """Count the tokens of decode steps by the second in which their step ends, `(n_seconds,)`."""
    edges_s = origin_s + np.arange(n_seconds + 1)
    upto = cumulated(lambda part: part["members"] * part["n_steps"], rows.by_row | {"members": members})
    before_edge = np.zeros(n_seconds + 1, np.int64)
    ends = bounds(rows.replica, int(rows.replica.max(initial=-1)) + 1)
    for first, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        for part in pieces({"edge_s": edges_s, "before": before_edge}, run=rows.by_row):
            row = first - 1 + np.searchsorted(rows.start_s[first:stop], part["edge_s"], side="right")
            begun = row >= first
            row, edge_s = row[begun], part["edge_s"][begun]
            n_before = upto[row] - members[row] * rows.n_steps[row] - (upto[first - 1] if first else 0)
            part["before"][begun] += n_before + members[row] * _steps_before(rows, row, edge_s)
    return np.diff(before_edge).astype(np.float64)


def _steps_before(rows: DecodeRows, row: Ints, edge_s: Floats) -> Ints:
    """Return how many steps of each row end before its edge; the row begins at or before it."""
    elapsed_ps, first_ps, growth_ps = array_to_ps(edge_s - rows.start_s[row]), rows.first_ps[row], rows.growth_ps[row]
    least, most = np.zeros(len(row), np.int64), rows.n_steps[row]
    while (least < most).any():
        n = (least + most + 1) // 2
        fits = n * first_ps + growth_ps * (n * (n - 1) // 2) < elapsed_ps
        least, most = np.where(fits, n, least), np.where(fits, most, n - 1)
    return least
