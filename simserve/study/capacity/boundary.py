"""Boundary: where a search for the highest load ended."""

import math
from dataclasses import dataclass
from typing import ClassVar

from simserve.metrics.margin import MOST_FREE
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import Estimate

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
