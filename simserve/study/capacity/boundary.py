"""Boundary: where a search for the highest load ended, and between which loads the queue begins to grow without end.

Each seed saturates beyond a load of its own, and the answer is the median of these. Whatever their distribution, its
confidence interval ends at two of their order statistics (Conover, Practical Nonparametric Statistics, section 3.2);
loads further out run until enough seeds are on either side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from simserve.metrics.margin import MOST_FREE
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import Estimate, median_rank

CLOSE = 0.02
"""Log ratio of two loads below which the answer is interpolated linearly; the interpolation error is much smaller."""


@dataclass(frozen=True)
class SearchAxis:
    """A range of loads, continuous or of whole numbers."""

    start: float
    least: float
    most: float
    is_whole: bool = False

    def up(self, load: float, factor: float) -> float:
        """Return the load times a factor, at most `most`."""
        return min(self.most, max(self.nearest(load * factor), load + 1) if self.is_whole else load * factor)

    def down(self, load: float, factor: float) -> float:
        """Return the load divided by a factor, at least `least`."""
        return max(self.least, min(self.nearest(load / factor), load - 1) if self.is_whole else load / factor)

    def is_close(self, below: float, above: float, width: float = CLOSE) -> bool:
        """Return whether no load worth running lies between two."""
        return math.log(above / below) <= width or (self.is_whole and above - below <= 1)

    def between(self, below: float, above: float, share: float) -> float:
        """Return the load at a share of the way between two, on a log scale; never one of the ends."""
        load = below * (above / below) ** share
        return min(max(self.nearest(load), below + 1), above - 1) if self.is_whole else load

    def nearest(self, load: float) -> float:
        """Return the load, rounded on an axis of whole numbers."""
        return float(round(load)) if self.is_whole else load


FIRST_SEEDS = 8

LEAST_MISSES = 10
"""Misses that the goal must allow over all seeds: an answer that depends on fewer requests is a guess."""


@dataclass(frozen=True)
class Boundary:
    """The load at which r crosses 1."""

    load: Estimate
    below: LoadPoint
    above: LoadPoint
    """`below` meets the goal with the first seeds, `above` does not."""
    at: LoadPoint
    """The nearest load, with all seeds that the answer rests on."""
    n_free: int = MOST_FREE
    """Degrees of freedom of the interval."""
    state: ClassVar[str] = "found"

    @property
    def ends(self) -> tuple[LoadPoint, ...]:
        """Loads on both sides; the last meets the goal."""
        return self.above, self.below

    @property
    def half_frac(self) -> float:
        """Half-width of the interval as a share of the answer; NaN where it is unknown."""
        return (self.load.high - self.load.low) / 2 / self.load.value

    @property
    def offered_per_s(self) -> Estimate:
        """Nominal requests/s, interpolated between the two loads: some arrivals may not scale with the load."""
        n = min(len(self.below.runs), len(self.above.runs))
        low, high = self.below.first(n), self.above.first(n)
        share = math.log(self.load.value / low.scale) / math.log(high.scale / low.scale)
        value = low.offered_per_s * (high.offered_per_s / low.offered_per_s) ** share
        return Estimate(*(end / self.load.value * value for end in (self.load.value, self.load.low, self.load.high)))


@dataclass(frozen=True)
class Unbounded:
    """Instead of a boundary: every load meets the goal, or none does."""

    last: LoadPoint
    """The highest load, or the lowest."""
    is_met: bool
    """Whether every load meets the goal."""

    @property
    def state(self) -> str:
        """Where the search ended."""
        return "every load" if self.is_met else "no load"

    @property
    def ends(self) -> tuple[LoadPoint, ...]:
        """The last load."""
        return (self.last,)


MOST_STEPS = 6
"""Steps outward, each the square of the one before: up to four times the load."""

At = Callable[[float], LoadPoint | None]
"""Runs a load with all seeds; None where a seed has no arrivals."""


def saturation_ends(below: LoadPoint, above: LoadPoint, axis: SearchAxis, at: At) -> tuple[float, float]:
    """Return the CONFIDENCE interval of the median load at which seeds saturate; NaN where it is unknown."""
    n = len(below.runs)
    rank = median_rank(n)
    if rank is None:
        return math.nan, math.nan
    low = _first(below, axis, at, lambda point: point.n_saturated < rank, axis.down)
    high = _first(above, axis, at, lambda point: point.n_saturated > n - rank, axis.up)
    return (math.nan, math.nan) if low is None or high is None else (low, high)


def _first(
    start: LoadPoint,
    axis: SearchAxis,
    at: At,
    is_beyond: Callable[[LoadPoint], bool],
    step: Callable[[float, float], float],
) -> float | None:
    """Return the nearest load that is beyond, within a tolerance: growing steps, then bisection."""
    near = far = start
    factor = 1 + CLOSE
    for _ in range(MOST_STEPS):
        if is_beyond(far):
            break
        farther = at(step(far.scale, factor))
        if farther is None:
            return None
        near, far, factor = far, farther, factor**2
    if not is_beyond(far):
        return None
    width = max(CLOSE, abs(math.log(far.scale / start.scale)) / 4)
    while True:
        lower, upper = sorted((near.scale, far.scale))
        middle = None if axis.is_close(lower, upper, width) else at(axis.between(lower, upper, 0.5))
        if middle is None:
            return far.scale
        near, far = (near, middle) if is_beyond(middle) else (middle, far)
