"""Search: the highest load that meets the goal, by a search with common random numbers.

All loads run with the same seeds, and each seed maps its draws to every load, so r, the quantile of latency / limit at
the goal, rises smoothly with the load. The answer is the load at which it is 1; its interval is the noise of log r over
its slope.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.errors import EndOfLoads
from simserve.metrics.goal import CAP
from simserve.metrics.margin import MOST_FREE, Margin
from simserve.study.capacity.boundary import (
    CLOSE,
    FIRST_SEEDS,
    LEAST_MISSES,
    Boundary,
    SearchAxis,
    Unbounded,
    saturation_ends,
)
from simserve.study.capacity.point import EVERYTHING, Criterion, LoadPoint
from simserve.study.capacity.question import ProbedLoads
from simserve.study.intervals import Estimate, around

MOST_PROBES = 40
MOST_ROUNDS = 4
"""Times that further seeds are added, or the nearest load moves, at most."""

GLANCE, HOPELESS = 2, math.log(4)
"""Seeds of a load that are enough where log r is so high, or the queue only grows."""

REACH = 0.1
"""Distance from the answer, as a logarithm, over which the slope of log r is taken."""

NEAR = 0.04
"""Distance, as a logarithm, from a load that ran, up to which the slope of log r gives the answer."""

LEAST_SLOPE = 0.5
"""Least rise of log r with the logarithm of the load; in an idle cluster latencies hardly depend on it."""


@dataclass(frozen=True)
class Goal:
    """The share of requests that must meet a criterion, and the precision of the answer."""

    frac: float
    precision_frac: float = math.inf
    criterion: Criterion = EVERYTHING


class Search:
    """Finds the highest load that meets a goal."""

    def __init__(self, probed: ProbedLoads, axis: SearchAxis, goal: Goal) -> None:
        self._probed = probed
        self._axis = axis
        self._goal = goal
        self._n_seeds = FIRST_SEEDS
        self._margins: dict[tuple[float, int], Margin] = {}

    def highest(self, peaks: Sequence[int] = ()) -> Boundary | Unbounded:
        """Bracket, close in, and add seeds until the interval is narrow enough.

        peaks: loads that must meet the goal if higher ones are to count, as steps there are longer than with more
        requests; a search may pass them by.
        """
        bracket = self.bracket(self._axis.start, 2.0)
        while not isinstance(bracket, Unbounded):
            boundary = self.close_in(*bracket)
            if (peak := self._failing(peaks, boundary.below)) is not None:
                bracket, peaks = self._below(peak), ()
                continue
            wanted = self._seeds_wanted(boundary)
            if wanted <= self._n_seeds:
                return boundary
            self._n_seeds = wanted
            try:
                if not boundary.above.is_saturated:
                    return self._with_all_seeds(boundary)
                bracket = self._again(boundary)
            except EndOfLoads:  # with one of the added seeds
                return boundary
        return bracket

    def _failing(self, peaks: Sequence[int], below: LoadPoint) -> LoadPoint | None:
        """Return the first of these loads that does not meet the goal, though a higher one does."""
        points = (self._at(load) for load in peaks if load < below.scale)
        return next((point for point in points if not self.is_met(point)), None)

    def _below(self, above: LoadPoint) -> tuple[LoadPoint, LoadPoint] | Unbounded:
        """Return the bracket under a load that does not meet the goal."""
        lower = self._at(self._axis.down(above.scale, 1 + CLOSE))
        return (lower, above) if self.is_met(lower) else self.bracket(lower.scale, 2.0)

    def bracket(self, start: float, factor: float) -> tuple[LoadPoint, LoadPoint] | Unbounded:
        """Return a load that meets the goal and the next that does not, at most a factor apart. Loads too light for any
        arrival, or too heavy to run, end the axis; steps shorten as they come near."""
        point = self._at(start)
        is_up = self.is_met(point)
        step = self._axis.up if is_up else self._axis.down
        while (load := step(point.scale, factor)) != point.scale:
            other = self._glance(load)
            if other is None and factor <= 1 + CLOSE:
                break
            if other is None:
                factor = math.sqrt(factor)
                continue
            if self.is_met(other) != is_up:
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
            below, above = (middle, above) if self.is_met(middle) else (below, middle)
        below, above = self._at(below.scale), self._at(above.scale)  # a glance may have been enough so far
        return self._boundary(below, above, min(below, above, key=lambda point: abs(self._log_r(point))))

    def is_met(self, point: LoadPoint) -> bool:
        """Return whether a load's estimate meets the goal, whatever its interval."""
        return self._log_r(point) <= 0 and not point.is_saturated

    def _at(self, load: float) -> LoadPoint:
        return self._probed.at(load, self._n_seeds)

    def _glance(self, load: float) -> LoadPoint | None:
        """Return a load with as many seeds as tell whether it meets the goal; None where it cannot run."""
        point = self._probed.if_any(load, GLANCE)
        is_hopeless = point is not None and (point.is_saturated or self._log_r(point) > HOPELESS)
        return point if is_hopeless else self._probed.if_any(load, self._n_seeds)

    def _margin(self, point: LoadPoint) -> Margin:
        """Return where log r of a load lies; as high as it can be where no request counts."""
        key = point.scale, len(point.runs)
        if key not in self._margins:
            known = point.margin(self._goal.frac, self._goal.criterion)
            self._margins[key] = known or Margin(math.log(CAP), 0.0, MOST_FREE)
        return self._margins[key]

    def _log_r(self, point: LoadPoint) -> float:
        return self._margin(point).log_r

    def _seeds_wanted(self, boundary: Boundary) -> int:
        """Return the seeds that make the interval narrow enough, as 1/sqrt(n); at most four times as many at once."""
        factor = (boundary.half_frac / self._goal.precision_frac) ** 2
        if math.isnan(factor) and math.isfinite(self._goal.precision_frac):
            factor = math.inf
        if self._axis.is_whole and boundary.load.high - boundary.load.low <= 1:
            factor = 0.0  # the whole number is known
        wanted = math.ceil(self._n_seeds * min(4.0, 1.1 * factor)) if factor > 1 else self._n_seeds
        if math.isfinite(self._goal.precision_frac):
            at = boundary.at.outcomes_of(self._goal.criterion)
            n_arrived = sum(each.n_arrived for each in at) / len(at)
            wanted = max(wanted, math.ceil(LEAST_MISSES / (1 - self._goal.frac) / max(n_arrived, 1) - 1e-9))
        return min(self._probed.question.most_seeds, wanted)

    def _again(self, boundary: Boundary) -> tuple[LoadPoint, LoadPoint] | Unbounded:
        """Return the bracket rerun with more seeds, moved where the answer now lies beyond it."""
        below, above = self._at(boundary.below.scale), self._at(boundary.above.scale)
        while not self.is_met(below):
            lower = self._axis.down(below.scale, 1 + CLOSE)
            if lower == below.scale:
                return Unbounded(below, is_met=False)
            below, above = self._at(lower), below
        while self.is_met(above):
            higher = self._axis.up(above.scale, 1 + CLOSE)
            if higher == above.scale:
                return Unbounded(above, is_met=True)
            below, above = above, self._at(higher)
        return below, above

    def _with_all_seeds(self, boundary: Boundary) -> Boundary:
        """Return the answer with further seeds of the nearest load alone, as many as make it precise."""
        for _ in range(MOST_ROUNDS):
            at = self._at(self._axis.nearest(boundary.load.value) if self._is_far(boundary) else boundary.at.scale)
            boundary = self._boundary(boundary.below, boundary.above, at)
            wanted = self._seeds_wanted(boundary)
            if wanted <= self._n_seeds and not self._is_far(boundary):
                break
            self._n_seeds = wanted
        return boundary

    def _is_far(self, boundary: Boundary) -> bool:
        """Return whether the answer is so far from its nearest load that the slope between them matters."""
        away = abs(math.log(boundary.load.value / boundary.at.scale))
        return away > NEAR and self._axis.nearest(boundary.load.value) != boundary.at.scale

    def _boundary(self, below: LoadPoint, above: LoadPoint, at: LoadPoint) -> Boundary:
        """Return the load at which r is 1, from the nearest load and the slope of log r, with its interval by noise."""
        if above.is_saturated:  # its r depends on the length of the runs
            value, ends = math.sqrt(below.scale * above.scale), (math.nan, math.nan)
            if len(below.runs) > 1:
                ends = saturation_ends(below, above, self._axis, lambda load: self._probed.if_any(load, self._n_seeds))
            return Boundary(Estimate(value, *ends), below, above, below)
        margin, log_load = self._margin(at), math.log(at.scale)
        slope = self._slope(log_load, below, above)
        if len(at.runs) > FIRST_SEEDS:
            value = log_load - margin.log_r / slope
        else:
            value = math.log(below.scale) + self._share_of_way(below, above) * math.log(above.scale / below.scale)
        if len(at.runs) == 1:  # every seed gives the same run
            return Boundary(Estimate(math.exp(value), math.nan, math.nan), below, above, at)
        log_ends = around(value, margin.noise_sd / slope, margin.n_free)
        load = Estimate(*(math.exp(end) for end in (log_ends.value, log_ends.low, log_ends.high)))
        return Boundary(load, below, above, at, margin.n_free)

    def _slope(self, root: float, below: LoadPoint, above: LoadPoint) -> float:
        """Return how log r rises with the logarithm of the load about the answer, over loads further apart than its own
        two: r rises in steps between close loads, and a search ends at a steep one."""
        points = [
            point.first(FIRST_SEEDS)
            for point in self._probed.points
            if len(point.runs) >= min(FIRST_SEEDS, len(below.runs))
        ]
        known = [point for point in points if not point.is_saturated]
        if len(known) < 2:
            known = [below, above]
        loads = np.log([point.scale for point in known])
        log_r = np.maximum.accumulate([self._log_r(point) for point in known])
        low, high = np.clip([root - REACH, root + REACH], loads[0], loads[-1])
        rise = np.interp([low, high], loads, log_r)
        return max(float(rise[1] - rise[0]) / float(high - low), LEAST_SLOPE) if high > low else LEAST_SLOPE

    def _share_of_way(self, below: LoadPoint, above: LoadPoint) -> float:
        """Locate the goal between two loads, from 0 to 1, on a line through log r."""
        if above.is_saturated:
            return 0.5
        low, high = self._log_r(below), self._log_r(above)
        return -low / (high - low) if high > low else 0.5
