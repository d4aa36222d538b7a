"""Info: figures of a trace that matter before replaying it: rate, burstiness, lengths, and shared prefixes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.tables.columns import Floats, Ints
from simserve.workload.trace import Prefixes, Trace

WINDOWS_S = (1.0, 10.0, 60.0, 300.0)
"""Windows of the index of dispersion."""

FEWEST_WINDOWS = 10

LENGTH_LEVELS = (1, 10, 25, 50, 75, 90, 99, 99.9, 100)
HIT_LEVELS = (10, 25, 50, 75, 90, 99)
DISTANCE_LEVELS = (50, 90, 99, 100)
"""Percentiles; the last may be the maximum."""

MOST_IDS_FOR_DISTANCES = 2_000_000
"""Limit for a second or two of computing time."""


def trace_info(trace: Trace) -> dict[str, Any]:
    """Return rate, burstiness, lengths and shared prefixes of a trace as plain data; None for unknown values."""
    prompts, outputs = trace.prompt_tokens, trace.output_tokens
    duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    return {
        "n_requests": len(trace),
        "duration_s": duration_s,
        "rate_per_s": (len(trace) - 1) / duration_s if duration_s else None,
        "gap_cv": gap_cv(trace.arrival_s),
        "index_of_dispersion": {f"{w:g} s": index_of_dispersion(trace.arrival_s, w) for w in WINDOWS_S},
        "prompt_tokens": _lengths(prompts),
        "output_tokens": _lengths(outputs),
        "rank_correlation": rank_correlation(prompts, outputs),
        "stamp_s": stamp_s(trace),
        "prefixes": sharing(trace),
        "notes": list(trace.notes),
    }


def gap_cv(arrival_s: Floats) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals: 1 for Poisson, larger is burstier."""
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None


def index_of_dispersion(arrival_s: Floats, window_s: float) -> float | None:
    """Return the variance over the mean of arrivals per window: 1 for Poisson at every window (Cox and Lewis 1966)."""
    n_windows = int((arrival_s[-1] - arrival_s[0]) / window_s)
    if n_windows < FEWEST_WINDOWS:
        return None
    window = arrival_s - arrival_s[0]
    window = window[: np.searchsorted(window, n_windows * window_s, side="right")]  # the last one includes its end
    window /= window_s
    np.minimum(np.floor(window, out=window), n_windows - 1, out=window)
    last = np.append(np.flatnonzero(window[1:] != window[:-1]), len(window) - 1)
    counts = np.diff(last, prepend=-1)  # most windows of a long trace are empty
    mean = counts.sum() / n_windows
    variance = ((counts**2).sum() - n_windows * mean**2) / (n_windows - 1)
    return float(variance / mean)


def rank_correlation(first: Ints, second: Ints) -> float | None:
    """Return Spearman's correlation of prompt and output lengths; ties share their mean rank."""
    if len(first) < 2 or first.min() == first.max() or second.min() == second.max():
        return None
    ranks, others = _ranks(first), _ranks(second)
    ranks -= ranks.mean()
    others -= others.mean()
    return float((ranks @ others) / np.sqrt((ranks @ ranks) * (others @ others)))


def stamp_s(trace: Trace) -> float | None:
    """Return the step of the stamps if it is coarser than the gaps between requests, else None."""
    stamps = np.unique(trace.arrival_s)
    if len(stamps) < 2 or len(trace) < 3 * len(stamps):
        return None
    return float(np.median(np.diff(stamps)))


def sharing(trace: Trace) -> dict[str, Any] | None:
    """Return the figures of a trace's prefixes as plain data; None without prefixes."""
    prefixes = trace.prefixes
    if prefixes is None:
        return None
    touches = Touches(trace, prefixes)
    hits = touches.hit_tokens()
    shares = hits / trace.prompt_tokens
    n_unnamed = np.maximum(trace.prompt_tokens // prefixes.block_tokens - prefixes.n_ids_of_rows(), 0).sum()
    n_blocks = touches.n_distinct + int(n_unnamed)
    return {
        "block_tokens": prefixes.block_tokens,
        "hit_frac": float(hits.sum() / trace.prompt_tokens.sum()),
        "requests_with_hit_frac": float((hits > 0).mean()),
        "request_hit_frac": {"mean": float(shares.mean())} | _quantiles(shares, HIT_LEVELS),
        "distinct_blocks": n_blocks,
        "working_set_tokens": n_blocks * prefixes.block_tokens,
        "reuse_distance_tokens": touches.distances(),
    }


class Touches:
    """Every id of every request in order, one touch of a block each, `(n_touches,)`."""

    def __init__(self, trace: Trace, prefixes: Prefixes) -> None:
        ids, offsets = prefixes.ids()
        self._trace = trace
        self._block_tokens = prefixes.block_tokens
        self._n_ids = np.diff(offsets)
        self._block = ids if ids.max(initial=0) < 2 * len(ids) else np.unique(ids, return_inverse=True)[1]
        self._row = np.repeat(np.arange(len(trace)), self._n_ids)
        first_row = np.full(self._block.max(initial=-1) + 1, len(trace))
        first_row[self._block[::-1]] = self._row[::-1]  # the last write wins: the earliest row's
        self.n_distinct = int((first_row < len(trace)).sum())
        most_ids = (trace.prompt_tokens - 1) // self._block_tokens
        can_hit = np.arange(len(ids)) - offsets[self._row] < most_ids[self._row]
        self._is_hit = can_hit & (first_row[self._block] < self._row)

    def hit_tokens(self) -> Ints:
        """Return the prompt tokens of each request that an earlier one has computed, `(n_requests,)`.

        Only whole blocks count, and never the last token of a prompt, which is always computed. An earlier request
        counts as done: its output is included, as far as it has ids.
        """
        n_ids = np.bincount(self._row[self._is_hit], minlength=len(self._trace))  # chained, so hits come first
        return n_ids * self._block_tokens

    def distances(self) -> dict[str, float] | None:
        """Return tokens of distinct blocks touched between two uses of a block, both included, over all hits.

        An LRU cache of this many tokens keeps that share of the hits. Blocks without an id take room too. None without
        hits, or with too many ids.
        """
        if not self._is_hit.any() or len(self._block) > MOST_IDS_FOR_DISTANCES:
            return None
        before = _last_use(self._block)
        again = np.flatnonzero(self._is_hit)
        between = again - before[again] - _larger_before(before)[again]
        nameless = self._trace.prompt_tokens + self._trace.output_tokens - self._n_ids * self._block_tokens
        until = np.concatenate([[0], np.cumsum(nameless)])
        room = until[self._row[again]] - until[self._row[before[again]]]
        return _quantiles(between * self._block_tokens + room, DISTANCE_LEVELS)


def _last_use(block: Ints) -> Ints:
    """Return the previous touch of each block, -1 for the first, `(n,)`."""
    order = np.argsort(block, kind="stable")
    before = np.full(len(block), -1)
    again = np.flatnonzero(np.diff(block[order]) == 0)
    before[order[again + 1]] = order[again]
    return before


def _larger_before(values: Ints) -> Ints:
    """Count the larger values before each value, `(n,)`: merge sort's count, level by level."""
    n_larger = np.zeros(len(values), np.int64)
    by_value = np.argsort(values, kind="stable")
    for bit in range(len(values).bit_length()):
        at = by_value[np.argsort(by_value >> (bit + 1), kind="stable")]  # halves of 2**bit, each sorted by value
        is_left = (at >> bit) & 1 == 0
        n_left = np.cumsum(is_left)
        pair = at >> (bit + 1)
        n_left_in_all = n_left[np.searchsorted(pair, pair, side="right") - 1]
        n_larger[at[~is_left]] += (n_left_in_all - n_left)[~is_left]
    return n_larger


def _ranks(values: Ints) -> Floats:
    counts = np.bincount(values)  # at most MOST_TOKENS
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[values]
    return ranks


def _lengths(tokens: Ints) -> dict[str, float]:
    return {"mean": float(tokens.mean()), "min": float(tokens.min())} | _quantiles(tokens, LENGTH_LEVELS)


def _quantiles(values: NDArray[Any], levels: Sequence[float]) -> dict[str, float]:
    named = zip(levels, np.percentile(values, levels), strict=True)
    return {"max" if level == 100 else f"p{level:g}": float(value) for level, value in named}
