"""Capacity: the highest load at which a given share of requests meets every SLO; at 99%, the p99 goodput."""

from dataclasses import dataclass

from simserve.study.capacity.axis import SearchAxis
from simserve.study.capacity.boundary import Boundary, Goal, Search
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.probed_loads import OnProbe, ProbedLoads, RunsAt
from simserve.study.capacity.question import CapacityQuestion, check_slo
from simserve.study.intervals import Estimate
from simserve.study.load_scale import at_scale
from simserve.study.run_seeds import replicate

WIDEST = 2.0**10
"""No load so many times the scenario's own, or its own so many times, is tried."""

SCALES = SearchAxis(1.0, 1 / WIDEST, WIDEST)
"""Of the scenario's own rates."""


@dataclass(frozen=True)
class Capacity:
    """The answer."""

    question: CapacityQuestion
    boundary: Boundary
    points: tuple[LoadPoint, ...]
    """All that were tried, by load."""

    @property
    def scale(self) -> Estimate:
        """Of the scenario's own rates."""
        return self.boundary.load

    @property
    def offered_per_s(self) -> Estimate:
        """The p99 goodput, where the goal is 99%; requests a second offered, nearly all of which are good."""
        return self.boundary.offered_per_s

    @property
    def below(self) -> LoadPoint:
        """The last load that holds."""
        return self.boundary.below

    @property
    def above(self) -> LoadPoint:
        """The first load that does not."""
        return self.boundary.above

    @property
    def is_precise(self) -> bool:
        """The interval is as narrow as was asked for."""
        return self.boundary.half_frac <= self.question.precision_frac


@dataclass(frozen=True)
class Unbounded:
    """No answer: every load that was tried meets the SLOs, or none does."""

    question: CapacityQuestion
    last: LoadPoint
    """The highest load, or the lowest."""
    is_met: bool
    """Every load meets them."""
    points: tuple[LoadPoint, ...]
    """All that were tried, by load."""


def find_capacity(question: CapacityQuestion, progress: OnProbe | None = None) -> Capacity | Unbounded:
    """Search. Raises SimserveError where there is no SLO to hold a load to, or no rate to search over."""
    return search(question, runs_at_scale(question), progress)


def runs_at_scale(question: CapacityQuestion) -> RunsAt:
    """What runs the scenario at so many times its rates. Raises SimserveError as `find_capacity` does."""
    check_slo(question.scenario)
    at_scale(question.scenario, 1.0)
    return lambda scale, seeds: replicate([at_scale(question.scenario, scale)], seeds)[0]


def search(question: CapacityQuestion, runs_at: RunsAt, progress: OnProbe | None = None) -> Capacity | Unbounded:
    """Likewise, whatever it is that runs."""
    return search_in(question, ProbedLoads(runs_at, question.scenario.seed, progress, question.most_seeds))


def search_in(question: CapacityQuestion, probed: ProbedLoads, axis: SearchAxis = SCALES) -> Capacity | Unbounded:
    """Likewise, among loads of which some may have been tried."""
    goal = Goal(question.goal_frac, question.precision_frac)
    result = Search(probed, axis, goal).highest()
    if isinstance(result, LoadPoint):
        return Unbounded(question, result, goal.is_met(result), probed.points)
    return Capacity(question, result, probed.points)
