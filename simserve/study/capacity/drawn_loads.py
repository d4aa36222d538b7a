"""Drawn loads: the highest load of each draw of costs, on a seed that the predicted costs also ran."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simserve.errors import EndOfLoads
from simserve.metrics.cost_error import Pair, over_errors, pair_noise
from simserve.metrics.goal import CAP, LOOKS
from simserve.metrics.tails import Factors, Sample, log_of, pooled
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.search import LEAST_SLOPE
from simserve.study.drawn_costs import DrawnCosts
from simserve.tables.columns import Floats

MOST_ROUNDS = 4
"""Loads that each draw of costs runs at most."""

FURTHEST = math.log(1.5)
"""Longest step between two of them, as a logarithm."""

NEAR = 0.02
"""Step, as a logarithm, below which a draw's highest load is known well enough."""

LOG_CAP = math.log(CAP)


@dataclass(frozen=True)
class RatioCurve:
    """Log r against the logarithm of the load, by runs with predicted costs and the same seeds."""

    goal_frac: float
    loads: Floats
    """Logarithms, in order, `(n_loads,)`."""
    runs: Sequence[Sequence[Sample]]
    """Runs of each load."""
    is_full: Sequence[bool]
    """Whether the queue only grows."""

    @classmethod
    def of(cls, points: Sequence[LoadPoint], goal_frac: float, n_draws: int) -> "RatioCurve | None":
        """Return the curve of loads with samples; None where there are too few, or costs are not drawn."""
        n = min(LOOKS[0], max((len(point.samples) for point in points), default=0))
        known = [point for point in points if len(point.samples) >= n and all(sample.n for sample in point.samples)]
        if len(known) < 2 or not n_draws:
            return None
        runs = [point.samples[:n] for point in known]
        loads = np.log([point.scale for point in known])
        return cls(goal_frac, loads, runs, [point.is_saturated for point in known])

    @cached_property
    def log_r(self) -> Floats:
        """Log r of all runs of a load, rising with the load."""
        return self._rising([pooled(runs).r(self.goal_frac) for runs in self.runs])

    def _rising(self, r: Sequence[float]) -> Floats:
        logs = [LOG_CAP if full else log_of(each) for each, full in zip(r, self.is_full, strict=True)]
        rising: Floats = np.maximum.accumulate(logs)
        return rising

    def root(self, log_r: Floats) -> float:
        """Return the logarithm of the load at which log r is 0; beyond the loads that ran, no further than a step."""
        above = int(np.searchsorted(log_r, 0.0, side="right"))
        if above == 0:
            return float(self.loads[0])
        low = min(above, len(self.loads) - 1) - 1
        most = self.loads[low + 1] if above < len(self.loads) else self.loads[-1] + FURTHEST
        return float(min(self.loads[low] - log_r[low] / self._slope_of(log_r, low), most))

    def _slope_of(self, log_r: Floats, place: int) -> float:
        """Return how log r rises from a load to the next."""
        rise, width = log_r[place + 1] - log_r[place], self.loads[place + 1] - self.loads[place]
        return max(float(rise / width), LEAST_SLOPE)

    @cached_property
    def slope(self) -> float:
        """Rise of log r with the logarithm of the load, about the root."""
        at = self.root(self.log_r)
        low, high = np.interp([at - 0.1, at + 0.1], self.loads, self.log_r)
        return max(float(high - low) / 0.2, LEAST_SLOPE)

    @cached_property
    def _near(self) -> Sequence[Sample]:
        """Requests of each load that decide its r."""
        return [pooled(runs).beyond(self.goal_frac) for runs in self.runs]

    @property
    def limits(self) -> set[str]:
        """The goals of the SLOs."""
        return self._near[-1].limits

    def root_with(self, factors: Factors) -> float:
        """Return the root with latencies times factors."""
        return self.root(self._rising([sample.r(self.goal_frac, factors) for sample in self._near]))

    def server_errors(self, server_sd: Mapping[str, float]) -> Floats:
        """Return what errors of servers add to the logarithm of the highest load, at points of equal probability."""
        return over_errors(self.limits, server_sd, self.root_with)

    def cost_error(self, costs: DrawnCosts, start: float) -> tuple[float, int]:
        """Return the spread of the logarithm of draws' highest loads, less the noise of pairs, and its degrees of
        freedom."""
        roots, pairs = self.drawn_roots(costs, start)
        noise = pair_noise(list(pairs.values()), self.goal_frac) / self.slope**2
        return math.sqrt(max(float(roots.var(ddof=1)) - noise, 0.0)), len(roots) - 1

    def drawn_roots(self, costs: DrawnCosts, start: float) -> tuple[Floats, Mapping[int, Pair]]:
        """Return the logarithm of each draw's highest load, and pairs of runs at one load by draw. Each draw starts at
        a load that ran."""
        searches = [_Search(self, place, math.log(start)) for place in range(len(costs.draws))]
        pairs: dict[int, Pair] = {}
        first = int(np.argmin(np.abs(self.loads - math.log(start))))
        for _ in range(MOST_ROUNDS):
            wanted = {place: math.exp(each.root) for place, each in enumerate(searches) if not each.is_known}
            try:
                samples = costs.samples(wanted)
            except EndOfLoads:  # no request arrives in one of them
                break
            for place in wanted:
                searches[place].put(samples.get(place))
            if not pairs:
                pairs = {place: Pair(self._partner(first, place), drawn) for place, drawn in samples.items() if drawn.n}
        return np.array([each.root for each in searches]), pairs

    def _partner(self, place: int, draw: int) -> Sample:
        """Return the run of a load on the seed of a draw."""
        return self.runs[place][draw % len(self.runs[place])]

    def log_r_of(self, draw: int, at: float) -> float:
        """Return log r of predicted costs on the seed of a draw, on lines through the loads that ran."""
        own = self._rising([self._partner(place, draw).r(self.goal_frac) for place in range(len(self.loads))])
        beyond = max(at - float(self.loads[-1]), 0.0)
        return float(np.interp(at, self.loads, own)) + beyond * self._slope_of(own, len(own) - 2)


class _Search:
    """The highest load of one draw: as if its shift of log r were the same at all loads, within a bracket."""

    def __init__(self, curve: RatioCurve, draw: int, start: float) -> None:
        self.root = start
        """Its logarithm as far as it is known, which is the load to run next."""
        self.is_known = False
        self._curve = curve
        self._draw = draw
        self._below, self._above = -math.inf, math.inf

    def put(self, sample: Sample | None) -> None:
        """Take the run at `root`; None: no load so high can run."""
        if sample is None:
            self.is_known = True
            return
        at, curve = self.root, self._curve
        log_r = LOG_CAP if sample.queue == "growing" else log_of(sample.r(curve.goal_frac))
        shift = log_r - curve.log_r_of(self._draw, at)
        root = curve.root(curve.log_r + shift)
        self.is_known = abs(root - at) < NEAR
        if root > at:
            self._below = at
        else:
            self._above = at
        if not self.is_known and not self._below < root < self._above:
            root = (self._below + self._above) / 2
        self.root = min(max(root, at - FURTHEST, float(curve.loads[0])), at + FURTHEST)
