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
"""Largest factor between a load of the search and the scenario's own."""

SCALES = SearchAxis(1.0, 1 / WIDEST, WIDEST)
"""Multiples of the scenario's rates."""


@dataclass(frozen=True)
class Capacity:
    """The highest load, and the loads behind it."""

    question: CapacityQuestion
    boundary: Boundary
    points: tuple[LoadPoint, ...]
    """All that were tried, by load."""

    @property
    def scale(self) -> Estimate:
        """Multiple of the scenario's rates."""
        return self.boundary.load

    @property
    def offered_per_s(self) -> Estimate:
        """Offered requests/s; at a goal of 99%, the p99 goodput."""
        return self.boundary.offered_per_s

    @property
    def below(self) -> LoadPoint:
        """The highest load of the search that meets the goal."""
        return self.boundary.below

    @property
    def above(self) -> LoadPoint:
        """The lowest load of the search that does not."""
        return self.boundary.above

    @property
    def is_precise(self) -> bool:
        """Whether the interval is as narrow as the question wants."""
        return self.boundary.half_frac <= self.question.precision_frac


@dataclass(frozen=True)
class Unbounded:
    """A search without an answer: every load meets the goal, or none does."""

    question: CapacityQuestion
    last: LoadPoint
    """The highest load, or the lowest."""
    is_met: bool
    """Whether every load meets the goal."""
    points: tuple[LoadPoint, ...]
    """All that were tried, by load."""


def find_capacity(question: CapacityQuestion, progress: OnProbe | None = None) -> Capacity | Unbounded:
    """Return the highest rate. Raises SimserveError without an SLO, or without a rate to search over."""
    return search(question, runs_at_scale(question), progress)


def runs_at_scale(question: CapacityQuestion) -> RunsAt:
    """Return a function that runs the scenario at multiples of its rates. Raises as `find_capacity` does."""
    check_slo(question.scenario)
    at_scale(question.scenario, 1.0)
    return lambda scale, seeds: replicate([at_scale(question.scenario, scale)], seeds)[0]


def search(question: CapacityQuestion, runs_at: RunsAt, progress: OnProbe | None = None) -> Capacity | Unbounded:
    """Return the highest load of any function that runs one."""
    return search_in(question, ProbedLoads(runs_at, question.scenario.seed, progress, question.most_seeds))


def search_in(question: CapacityQuestion, probed: ProbedLoads, axis: SearchAxis = SCALES) -> Capacity | Unbounded:
    """Return the highest load of an axis, given loads that may already have run."""
    goal = Goal(question.goal_frac, question.precision_frac)
    highest = Search(probed, axis, goal).highest()
    if isinstance(highest, LoadPoint):
        return Unbounded(question, highest, goal.is_met(highest), probed.points)
    return Capacity(question, highest, probed.points)
