"""ITL: the gaps between consecutive tokens, pooled over requests, and the largest gap of each request. Exact."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.intervals import Ends, mean_interval
from simserve.metrics.progressions import Census, Progressions, census, order_statistics, singles
from simserve.metrics.stats import EMPTY, PERCENTILES, Distribution, interpolated, level_name
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.pieces import Rows, column, cut, full, joined, pieces, rows_where
from simserve.units import PS_PER_S, array_to_ps, array_to_s

SUMMED_ROWS = 1 << 16
"""Rows that are summed at a time: the last bits of a mean go by this number, so it is not that of the pieces."""


@dataclass(frozen=True)
class Gaps:
    """All gaps between tokens of some requests, recomputed piece by piece on every iteration.

    A span of k decode steps has k gaps. The first is from join_s to the end of its first step; the others, between ends
    of consecutive steps, are the same for all members of a step and are counted once with a weight.
    """

    rows: DecodeRows
    within: Ints
    """Number of the requests in each row, `(n_rows,)`."""
    begin: Ints
    """Number of the requests that begin with each row."""
    own_ps: Ints
    """Gaps of single requests: after each prefill, and from one span to the next."""
    n_zero: int
    """Gaps inside answers that are returned whole."""

    def __iter__(self) -> Iterator[Progressions]:
        for part in pieces(self.rows.by_row | {"within": self.within, "begin": self.begin}, SUMMED_ROWS):
            yield from _shared(part)
        for part in pieces({"own_ps": self.own_ps}, SUMMED_ROWS):
            yield singles(part["own_ps"])
        if self.n_zero:
            yield singles(np.zeros(1, np.int64), np.array([self.n_zero]))


def _shared(rows: Rows) -> Iterator[Progressions]:
    """Yield gaps between decode steps: at the start of each row, and inside it."""
    within, first, growth, n = rows["within"], rows["first_ps"], rows["growth_ps"], rows["n_steps"] - 1
    yield singles(first + rows["pause_ps"], within - rows["begin"])
    several = np.flatnonzero((n > 0) & (within > 0))
    first, growth, n = first[several], growth[several], n[several]
    lowest = np.minimum(first + growth, first + growth * n)  # the same numbers, ascending
    yield Progressions(lowest, np.abs(growth), n, within[several])


def pooled_itl(rows: DecodeRows, spans: Columns, counts: Flags, n_whole_gaps: int) -> Distribution:
    """Return the distribution of all gaps between tokens of the requests that count.

    counts: `(n_requests,)`, requests with streamed tokens. n_whole_gaps: gaps inside answers that are returned whole,
    which are all 0.
    """
    counted = of_spans(spans, counts)
    request, junctions = _junctions(rows, spans)
    firsts = (
        _first_gaps(rows, part, part["counted"] & (part["last"] >= part["first"]))
        for part in pieces(rows.by_span(spans) | {"counted": counted})
    )
    own_ps = joined(chain(firsts, [junctions[counts[request]]]), len(counted) + len(request), spans)
    gaps = Gaps(rows, *rows.members(counted), own_ps, n_whole_gaps)
    moments = census(gaps)
    if moments is None:
        return EMPTY
    percentiles = _percentiles(gaps, moments)
    return Distribution(
        moments.n, moments.mean / PS_PER_S, moments.std / PS_PER_S, percentiles, moments.highest / PS_PER_S
    )


def itl_intervals(requests: Columns, counts: Flags, pooled: Distribution) -> dict[str, Ends | None]:
    """Return the interval of the mean of all gaps, a ratio of two means over requests; percentiles have none. The error
    of the ratio is that of the mean residual of each request."""
    n_gaps = (requests["output_tokens"][counts] - 1).astype(np.float64)
    none = {level_name(level): None for level in PERCENTILES}
    if not pooled.n:
        return {"mean": None, **none}
    total_s = requests["finish_s"][counts] - requests["first_token_s"][counts]
    return {"mean": mean_interval(pooled.mean + (total_s - pooled.mean * n_gaps) / n_gaps.mean()), **none}


def largest_gaps(rows: DecodeRows, spans: Columns, has_finished: Flags, answers_whole: Flags, n_tokens: Ints) -> Floats:
    """Return the largest gap between tokens of each finished request, in seconds; NaN with fewer than two tokens."""
    largest = full(len(n_tokens), 0, spans)
    for part in pieces(rows.by_span(spans)):
        chosen = part["last"] >= part["first"]
        if chosen.any():
            request = part["request_id"][chosen]
            np.maximum.at(largest, request, _gaps_in_rows(rows, part["first"][chosen], part["last"][chosen]))
            np.maximum.at(largest, request, _first_gaps(rows, part, chosen))
    np.maximum.at(largest, *_junctions(rows, spans))

    def seconds(part: Rows) -> Floats:
        largest_s = array_to_s(np.where(part["is_whole"], 0, part["largest"]))
        largest_s[~part["has_finished"] | (part["n_tokens"] < 2)] = np.nan
        return largest_s

    table = {"is_whole": answers_whole, "largest": largest, "has_finished": has_finished, "n_tokens": n_tokens}
    return column(seconds, table)


def _gaps_in_rows(rows: DecodeRows, first: Ints, last: Ints) -> Ints:
    """Return the largest gap of some spans after their first decode step, `(n_spans,)`; without, no more than that."""
    lowest = int(first.min())
    near = slice(lowest, int(last.max()) + 1)
    # Row by row, the largest gap that a member has in it; a member that begins with the row has no gap at its start.
    first_ps, growth_ps, n_steps = rows.first_ps[near], rows.growth_ps[near], rows.n_steps[near]
    inner: Ints = np.maximum(first_ps + growth_ps, first_ps + growth_ps * (n_steps - 1))
    whole = np.maximum(inner, first_ps + rows.pause_ps[near])
    first, last = first - lowest, last - lowest
    return np.maximum(inner[first], _range_max(whole, first, last))


def of_spans(spans: Columns, of_requests: Any) -> Any:
    """Return the value of each span's request, `(n_spans,)`."""
    return column(lambda part: of_requests[part["request_id"]], {"request_id": spans["request_id"]})


def _first_gaps(rows: DecodeRows, spans: Rows, chosen: Flags) -> Ints:
    """Return the gaps from join_s to the end of the first decode step of the chosen spans."""
    first = spans["first"][chosen]
    gaps: Ints = rows.first_ps[first] + array_to_ps(rows.start_s[first] - spans["join_s"][chosen])
    return gaps


def _junctions(rows: DecodeRows, spans: Columns) -> tuple[Ints, Ints]:
    """Return (request, gap) between the last token of a span and the join of the request's next one."""
    request = spans["request_id"]
    by_request = {"request_id": request}
    n_requests = 1 + max((int(part["request_id"].max()) for part in pieces(by_request)), default=-1)
    n_spans = np.zeros(n_requests, np.int32)
    for part in pieces(by_request):
        np.add.at(n_spans, part["request_id"], 1)
    chosen = rows_where(lambda part: n_spans[part["request_id"]] > 1, by_request)
    order = chosen[np.lexsort((spans["join_s"][chosen], request[chosen]))]
    same = request[order][1:] == request[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    ends_s = span_ends(rows, cut(rows.by_span(spans), before))
    return request[after], array_to_ps(spans["join_s"][after] - ends_s)


def span_ends(rows: DecodeRows, spans: Rows) -> Floats:
    """Return the time of the last token of spans, which have their rows (`DecodeRows.by_span`), `(n_spans,)`."""
    ends: Floats = np.array(spans["join_s"])
    real = spans["last"] >= spans["first"]
    ends[real] = rows.end_s[spans["last"][real]]
    return ends


def _range_max(values: Ints, first: Ints, last: Ints) -> Ints:
    """Return max(values[first + 1 : last + 1]) of each pair; 0 where that is empty.

    fast: a sparse table, one level in memory at a time: a range of length in [2^k, 2^(k+1)) is two of length 2^k.
    """
    length = last - first
    level_of = np.frexp(length.astype(np.float64))[1] - 1  # floor(log2), exact; -1 of 0
    result = np.zeros(len(first), np.int64)
    table, width = values, 1
    for level in range(int(level_of.max()) + 1):
        here = np.flatnonzero(level_of == level)
        result[here] = np.maximum(table[first[here] + 1], table[last[here] + 1 - width])
        table = np.maximum(table[:-width], table[width:])
        width *= 2
    return result


def _percentiles(gaps: Gaps, moments: Census) -> dict[float, float]:
    """Return the percentiles of all gaps as `numpy.percentile` would."""
    last = moments.n - 1
    places = {level: last * (level / 100) for level in PERCENTILES}
    ranks = {level: (math.floor(place), min(math.floor(place) + 1, last)) for level, place in places.items()}
    values = order_statistics(gaps, moments, [rank for pair in ranks.values() for rank in pair])
    return {
        level: interpolated(values[low] / PS_PER_S, values[high] / PS_PER_S, places[level] - low)
        for level, (low, high) in ranks.items()
    }
