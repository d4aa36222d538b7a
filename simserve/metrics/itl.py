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
from simserve.tables import large
from simserve.tables.columns import Columns, Flags, Floats, Ints
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
        for piece in large.pieces(len(self.rows), SUMMED_ROWS):
            yield from self._shared(piece)
        for piece in large.pieces(len(self.own_ps), SUMMED_ROWS):
            yield singles(self.own_ps[piece])
        if self.n_zero:
            yield singles(np.zeros(1, np.int64), np.array([self.n_zero]))

    def _shared(self, piece: slice) -> Iterator[Progressions]:
        """Yield gaps between decode steps: at the start of each row, and inside it."""
        rows, within = self.rows, self.within[piece]
        first, growth, n = rows.first_ps[piece], rows.growth_ps[piece], rows.n_steps[piece] - 1
        yield singles(first + rows.pause_ps[piece], within - self.begin[piece])
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
        _first_gaps(rows, spans, piece.start + np.flatnonzero(counted[piece] & rows.has_steps[piece]))
        for piece in large.pieces(len(counted))
    )
    own_ps = large.joined(len(counted) + len(request), chain(firsts, [junctions[counts[request]]]))
    gaps = Gaps(rows, *rows.members(counted), own_ps, n_whole_gaps)
    moments = census(gaps)
    if moments is None:
        return EMPTY
    percentiles = _percentiles(gaps, moments)
    return Distribution(
        moments.n, moments.mean / PS_PER_S, moments.std / PS_PER_S, percentiles, moments.highest / PS_PER_S
    )


def itl_intervals(requests: Columns, counts: Flags, pooled: Distribution) -> dict[str, Ends | None]:
    """Return the interval of the mean of all gaps, a ratio of two means over requests; percentiles have none.

    The error of the ratio is that of the mean residual of each request.
    """
    n_gaps = (requests["output_tokens"][counts] - 1).astype(np.float64)
    none = {level_name(level): None for level in PERCENTILES}
    if not pooled.n:
        return {"mean": None, **none}
    total_s = requests["finish_s"][counts] - requests["first_token_s"][counts]
    return {"mean": mean_interval(pooled.mean + (total_s - pooled.mean * n_gaps) / n_gaps.mean()), **none}


def largest_gaps(rows: DecodeRows, spans: Columns, has_finished: Flags, answers_whole: Flags, n_tokens: Ints) -> Floats:
    """Return the largest gap between tokens of each finished request, in seconds; NaN with fewer than two tokens."""
    largest = large.zeros(len(n_tokens), np.int64)
    for piece in large.pieces(len(rows.span_first)):
        chosen = piece.start + np.flatnonzero(rows.has_steps[piece])
        if len(chosen):
            request = spans["request_id"][chosen]
            _raise(largest, request, _gaps_in_rows(rows, chosen))
            _raise(largest, request, _first_gaps(rows, spans, chosen))
    _raise(largest, *_junctions(rows, spans))

    def seconds(piece: slice) -> Floats:
        largest_s = array_to_s(np.where(answers_whole[piece], 0, largest[piece]))
        largest_s[~has_finished[piece] | (n_tokens[piece] < 2)] = np.nan
        return largest_s

    return large.built(len(n_tokens), seconds)


def _gaps_in_rows(rows: DecodeRows, chosen: Ints) -> Ints:
    """Return the largest gap of some spans after their first decode step, `(n_chosen,)`; without, no more than that."""
    first, last = rows.span_first[chosen], rows.span_last[chosen]
    lowest = int(first.min())
    near = slice(lowest, int(last.max()) + 1)
    # Row by row, the largest gap that a member has in it; a member that begins with the row has no gap at its start.
    first_ps, growth_ps = rows.first_ps[near], rows.growth_ps[near]
    inner: Ints = np.maximum(first_ps + growth_ps, rows.last_ps(near))
    whole = np.maximum(inner, first_ps + rows.pause_ps[near])
    first, last = first - lowest, last - lowest
    largest: Ints = np.maximum(inner[first], _range_max(whole, first, last))
    return largest


def of_spans(spans: Columns, of_requests: Any) -> Any:
    """Return the value of each span's request, `(n_spans,)`."""
    return large.built(len(spans["request_id"]), lambda piece: of_requests[spans["request_id"][piece]])


def _first_gaps(rows: DecodeRows, spans: Columns, chosen: Ints) -> Ints:
    """Return the gaps from join_s to the end of the first decode step of the chosen spans."""
    first = rows.span_first[chosen]
    return rows.first_ps[first] + array_to_ps(rows.start_s[first] - spans["join_s"][chosen])


def _junctions(rows: DecodeRows, spans: Columns) -> tuple[Ints, Ints]:
    """Return (request, gap) between the last token of a span and the join of the request's next one."""
    request = spans["request_id"]
    n_spans = np.zeros(
        1 + max((int(request[piece].max()) for piece in large.pieces(len(request))), default=-1), np.int32
    )
    for piece in large.pieces(len(request)):
        np.add.at(n_spans, request[piece], 1)
    chosen = large.flatnonzero(len(request), lambda piece: n_spans[request[piece]] > 1)
    order = chosen[np.lexsort((spans["join_s"][chosen], request[chosen]))]
    same = request[order][1:] == request[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    return request[after], array_to_ps(spans["join_s"][after] - span_ends(rows, spans, before))


def span_ends(rows: DecodeRows, spans: Columns, chosen: Ints | slice) -> Floats:
    """Return the time of the last token of some spans, `(n_chosen,)`."""
    first, last = rows.span_first[chosen], rows.span_last[chosen]
    ends: Floats = np.array(spans["join_s"][chosen])
    real = last >= first
    ends[real] = rows.end_s[last[real]]
    return ends


def _raise(largest: Ints, request: Ints, gaps: Ints) -> None:
    np.maximum.at(largest, request, gaps)


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
