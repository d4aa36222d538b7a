"""Sharing: common prefixes of a trace's prompts, and the hits of an unlimited cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.tables.columns import Ints
from simserve.workload.trace import Prefixes, Trace

LEVELS = (10, 25, 50, 75, 90, 99)
DISTANCE_LEVELS = (50, 90, 99, 100)
MOST_IDS_FOR_DISTANCES = 2_000_000
"""Limit for a second or two of computing time."""


def hit_tokens(trace: Trace) -> Ints:
    """Return the prompt tokens of each request that an earlier one has computed, `(n_requests,)`; zeros if unknown.

    Only whole blocks count, and never the last token of a prompt, which is always computed. An earlier request counts
    as done: its output is included, as far as it has ids.
    """
    if trace.prefixes is None:
        return np.zeros(len(trace), np.int64)
    return _Touches(trace, trace.prefixes).hit_ids() * trace.prefixes.block_tokens


def sharing(trace: Trace) -> dict[str, Any] | None:
    """Return the figures of a trace's prefixes as plain data; None without prefixes."""
    prefixes = trace.prefixes
    if prefixes is None:
        return None
    touches = _Touches(trace, prefixes)
    hits = touches.hit_ids() * prefixes.block_tokens
    shares = hits / trace.prompt_tokens
    n_blocks = touches.n_distinct + touches.unnamed_blocks()
    return {
        "block_tokens": prefixes.block_tokens,
        "hit_frac": float(hits.sum() / trace.prompt_tokens.sum()),
        "requests_with_hit_frac": float((hits > 0).mean()),
        "request_hit_frac": {"mean": float(shares.mean())} | _quantiles(shares, LEVELS),
        "distinct_blocks": n_blocks,
        "working_set_tokens": n_blocks * prefixes.block_tokens,
        "reuse_distance_tokens": touches.distances(),
    }


class _Touches:
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

    def hit_ids(self) -> Ints:
        """Return the leading ids of each request that an earlier one has; ids are chained, so hits come first."""
        return np.bincount(self._row[self._is_hit], minlength=len(self._trace))

    def unnamed_blocks(self) -> int:
        """Return the whole prompt blocks without an id."""
        return int(np.maximum(self._trace.prompt_tokens // self._block_tokens - self._n_ids, 0).sum())

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


def _quantiles(values: NDArray[Any], levels: tuple[int, ...]) -> dict[str, float]:
    named = zip(levels, np.percentile(values, levels), strict=True)
    return {"max" if level == 100 else f"p{level}": float(value) for level, value in named}
