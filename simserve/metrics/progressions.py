"""Progressions: a multiset of whole numbers kept as weighted arithmetic progressions, and its order statistics.

Billions of gaps between tokens are a few million progressions, because the steps inside a stretch grow by the same
amount. Means have a closed form. An order statistic is found by narrowing: count how many numbers fall into each of
some bins, which a progression tells without being written out; keep what reaches into the bin that holds the rank;
count again in narrower bins; write out only the last few.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.tables.columns import Floats, Ints

FIRST_SHIFT = 46
"""Bits of a float64 that the first bins ignore: they are 1/64 of a power of two wide."""

SHIFT_A_ROUND = 8
"""Each round divides a bin into 2**8."""

WRITE_OUT_AT_MOST = 1 << 18
"""So many numbers are sorted as they are rather than counted once more."""

PAIRS_AT_ONCE = 1 << 20
"""(progression, bin) pairs in memory at a time."""


@dataclass(frozen=True)
class Progressions:
    """Row i holds first[i] + j * growth[i] for j in [0, n[i]), each weight[i] times; `(n_rows,)` of int64.

    Invariant: 0 <= first, growth; 1 <= n, weight; no number exceeds 2**53.
    """

    first: Ints
    growth: Ints
    n: Ints
    weight: Ints

    @property
    def last(self) -> Ints:
        """The greatest number of each row."""
        return self.first + self.growth * (self.n - 1)

    def where(self, keep: Any) -> "Progressions":
        """Some of the rows."""
        return Progressions(self.first[keep], self.growth[keep], self.n[keep], self.weight[keep])


def singles(values: Ints, weight: Ints | None = None) -> Progressions:
    """Numbers of their own, each weight times, once by default; rows of weight 0 are left out."""
    if weight is not None and not weight.all():
        values, weight = values[weight > 0], weight[weight > 0]
    growth, once = (np.broadcast_to(np.int64(value), len(values)) for value in (0, 1))  # fast: takes no memory
    return Progressions(values, growth, once, once if weight is None else weight)


def total(families: Iterable[Progressions]) -> int:
    """How many numbers there are."""
    return sum(int(np.dot(family.n, family.weight)) for family in families)


def mean_and_std(families: Sequence[Progressions]) -> tuple[float, float]:
    """Mean and the population's standard deviation of all numbers, of which there is at least one."""
    n_all = total(families)
    counts = [family.n * family.weight for family in families]
    middles = [family.first + family.growth * ((family.n - 1) / 2) for family in families]
    mean = sum(float(np.dot(count, middle)) for count, middle in zip(counts, middles, strict=True)) / n_all
    squares = 0.0
    for family, count, middle in zip(families, counts, middles, strict=True):
        # Around its middle a progression of n numbers varies by growth² (n² - 1) / 12.
        n, growth = family.n.astype(np.float64), family.growth.astype(np.float64)
        squares += float(np.dot(count, (middle - mean) ** 2 + growth * growth * (n * n - 1) / 12))
    return mean, float(np.sqrt(squares / n_all))


def highest(families: Iterable[Progressions]) -> int:
    """The greatest number, of which there is at least one."""
    return max(int(family.last.max()) for family in families if len(family.first))


def order_statistics(families: Sequence[Progressions], ranks: Iterable[int]) -> dict[int, int]:
    """The numbers at those ranks, from 0 in rising order; by rank."""
    return _search([family for family in families if len(family.first)], sorted(set(ranks)), FIRST_SHIFT)


def _search(families: Sequence[Progressions], ranks: list[int], shift: int) -> dict[int, int]:
    """Order statistics of numbers that share the bin of the round before."""
    if sum(int(family.n.sum()) for family in families) <= WRITE_OUT_AT_MOST:
        return _written_out(families, ranks)
    lowest = min(int(_keys(family.first, shift).min()) for family in families)
    greatest = max(int(_keys(family.last, shift).max()) for family in families)
    counts = np.zeros(greatest - lowest + 1)
    for family in families:
        _count(family, shift, lowest, counts)
    ends = np.cumsum(counts).astype(np.int64)
    places = np.searchsorted(ends, ranks, side="right")
    found: dict[int, int] = {}
    for place in np.unique(places).tolist():
        before = int(ends[place - 1]) if place else 0
        inner = [rank - before for rank, at in zip(ranks, places, strict=True) if at == place]
        low, high = _edges(np.array([place, place + 1]) + lowest, shift).tolist()
        if high - low == 1:
            values = dict.fromkeys(inner, low)
        else:
            values = _search(_cut_all(families, low, high), inner, max(shift - SHIFT_A_ROUND, 0))
        found |= {rank + before: value for rank, value in values.items()}
    return found


def _keys(values: Ints, shift: int) -> Ints:
    """The leading bits of the numbers as floats: bins whose width is a share of their value."""
    return values.astype(np.float64).view(np.int64) >> shift


def _edges(keys: Ints, shift: int) -> Ints:
    """The least whole number of each bin."""
    return np.ceil((keys << shift).view(np.float64)).astype(np.int64)


def _count(family: Progressions, shift: int, lowest: int, counts: Floats) -> None:
    """Add to counts how many numbers of the family each bin holds; place i is the bin with key lowest + i."""
    low, high = _keys(family.first, shift), _keys(family.last, shift)
    is_inside = low == high
    numbers = (family.n * family.weight)[is_inside]
    counts += np.bincount(low[is_inside] - lowest, numbers, minlength=len(counts))
    across = np.flatnonzero(~is_inside)
    for rows in _pieces(across, (high - low)[across] + 1):
        _count_across(family.where(rows), low[rows], high[rows], shift, lowest, counts)


def _count_across(family: Progressions, low: Ints, high: Ints, shift: int, lowest: int, counts: Floats) -> None:
    """`_count` for progressions that reach over several bins: a pair for each bin of each."""
    n_bins = high - low + 1
    starts = np.cumsum(n_bins) - n_bins
    row = np.repeat(np.arange(len(low)), n_bins)
    key = np.arange(len(row)) + np.repeat(low - starts, n_bins)
    numbers_upto = _n_below(family.where(row), _edges(key + 1, shift))
    numbers = np.diff(numbers_upto, prepend=0)
    numbers[starts] = numbers_upto[starts]
    counts += np.bincount(key - lowest, numbers * family.weight[row], minlength=len(counts))


def _pieces(rows: Ints, n_bins: Ints) -> Iterable[Ints]:
    """The rows in pieces of about PAIRS_AT_ONCE bins."""
    piece = np.cumsum(n_bins) // PAIRS_AT_ONCE
    return np.split(rows, np.flatnonzero(np.diff(piece)) + 1) if len(rows) else []


def _n_below(family: Progressions, limit: Any) -> Ints:
    """How many numbers of each row are less than the limit."""
    growth = np.maximum(family.growth, 1)  # a row that does not grow is below as a whole or not at all
    n = -((family.first - limit) // growth)  # rounded up
    grown = np.where(family.growth == 0, family.n, np.minimum(n, family.n))
    return np.where(family.first >= limit, 0, grown)


def _cut_all(families: Sequence[Progressions], low: int, high: int) -> list[Progressions]:
    """What of all families lies in [low, high)."""
    cut = [_cut(family, low, high) for family in families]
    return [family for family in cut if len(family.first)]


def _cut(family: Progressions, low: int, high: int) -> Progressions:
    """What lies in [low, high), as progressions."""
    part = family.where((family.first < high) & (family.last >= low))
    skipped, upto = _n_below(part, low), _n_below(part, high)
    inside = Progressions(part.first + skipped * part.growth, part.growth, upto - skipped, part.weight)
    return inside.where(upto > skipped)


def _written_out(families: Sequence[Progressions], ranks: list[int]) -> dict[int, int]:
    """Order statistics by sorting."""
    values: list[Ints] = []
    weights: list[Ints] = []
    for family in families:
        row = np.repeat(np.arange(len(family.n)), family.n)
        place = np.arange(len(row)) - np.repeat(np.cumsum(family.n) - family.n, family.n)
        values.append(family.first[row] + place * family.growth[row])
        weights.append(family.weight[row])
    value = np.concatenate(values)
    order = np.argsort(value)
    ends = np.cumsum(np.concatenate(weights)[order])
    return dict(zip(ranks, value[order][np.searchsorted(ends, ranks, side="right")].tolist(), strict=True))
