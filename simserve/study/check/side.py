"""Side: one of the two sides of a comparison by load, run at the loads that its goal lies between."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from simserve.errors import NoArrivals
from simserve.metrics.figures import Summary
from simserve.metrics.tails import Sample, pooled
from simserve.scenario import Scenario
from simserve.study.capacity.drawn_loads import RatioCurve
from simserve.study.capacity.point import LoadPoint
from simserve.study.check.gate import AttainmentCurve
from simserve.study.check.load_facts import READ
from simserve.study.fleet import at_scale
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run

RATIO = 1.08
"""Ratio of neighboring loads."""

STEEP = 3.0
"""Logits of misses between two loads above which a line would err, so that nearer loads are run."""

FINEST = 1.005

WIDEST = 64.0
"""Limit of a load, as a multiple or a fraction of the first."""

FEW_SEEDS = 8
"""Seeds to see about where the goal lies."""

COUNTS = ("n_met", "n_arrived")


@dataclass(frozen=True)
class Grid:
    """Scales of the loads at which both sides run: two that the goal lies between, and others at the same ratio."""

    below: float
    above: float

    @classmethod
    def around(cls, scale: float, ratio: float) -> "Grid":
        """Return a grid with its first two loads below and above that scale."""
        return cls(*(_short(scale * ratio**way) for way in (-0.5, 0.5)))

    def scale(self, place: int) -> float:
        """Return the scale of a place: 0 and 1 are those two; 2 is above them, -1 below."""
        if place in (0, 1):
            return (self.below, self.above)[place]
        return _short(self.below * (self.above / self.below) ** place)

    def at(self, place: int) -> "Grid":
        """Return the grid that begins with that place and the next."""
        return self if place == 0 else Grid(self.scale(place), self.scale(place + 1))


@dataclass(frozen=True)
class Boundless:
    """Instead of a curve: the goal is met at every load that was run, or at none."""

    is_met: bool
    scale: float
    """The last load."""


class GateSide:
    """A scenario and its runs, which are kept, so that more seeds or loads only add to them."""

    def __init__(self, scenario: Scenario, goal_frac: float, n_few: int = FEW_SEEDS) -> None:
        self.scenario = scenario
        self.goal_frac = goal_frac
        self.n_few = n_few
        self._runs: dict[float, list[Summary]] = {}
        self._samples: dict[float, list[Sample]] = {}
        """The first n_few runs as a decision sees them; more would fill the memory."""

    def runs(self, scale: float, n_seeds: int) -> list[Summary]:
        """Return runs at one load, with the seeds from the scenario's own upwards."""
        done = self._runs.setdefault(scale, [])
        seeds = range(self.scenario.seed + len(done), self.scenario.seed + n_seeds)
        if seeds:
            enter(f"{scale:.3g} times the load")
            runs = each_run(partial(Run.of, keys=READ), [at_scale(self.scenario, scale)], seeds)[0]
            done += [summary for summary, _ in runs]
            samples = self._samples.setdefault(scale, [])
            samples += [sample for _, sample in runs[: max(0, self.n_few - len(samples))]]
        return done[:n_seeds]

    def ratio_curve(self, n_draws: int) -> RatioCurve | None:
        """Return r against the load, by the first n_few runs of each that has them; None where there are too few."""
        points = [
            LoadPoint(scale, tuple(self._runs[scale][: self.n_few]), tuple(samples))
            for scale, samples in sorted(self._samples.items())
            if len(samples) == self.n_few
        ]
        return RatioCurve.of(points, self.goal_frac, n_draws)

    def first_limit(self, scale: float) -> str | None:
        """Return the limit that fails first in the first n_few runs at a load; None where no request missed any. It is
        the one that `run` names there: with the largest quantile of its own ratio, in the class that decides."""
        self.runs(scale, self.n_few)
        whole = pooled(self._samples[scale])
        if not any(tail.n_missed for tail in whole.tails.values()):
            return None
        return whole.decisive(self.goal_frac)[1].first_limit(self.goal_frac)

    def curve(self, grid: Grid, n_seeds: int, like: AttainmentCurve | None = None) -> AttainmentCurve | Boundless:
        """Return the curve at two neighboring loads of the grid that show where the goal lies. A curve that is `like`
        another at the first two loads is read off those, wherever the goal lies with few seeds."""
        if like is not None or not self._curve(grid, self.n_few).is_far(self.goal_frac):
            first = self._curve(grid, n_seeds)
            if first.reaches(self.goal_frac) or (like is not None and first.is_like(like)):
                return first
        place = self._locate(grid)
        if isinstance(place, Boundless):
            return place
        try:
            while self._holds(grid.scale(place + 1), n_seeds):
                place += 1
            while not self._holds(grid.scale(place), n_seeds):
                place -= 1
            return self._curve(grid.at(place), n_seeds)
        except NoArrivals:  # with one of the further seeds: too light a load to tell more of
            return Boundless(is_met=False, scale=grid.scale(place + 1))

    def find_grid(self) -> Grid | Boundless:
        """Return loads about where the goal lies, so near each other that a line between two of them serves."""
        ratio, anchor = RATIO, 1.0
        while True:
            grid = Grid.around(anchor, ratio)
            place = self._locate(grid)
            if isinstance(place, Boundless):
                return place
            rough = self._curve(grid.at(place), self.n_few)
            anchor = math.exp(rough.log_root(self.goal_frac))
            if rough.rise() <= STEEP or ratio <= FINEST:
                return Grid.around(anchor, ratio)
            ratio = max(FINEST, math.sqrt(ratio))

    def _locate(self, grid: Grid) -> int | Boundless:
        """Return, by few seeds, a place that holds while the next does not: by ever larger steps, then halves. Loads so
        light that no request arrives end the grid, and steps shorten as they come near."""
        place, is_met = 0, self._holds(grid.scale(0), self.n_few)
        other = step = 1 if is_met else -1
        while (holds := self._holds_if_any(grid.scale(other))) in (is_met, None):
            if holds is None and abs(step) == 1:
                return Boundless(is_met, grid.scale(place))
            if holds is None:
                step = -(-step // 2)
                other = place + step
                continue
            if abs(math.log(grid.scale(other) / grid.below)) > math.log(WIDEST):
                return Boundless(is_met, grid.scale(other))
            place, step = other, step * 2
            other = place + step
        below, above = min(place, other), max(place, other)
        while above - below > 1:
            middle = (below + above) // 2
            if self._holds(grid.scale(middle), self.n_few):
                below = middle
            else:
                above = middle
        return below

    def _holds_if_any(self, scale: float) -> bool | None:
        """Return whether the goal is met by few seeds; None where no request arrives with one of them."""
        try:
            return self._holds(scale, self.n_few)
        except NoArrivals:
            return None

    def _holds(self, scale: float, n_seeds: int) -> bool:
        n_met, n_arrived = (sum(run.attained.at(key) for run in self.runs(scale, n_seeds)) for key in COUNTS)
        return bool(n_arrived and n_met >= self.goal_frac * n_arrived)

    def _curve(self, grid: Grid, n_seeds: int) -> AttainmentCurve:
        scales = grid.below, grid.above
        runs = [self.runs(scale, n_seeds) for scale in scales]
        n_met, n_arrived = (np.array([[getattr(run.attained, key) for run in each] for each in runs]) for key in COUNTS)
        first = self.scenario.seed
        return AttainmentCurve(scales, n_met, n_arrived, tuple(range(first, first + n_seeds)))


def _short(scale: float) -> float:
    """Return four figures: the same load on every machine, whatever the last digit of its powers."""
    return float(f"{scale:.4g}")
