"""Capacity: the highest load at which a given share of requests meets every SLO; at 99 %, the p99 goodput."""

from dataclasses import dataclass

from simserve.study.capacity.axis import Axis
from simserve.study.capacity.boundary import Boundary, Goal, Search
from simserve.study.capacity.point import Point
from simserve.study.capacity.probed_loads import RunsAt, Told, Tried
from simserve.study.capacity.question import Question, check_slo
from simserve.study.intervals import Estimate
from simserve.study.load_scale import at_scale
from simserve.study.run_seeds import replicate

WIDEST = 2.0**10
"""No load so many times the scenario's own, or its own so many times, is tried."""

SCALES = Axis(1.0, 1 / WIDEST, WIDEST)
"""Of the scenario's own rates."""


@dataclass(frozen=True)
class Capacity:
    """The answer."""

    question: Question
    boundary: Boundary
    points: tuple[Point, ...]
    """All that were tried, by load."""

    @property
    def scale(self) -> Estimate:
        """Of the scenario's own rates."""
        return self.boundary.load

    @property
    def offered_per_s(self) -> Estimate:
        """The p99 goodput, where the goal is 99 %; requests a second offered, nearly all of which are good."""
        return self.boundary.offered_per_s

    @property
    def below(self) -> Point:
        """The last load that holds."""
        return self.boundary.below

    @property
    def above(self) -> Point:
        """The first load that does not."""
        return self.boundary.above

    @property
    def is_precise(self) -> bool:
        """The interval is as narrow as was asked for."""
        return self.boundary.half_frac <= self.question.precision_frac


@dataclass(frozen=True)
class Unbounded:
    """No answer: every load that was tried meets the SLOs, or none does."""

    question: Question
    last: Point
    """The highest load, or the lowest."""
    is_met: bool
    """Every load meets them."""
    points: tuple[Point, ...]
    """All that were tried, by load."""


def find_capacity(question: Question, told: Told | None = None) -> Capacity | Unbounded:
    """Search. Raises SimserveError where there is no SLO to hold a load to, or no rate to search over."""
    return search(question, runs_at_scale(question), told)


def runs_at_scale(question: Question) -> RunsAt:
    """What runs the scenario at so many times its rates. Raises SimserveError as `find_capacity` does."""
    check_slo(question.scenario)
    at_scale(question.scenario, 1.0)
    return lambda scale, seeds: replicate([at_scale(question.scenario, scale)], seeds)[0]


def search(question: Question, runs_at: RunsAt, told: Told | None = None) -> Capacity | Unbounded:
    """Likewise, whatever it is that runs."""
    return search_in(question, Tried(runs_at, question.scenario.seed, told, question.most_seeds))


def search_in(question: Question, tried: Tried, axis: Axis = SCALES) -> Capacity | Unbounded:
    """Likewise, among loads of which some may have been tried."""
    goal = Goal(question.goal_frac, question.precision_frac)
    found = Search(tried, axis, goal).highest()
    if isinstance(found, Point):
        return Unbounded(question, found, goal.is_met(found), tried.points)
    return Capacity(question, found, tried.points)
