"""ITL: the gaps between consecutive tokens, pooled over requests, and the largest gap of each request. Exact."""

import math
from collections.abc import Sequence

import numpy as np

from simserve.metrics.decode_rows import DecodeRows
from simserve.metrics.progressions import Progressions, highest, mean_and_std, order_statistics, singles, total
from simserve.metrics.stats import EMPTY, PERCENTILES, Distribution, interpolated
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.units import PS_PER_S, array_to_ps, array_to_s


def pooled_itl(rows: DecodeRows, spans: Columns, counts: Flags, n_whole_gaps: int) -> Distribution:
    """The distribution of all gaps between tokens of the requests that count.

    counts: `(n_requests,)`, requests whose tokens arrive one by one. n_whole_gaps: gaps within answers that left
    whole, which are all 0.

    A span of k decode steps has k gaps. The first is from join_s to the end of its first step; the others, from one
    step's end to the next, are the same for all members of a step and so are counted once with a weight.
    """
    families = [*_shared_gaps(rows, counts[spans["request_id"]]), *_own_gaps(rows, spans, counts)]
    if n_whole_gaps:
        families.append(singles(np.zeros(1, np.int64), np.array([n_whole_gaps])))
    n = total(families)
    if not n:
        return EMPTY
    mean, std = mean_and_std(families)
    return Distribution(n, mean / PS_PER_S, std / PS_PER_S, _percentiles(families, n), highest(families) / PS_PER_S)


def largest_gaps(rows: DecodeRows, spans: Columns, has_finished: Flags, answers_whole: Flags, n_tokens: Ints) -> Floats:
    """The largest gap between two tokens of each finished request, in seconds; NaN with fewer than two tokens."""
    largest = np.full(len(n_tokens), -1, np.int64)
    # Row by row, the largest gap that a member sees in it; one who begins with the row sees no gap at its start.
    inner = np.where(rows.n_steps > 1, np.maximum(rows.first_ps + rows.growth_ps, rows.last_ps), 0)
    whole = np.maximum(inner, rows.first_ps + rows.pause_ps())
    is_real = rows.has_steps
    request, first, last = (column[is_real] for column in (spans["request_id"], rows.span_first, rows.span_last))
    _raise(largest, request, inner[first])
    _raise(largest, request, _first_gaps(rows, spans, is_real))
    _raise(largest, request, _range_max(whole, first, last))
    _raise(largest, *_junctions(rows, spans))
    largest[answers_whole] = 0
    seconds = array_to_s(largest)
    seconds[~has_finished | (n_tokens < 2)] = np.nan
    return seconds


def _shared_gaps(rows: DecodeRows, counts: Flags) -> list[Progressions]:
    """Gaps from one decode step's end to the next, each as often as requests that count saw it."""
    within, begin = rows.members(counts)
    at_start = singles(rows.first_ps + rows.pause_ps(), within - begin)
    several = (rows.n_steps > 1) & (within > 0)
    first, growth, n = rows.first_ps[several], rows.growth_ps[several], rows.n_steps[several] - 1
    lowest = np.where(growth < 0, first + n * growth, first + growth)  # the same numbers in rising order
    return [at_start, Progressions(lowest, np.abs(growth), n, within[several])]


def _own_gaps(rows: DecodeRows, spans: Columns, counts: Flags) -> list[Progressions]:
    """Gaps of one request alone: after each prefill, and from one span to the next."""
    counted = counts[spans["request_id"]]
    request, junctions = _junctions(rows, spans)
    return [singles(_first_gaps(rows, spans, counted & rows.has_steps)), singles(junctions[counts[request]])]


def _first_gaps(rows: DecodeRows, spans: Columns, chosen: Flags) -> Ints:
    """From join_s to the end of the first decode step, of the chosen spans."""
    first = rows.span_first[chosen]
    return rows.first_ps[first] + array_to_ps(rows.start_s[first] - spans["join_s"][chosen])


def _junctions(rows: DecodeRows, spans: Columns) -> tuple[Ints, Ints]:
    """(request, gap) between the last token of a span and the join of the request's next one."""
    request = spans["request_id"]
    chosen = np.flatnonzero(np.bincount(request)[request] > 1) if len(request) else np.empty(0, np.int64)
    order = chosen[np.lexsort((spans["join_s"][chosen], request[chosen]))]
    same = request[order][1:] == request[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    return request[after], array_to_ps(spans["join_s"][after] - span_ends(rows, spans, before))


def span_ends(rows: DecodeRows, spans: Columns, chosen: Ints | None = None) -> Floats:
    """The instant of the last token of each span, `(n_chosen,)`; of all spans by default."""
    last = rows.span_last if chosen is None else rows.span_last[chosen]
    first = rows.span_first if chosen is None else rows.span_first[chosen]
    ends: Floats = np.array(spans["join_s"] if chosen is None else spans["join_s"][chosen])
    real = last >= first
    ends[real] = rows.end_s[last[real]]
    return ends


def _raise(largest: Ints, request: Ints, gaps: Ints) -> None:
    np.maximum.at(largest, request, gaps)


def _range_max(values: Ints, first: Ints, last: Ints) -> Ints:
    """max(values[first + 1 : last + 1]) of each pair; 0 where that is empty.

    fast: a sparse table, one level in memory at a time: a range of length in [2^k, 2^(k+1)) is two of length 2^k.
    """
    length = last - first
    level_of = np.frexp(length.astype(np.float64))[1] - 1  # floor(log2), exact
    result = np.zeros(len(first), np.int64)
    table, width = values, 1
    for level in range(int(level_of.max(initial=-1)) + 1):
        here = np.flatnonzero((level_of == level) & (length > 0))
        result[here] = np.maximum(table[first[here] + 1], table[last[here] + 1 - width])
        table = np.maximum(table[:-width], table[width:])
        width *= 2
    return result


def _percentiles(families: Sequence[Progressions], n: int) -> dict[float, float]:
    """As `numpy.percentile` of all the numbers would give them."""
    places = {level: (n - 1) * (level / 100) for level in PERCENTILES}
    ranks = {level: (math.floor(place), min(math.floor(place) + 1, n - 1)) for level, place in places.items()}
    found = order_statistics(families, [rank for pair in ranks.values() for rank in pair])
    return {
        level: interpolated(found[low] / PS_PER_S, found[high] / PS_PER_S, places[level] - low)
        for level, (low, high) in ranks.items()
    }
