"""Boundary: the highest load that meets the goal, by a search with common random numbers.

All loads run with the same seeds, and each seed maps its draws to every load, so attainment falls smoothly as the load
rises. Attainment is estimated at the nominal load; the interval is the sampling noise between seeds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simserve.errors import EndOfLoads
from simserve.metrics.answer import pooled_frac
from simserve.study.capacity.axis import CLOSE, SearchAxis
from simserve.study.capacity.point import EVERYTHING, Criterion, LoadPoint
from simserve.study.capacity.probed_loads import ProbedLoads
from simserve.study.capacity.saturation import saturation_ends
from simserve.study.intervals import Estimate, around, standard_error
from simserve.study.slo_answer import at_nominal

FIRST_SEEDS = 8
MOST_PROBES = 40

WING, NEAR_WING, WIDE_WING = 1.1, 1.05, 1.25
"""Distances from the answer, as factors, of the loads that give the slope of attainment: target, nearest, widest."""

LEAST_STEEPNESS = 1.0
"""Lower bound of the slope: misses that rise no faster than the load hardly depend on it."""

LEAST_MISSES = 10
"""Misses that the goal must allow over all seeds: an answer that depends on fewer requests is a guess."""


@dataclass(frozen=True)
class Boundary:
    """The load at which attainment crosses the goal."""

    load: Estimate
    below: LoadPoint
    above: LoadPoint
    """`below` meets the goal, `above` does not."""
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
        low, high = self.below, self.above
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


@dataclass(frozen=True)
class Goal:
    """The share of requests that must meet a criterion, and the precision of the answer."""

    frac: float
    precision_frac: float = math.inf
    criterion: Criterion = EVERYTHING

    def is_met(self, point: LoadPoint) -> bool:
        """Return whether a load's estimate meets the goal, whatever its interval."""
        return point.share_of(self.criterion) >= self.frac and not point.is_saturated


class Search:
    """Finds the highest load that meets a goal."""

    def __init__(self, probed: ProbedLoads, axis: SearchAxis, goal: Goal) -> None:
        self._probed = probed
        self._axis = axis
        self._goal = goal
        self._n_seeds = FIRST_SEEDS

    def highest(self) -> Boundary | Unbounded:
        """Bracket, close in, and add seeds until the interval is narrow enough."""
        bracket = self.bracket(self._axis.start, 2.0)
        while not isinstance(bracket, Unbounded):
            boundary = self.close_in(*bracket)
            wanted = self._seeds_wanted(boundary)
            if wanted <= self._n_seeds:
                return boundary
            self._n_seeds = wanted
            try:
                bracket = self._again(boundary)
            except EndOfLoads:  # with one of the added seeds
                return boundary
        return bracket

    def bracket(self, start: float, factor: float) -> tuple[LoadPoint, LoadPoint] | Unbounded:
        """Return a load that meets the goal and the next that does not, at most a factor apart.

        Loads too light for any arrival, or too heavy to run, end the axis; steps shorten as they come near.
        """
        point = self._at(start)
        is_up = self._goal.is_met(point)
        step = self._axis.up if is_up else self._axis.down
        while (load := step(point.scale, factor)) != point.scale:
            other = self._probed.if_any(load, self._n_seeds)
            if other is None and factor <= 1 + CLOSE:
                break
            if other is None:
                factor = math.sqrt(factor)
                continue
            if self._goal.is_met(other) != is_up:
                return (point, other) if is_up else (other, point)
            point = other
        return Unbounded(point, is_up)

    def close_in(self, below: LoadPoint, above: LoadPoint, width: float = CLOSE) -> Boundary:
        """Narrow the bracket by linear interpolation, kept off both ends, until its loads are close."""
        for _ in range(MOST_PROBES):
            if self._axis.is_close(below.scale, above.scale, width):
                break
            share = self._share_of_way(below, above)
            # Just beyond the interpolated load, away from the nearer end, so that the bracket shrinks.
            beyond = 0.4 * width / math.log(above.scale / below.scale)
            step = share + (beyond if share < 0.5 else -beyond)
            middle = self._at(self._axis.between(below.scale, above.scale, min(max(step, 0.1), 0.9)))
            below, above = (middle, above) if self._goal.is_met(middle) else (below, middle)
        return Boundary(self._root(below, above), below, above)

    def _at(self, load: float) -> LoadPoint:
        return self._probed.at(load, self._n_seeds)

    def _seeds_wanted(self, boundary: Boundary) -> int:
        """Return the seeds that make the interval narrow enough, as 1/sqrt(n); at most four times as many at once."""
        factor = (boundary.half_frac / self._goal.precision_frac) ** 2
        if math.isnan(factor) and math.isfinite(self._goal.precision_frac):
            factor = math.inf
        if self._axis.is_whole and boundary.load.high - boundary.load.low <= 1:
            factor = 0.0  # the whole number is known
        wanted = math.ceil(self._n_seeds * min(4.0, 1.1 * factor)) if factor > 1 else self._n_seeds
        if math.isfinite(self._goal.precision_frac):
            below = boundary.below.outcomes_of(self._goal.criterion)
            n_arrived = sum(each.n_arrived for each in below) / len(below)
            wanted = max(wanted, math.ceil(LEAST_MISSES / (1 - self._goal.frac) / max(n_arrived, 1) - 1e-9))
        return min(self._probed.question.most_seeds, wanted)

    def _again(self, boundary: Boundary) -> tuple[LoadPoint, LoadPoint] | Unbounded:
        """Return the bracket rerun with more seeds, moved where the answer now lies beyond it."""
        below, above = self._at(boundary.below.scale), self._at(boundary.above.scale)
        while not self._goal.is_met(below):
            lower = self._axis.down(below.scale, 1 + CLOSE)
            if lower == below.scale:
                return Unbounded(below, is_met=False)
            below, above = self._at(lower), below
        while self._goal.is_met(above):
            higher = self._axis.up(above.scale, 1 + CLOSE)
            if higher == above.scale:
                return Unbounded(above, is_met=True)
            below, above = above, self._at(higher)
        return below, above

    def _root(self, below: LoadPoint, above: LoadPoint) -> Estimate:
        """Return the load at which attainment crosses the goal, interpolated in logs, with its jackknife interval."""
        share, width = self._share_of_way(below, above), math.log(above.scale / below.scale)
        value = math.log(below.scale) + width * share
        if len(below.runs) == 1:  # every seed gives the same run
            return Estimate(math.exp(value), math.nan, math.nan)
        if above.is_saturated:  # its attainment depends on the length of the runs
            ends = saturation_ends(below, above, self._axis, lambda load: self._probed.if_any(load, self._n_seeds))
            return Estimate(math.exp(value), *ends)
        n = len(below.runs)
        without = [
            (1 - share) * self._missed(below, left_out) + share * self._missed(above, left_out) for left_out in range(n)
        ]
        error = standard_error(np.array(without)) / self._steepness(math.exp(value), below, above)
        log_load = around(value, error, n - 1)
        return Estimate(*(math.exp(end) for end in (log_load.value, log_load.low, log_load.high)))

    def _steepness(self, root: float, below: LoadPoint, above: LoadPoint) -> float:
        """Return the slope of the logit of the missed share over the log of the load, around the answer.

        Uses loads about 10% away: attainment falls in steps between close loads, and a search ends at a steep step, so
        its own two loads would make the interval too narrow.
        """
        low = self._wing(self._axis.down(root, WING), 1 / WIDE_WING, 1 / NEAR_WING, root) or below
        high = self._wing(self._axis.up(root, WING), NEAR_WING, WIDE_WING, root) or above
        if high.is_saturated or high.scale <= above.scale:
            high = above
        low = low if low.scale < below.scale else below
        rise = self._missed(high, None) - self._missed(low, None)
        return max(rise / math.log(high.scale / low.scale), LEAST_STEEPNESS)

    def _wing(self, wanted: float, least: float, most: float, root: float) -> LoadPoint | None:
        """Return a load of the search about as far away, else run this one; None at the root or without arrivals."""
        for point in self._probed.points:
            if least <= point.scale / root <= most:
                return point.first(FIRST_SEEDS)
        wanted = self._axis.nearest(wanted)
        return self._probed.if_any(wanted, FIRST_SEEDS) if wanted != root else None

    def _share_of_way(self, below: LoadPoint, above: LoadPoint) -> float:
        """Locate the goal between two loads, from 0 to 1, on a line through the logits of the missed shares."""
        if above.is_saturated:
            return 0.5
        goal = _logit(1 - self._goal.frac)
        near, far = (self._missed(point, None) - goal for point in (below, above))
        return near / (near - far) if near != far else 0.5

    def _missed(self, point: LoadPoint, left_out: int | None) -> float:
        """Return the logit of the missed share; adding half a request to both sides keeps it finite.

        Over all runs it is the share at the nominal load. With one run left out it is the share at the drawn load, so
        that the jackknife keeps the whole variance between windows.
        """
        runs = point.outcomes_of(self._goal.criterion)
        kept = [run for place, run in enumerate(runs) if place != left_out]
        n_arrived = sum(run.n_arrived for run in kept)
        frac = at_nominal(kept).value if left_out is None else pooled_frac(kept)
        return _logit(((1 - frac) * n_arrived + 0.5) / (n_arrived + 1))


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
