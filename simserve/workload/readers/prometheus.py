"""Prometheus: a range export of an engine's counters and histograms as requests that are drawn from them.

One query returns what is needed (QUERY, over /api/v1/query_range). Each increase of the counter becomes requests at
times drawn within its step; lengths are drawn from the buckets, or are means. Lost: which lengths go together, and
whatever happens within a step.
Source: prometheus.io, HTTP API; vLLM, v1/metrics/loggers.py.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simserve.errors import TraceError
from simserve.input_files import parse_json
from simserve.tables.columns import Floats
from simserve.workload.readers.base import checked, items, shown
from simserve.workload.readers.text_lines import decoded
from simserve.workload.streams import streams
from simserve.workload.trace import MOST_TOKENS, Trace

COUNTERS = ("request_success", "request_success_total", "num_requests_total")
"""Counters of requests, without the name of the engine before them."""

LENGTHS = {
    "prompt": ("request_prompt_tokens", "prompt_tokens"),
    "output": ("request_generation_tokens", "generation_tokens"),
}
"""Histograms and counters of tokens of each side."""

QUERY = '{__name__=~"vllm:request_success_total|vllm:request_(prompt|generation)_tokens_bucket"}'


class MetricSeries(NamedTuple):
    """Values of a metric at instants, with its labels."""

    labels: dict[str, Any]
    at_s: Floats
    values: Floats


def is_range(text: str) -> bool:
    """Tell whether a text begins a range export."""
    return '"resultType"' in text


def read(path: Path) -> Trace:
    """Read a range export as requests, with seed 0. Raises TraceError."""
    series = series_of(path)
    counters = [each for each in series if metric_of(each) in COUNTERS]
    rates = [each for each in series if not metric_of(each)] if not counters else []
    if not counters and not rates:
        got = ", ".join(sorted({metric_of(each) for each in series})) or "no series"
        raise TraceError(f"{path}: must have a counter of requests or a rate, got {got}; query {QUERY}")
    edges_s, counts = _counts(counters or rates, is_rate=bool(rates))
    n_requests = np.diff(np.rint(np.cumsum([0.0, *counts]))).astype(np.int64)
    if not n_requests.sum():
        raise TraceError(f"{path}: must have requests, got none in {len(counts)} steps; export another time")
    stream, n = streams(0), int(n_requests.sum())
    widths_s = np.diff(edges_s)
    within_s = stream("arrivals/prometheus").random(n) * np.repeat(widths_s, n_requests)
    arrival_s = np.sort(np.repeat(edges_s[:-1] - edges_s[0], n_requests) + within_s)
    prompts, outputs = (_lengths(path, series, side, n, float(np.sum(counts))) for side in LENGTHS)
    ends = () if rates else ("the counter counts ends of requests, so they are later than their arrivals",)
    note = f"{n} requests are drawn from counts in steps of {float(np.median(widths_s)):g} s"
    trace = Trace(arrival_s, prompts.astype(np.int64), outputs.astype(np.int64))
    return replace(checked(items(path, n, "request"), trace), notes=(note, *ends))


def series_of(path: Path) -> list[MetricSeries]:
    """Return the series of an export. Raises TraceError."""
    try:
        document = parse_json("".join(decoded(path)))
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: must be JSON ({error.msg}); was it cut?") from None
    match document:
        case {"data": {"resultType": "matrix", "result": [*results]}} | {"resultType": "matrix", "result": [*results]}:
            return [_one_series(path, result) for result in results]
        case {"data": {"resultType": kind}} | {"resultType": kind}:
            raise TraceError(f"{path}: must be a matrix, got a {shown(kind)}; use /api/v1/query_range")
    raise TraceError(f"{path}: must be an answer of /api/v1/query_range, got another JSON; export it again")


def _one_series(path: Path, result: Any) -> MetricSeries:
    match result:
        case {"metric": dict(labels), "values": [*values]}:
            try:
                pairs = np.array([(float(at_s), float(value)) for at_s, value in values], np.float64).reshape(-1, 2)
            except (TypeError, ValueError):
                raise TraceError(f"{path}: values must be pairs of a time and a number; export it again") from None
            known = pairs[np.isfinite(pairs).all(axis=1)]
            return MetricSeries(labels, known[:, 0], known[:, 1])
    raise TraceError(f"{path}: a series must have metric and values, got {shown(result)}; export it again")


def metric_of(series: MetricSeries) -> str:
    """Return the name of a metric without the engine's before it."""
    return str(series.labels.get("__name__", "")).rpartition(":")[2]


def increases(values: Floats) -> Floats:
    """Return what a counter gained in each step; it begins again at 0 where the server did."""
    gained = np.diff(values)
    return np.where(gained < 0, values[1:], gained)


def _counts(series: Sequence[MetricSeries], *, is_rate: bool) -> tuple[Floats, Floats]:
    """Return the edges of the steps, and the requests in each, over all series."""
    edges_s = np.unique(np.concatenate([at_s for _, at_s, _ in series]))
    counts = np.zeros(max(0, len(edges_s) - 1))
    for _, at_s, values in series:
        gained = values[:-1] * np.diff(at_s) if is_rate else increases(values)
        np.add.at(counts, np.searchsorted(edges_s, at_s[1:]) - 1, np.maximum(gained, 0.0))
    return edges_s, counts


def _lengths(path: Path, series: Sequence[MetricSeries], side: str, n: int, n_counted: float) -> Floats:
    """Return lengths of requests, drawn from a histogram, or their mean. Raises TraceError."""
    histogram, counter = LENGTHS[side]
    gained: dict[float, float] = {}
    for each in (each for each in series if metric_of(each) == f"{histogram}_bucket"):
        bound = float(each.labels.get("le", math.inf))
        gained[bound] = gained.get(bound, 0.0) + float(increases(each.values).sum())
    bounds = sorted(gained)
    counts = np.diff([0.0, *(gained[bound] for bound in bounds)])
    if bounds and counts.max(initial=0.0) > 0:
        return _drawn(bounds, np.maximum(counts, 0.0), side, n)
    totals = [each.values for each in series if metric_of(each) in (f"{counter}_total", counter)]
    tokens = float(sum(increases(values).sum() for values in totals))
    if not tokens or not n_counted:
        rule = f"must have lengths of the {side}: {histogram}_bucket or {counter}_total"
        raise TraceError(f"{path}: {rule}, got neither; query {QUERY}")
    return np.full(n, max(1.0, round(tokens / n_counted)))


def _drawn(bounds: Sequence[float], counts: Floats, side: str, n: int) -> Floats:
    """Return lengths of requests: log-uniform within the buckets, of which the last has no end."""
    low = np.array([1.0, *(bound + 1 for bound in bounds[:-1])])
    high = np.array([bound if bound < math.inf else 2 * first for bound, first in zip(bounds, low, strict=True)])
    stream = streams(0)
    bucket = np.searchsorted(np.cumsum(counts) / counts.sum(), stream(f"lengths/{side}/bucket").random(n), side="right")
    bucket = np.minimum(bucket, len(counts) - 1)
    place = stream(f"lengths/{side}").random(n)
    lengths = np.exp(np.log(low[bucket]) * (1 - place) + np.log(np.maximum(high, low)[bucket]) * place)
    drawn: Floats = np.clip(np.rint(lengths), 1, MOST_TOKENS)
    return drawn
