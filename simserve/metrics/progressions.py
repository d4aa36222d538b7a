"""Progressions: a multiset of whole numbers as weighted arithmetic progressions, and its order statistics.

Billions of gaps between tokens are a few million progressions, because step times within a row grow linearly. Means
have a closed form. An order statistic is found by narrowing: count the numbers in each of some bins, which needs no
expansion; keep the progressions that overlap the bin with the rank; count again in narrower bins; expand only the
last few.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simserve.tables import scratch
from simserve.tables.columns import Floats, Ints, counted_up

FIRST_SHIFT = 46
"""Bits of a float64 that the first bins ignore: they are 1/64 of a power of two wide."""

SHIFT_A_ROUND = 8
"""Each round divides a bin into 2**8."""


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

    @property
    def middle(self) -> Floats:
        """The mean of each row."""
        return self.first + self.growth * ((self.n - 1) / 2)

    def where(self, keep: Any) -> "Progressions":
        """Select rows."""
        return Progressions(self.first[keep], self.growth[keep], self.n[keep], self.weight[keep])


def singles(values: Ints, weight: Ints | None = None) -> Progressions:
    """Return single numbers, each `weight` times, once by default; rows of weight 0 are left out."""
    if weight is not None and not weight.all():
        values, weight = values[weight > 0], weight[weight > 0]
    growth, once = (np.broadcast_to(np.int64(value), len(values)) for value in (0, 1))  # fast: takes no memory
    return Progressions(values, growth, once, once if weight is None else weight)


@dataclass(frozen=True)
class Census:
    """Count, moments and extremes of all numbers."""

    n: int
    mean: float
    std: float
    """Population standard deviation."""
    lowest: int
    highest: int


def census(numbers: Iterable[Progressions]) -> Census | None:
    """Return count, mean and spread of all numbers; None if there are none. One pass: the mean and sum of squares of
    each part are merged with those so far (Chan, Golub & LeVeque 1979)."""
    n, mean, squares, lowest, highest = 0, 0.0, 0.0, [], []
    for part in numbers:
        if not len(part.first):
            continue
        size, own_mean, own_squares = _moments(part)
        n += size
        away = own_mean - mean
        mean += away * size / n
        squares += own_squares + away * away * size * (n - size) / n
        lowest.append(int(part.first.min()))
        highest.append(int(part.last.max()))
    return Census(n, mean, math.sqrt(squares / n), min(lowest), max(highest)) if n else None


def _moments(part: Progressions) -> tuple[int, float, float]:
    """Return the count, the mean, and the sum of squared deviations."""
    count = part.n * part.weight
    size, counts = int(count.sum()), count.astype(np.float64)
    middle = part.middle
    mean = _dot(counts, middle) / size
    middle -= mean
    squares = _dot(counts, middle * middle)
    if part.growth.any():
        # Around its middle a progression of n numbers varies by growth² (n² - 1) / 12.
        growth, n = part.growth.astype(np.float64), part.n.astype(np.float64)
        squares += _dot(counts, growth * growth * (n * n - 1)) / 12
    return size, mean, squares


def _dot(a: Floats, b: Floats) -> float:
    """fast: not `@`, as BLAS threads wait for each other where the cores are busy."""
    return float(np.einsum("i,i", a, b))


def order_statistics(numbers: Iterable[Progressions], moments: Census, ranks: Iterable[int]) -> dict[int, int]:
    """Return the numbers at those ranks, from 0 in ascending order, by rank. Iterates over `numbers` several times.

    fast: memory is a few thousand counts and the numbers near the ranks, for any number of progressions.
    """
    return _search(numbers, (moments.lowest, moments.highest), sorted(set(ranks)), FIRST_SHIFT)


def _search(numbers: Iterable[Progressions], ends: tuple[int, int], ranks: list[int], shift: int) -> dict[int, int]:
    """Return order statistics of numbers between the ends."""
    lowest, highest = _keys(np.array(ends), shift).tolist()
    counts = np.zeros(highest - lowest + 1)
    for part in numbers:
        _count(part, shift, lowest, counts)
    upto = np.cumsum(counts).astype(np.int64)
    places = np.searchsorted(upto, ranks, side="right")
    held = [_Bin(*_edges(np.array([place, place + 1]) + lowest, shift).tolist()) for place in np.unique(places)]
    for part in numbers:
        for each in held:
            each.take(part)
    result: dict[int, int] = {}
    for place, each in zip(np.unique(places).tolist(), held, strict=True):
        before = int(upto[place] - counts[place])
        inner = [rank - before for rank, at in zip(ranks, places, strict=True) if at == place]
        values = each.search(inner, max(shift - SHIFT_A_ROUND, 0))
        result |= {rank + before: value for rank, value in values.items()}
    return result


@dataclass
class _Bin:
    """The numbers in [low, stop), as progressions."""

    low: int
    stop: int
    parts: list[Progressions] = field(default_factory=list)

    def take(self, whole: Progressions) -> None:
        """Add the part of `whole` that lies in the bin."""
        part = whole.where(np.flatnonzero((whole.first < self.stop) & (whole.last >= self.low)))
        skipped, upto = _n_below(part, self.low), _n_below(part, self.stop)
        inside = Progressions(part.first + skipped * part.growth, part.growth, upto - skipped, part.weight)
        if (upto > skipped).any():
            self.parts.append(inside.where(upto > skipped))

    def search(self, ranks: list[int], shift: int) -> dict[int, int]:
        """Return order statistics of the bin's numbers."""
        if self.stop - self.low == 1:
            return dict.fromkeys(ranks, self.low)
        if sum(int(part.n.sum()) for part in self.parts) <= scratch.PIECE_ROWS:
            return _written_out(self.parts, ranks)
        return _search(self.parts, (self.low, self.stop - 1), ranks, shift)


def _keys(values: Ints, shift: int) -> Ints:
    """Return the leading bits of the numbers as floats: bins with a width proportional to their value."""
    return values.astype(np.float64).view(np.int64) >> shift


def _edges(keys: Ints, shift: int) -> Ints:
    """Return the least whole number of each bin."""
    return np.ceil((keys << shift).view(np.float64)).astype(np.int64)


def _count(part: Progressions, shift: int, lowest: int, counts: Floats) -> None:
    """Add to counts the numbers in each bin; index i is the bin with key lowest + i."""
    low, high = _keys(part.first, shift), _keys(part.last, shift)
    is_inside = low == high
    numbers = (part.n * part.weight)[is_inside]
    counts += np.bincount(low[is_inside] - lowest, numbers, minlength=len(counts))
    across = np.flatnonzero(~is_inside)
    for rows in _pieces(across, (high - low)[across]):
        _count_across(part.where(rows), low[rows], high[rows], shift, lowest, counts)


def _count_across(part: Progressions, low: Ints, high: Ints, shift: int, lowest: int, counts: Floats) -> None:
    """Count progressions that span several bins, as one pair for each bin of each."""
    n_bins = high - low + 1
    starts = np.cumsum(n_bins) - n_bins
    row = np.repeat(np.arange(len(low)), n_bins)
    key = counted_up(low, n_bins)
    numbers_upto = _n_below(part.where(row), _edges(key + 1, shift))
    numbers = np.diff(numbers_upto, prepend=numbers_upto[:1])
    numbers[starts] = numbers_upto[starts]
    counts += np.bincount(key - lowest, numbers * part.weight[row], minlength=len(counts))


def _pieces(rows: Ints, n_bins: Ints) -> Iterable[Ints]:
    """Yield the rows in pieces of about as many bins as there are rows in a piece."""
    piece = np.cumsum(n_bins) // scratch.PIECE_ROWS
    return np.split(rows, np.flatnonzero(np.diff(piece)) + 1) if len(rows) else []


def _n_below(part: Progressions, limit: Any) -> Ints:
    """Return how many numbers of each row are less than the limit."""
    growth = np.maximum(part.growth, 1)  # a constant row is below entirely or not at all
    n = -((part.first - limit) // growth)  # rounded up
    grown = np.where(part.growth == 0, part.n, np.minimum(n, part.n))
    return np.where(part.first >= limit, 0, grown)


def _written_out(parts: Sequence[Progressions], ranks: list[int]) -> dict[int, int]:
    """Return order statistics by expanding and sorting all numbers."""
    values: list[Ints] = []
    weights: list[Ints] = []
    for part in parts:
        row = np.repeat(np.arange(len(part.n)), part.n)
        place = counted_up(0, part.n)
        values.append(part.first[row] + place * part.growth[row])
        weights.append(part.weight[row])
    value = np.concatenate(values)
    order = np.argsort(value)
    ends = np.cumsum(np.concatenate(weights)[order])
    return dict(zip(ranks, value[order][np.searchsorted(ends, ranks, side="right")].tolist(), strict=True))
