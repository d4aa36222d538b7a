"""Load curve: latency against load around a capacity, and the highest load for each SLO and class alone."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.study.capacity.axis import SearchAxis
from simserve.study.capacity.boundary import FIRST_SEEDS, Boundary, Goal, Search
from simserve.study.capacity.criterion import Criterion, single_criteria
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.probed_loads import ProbedLoads
from simserve.study.capacity.rate import Capacity

GRID = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1)
"""Loads of the curve, as shares of the capacity: sparse where latency is flat."""

NEAR_FRAC = 0.08
"""A load that already ran replaces one of the grid within this distance."""

WIDEST_ROOM = 4.0
"""Highest load for a single criterion, as a multiple of the capacity."""

STEP = 1.25
"""Factor between the loads of a search for a single criterion, where none that ran encloses the answer so closely."""

COARSE = 0.05
"""CLOSE for single criteria, which need less precision than the answer."""


@dataclass(frozen=True)
class SingleCriterion:
    """The highest load for one SLO or one class alone."""

    criterion: Criterion
    highest: Boundary | LoadPoint
    """A point: the highest load meets the criterion too, or the lowest does not."""
    is_met: bool
    """Whether a point meets the criterion."""
    whole: Boundary | LoadPoint
    """The capacity with the same seeds, so that the difference carries no sampling noise."""


@dataclass(frozen=True)
class LoadCurve:
    """Latency around a capacity, and each criterion alone."""

    single: tuple[SingleCriterion, ...]
    curve: tuple[LoadPoint, ...]
    """Loads in order, all with the same FIRST_SEEDS seeds."""


def load_curve(capacity: Capacity, probed: ProbedLoads, axis: SearchAxis) -> LoadCurve:
    """Run the loads around a capacity, and search for each criterion alone."""
    at = capacity.scale.value
    curve = _curve(at, probed, axis)
    criteria = single_criteria(capacity.question.scenario)
    if not criteria:
        return LoadCurve((), curve)
    near = SearchAxis(at, max(axis.least, at / WIDEST_ROOM), min(axis.most, at * WIDEST_ROOM), axis.is_whole)
    frac = capacity.question.goal_frac
    whole = _highest(Goal(frac), probed, near)
    single = []
    for each in criteria:
        goal = Goal(frac, criterion=each)
        highest = _highest(goal, probed, near)
        is_met = isinstance(highest, LoadPoint) and goal.is_met(highest)
        single.append(SingleCriterion(each, highest, is_met, whole))
    return LoadCurve(tuple(single), curve)


def _curve(at: float, probed: ProbedLoads, axis: SearchAxis) -> tuple[LoadPoint, ...]:
    """Return the loads of the grid that have arrivals, and all others that ran within its range."""
    for share in GRID:
        wanted = min(max(axis.nearest(at * share), axis.least), axis.most)
        if all(abs(point.scale / wanted - 1) > NEAR_FRAC for point in probed.points):
            probed.if_any(wanted, FIRST_SEEDS)
    low, high = GRID[0] * at * (1 - NEAR_FRAC), GRID[-1] * at * (1 + NEAR_FRAC)
    return tuple(point.first(FIRST_SEEDS) for point in probed.points if low <= point.scale <= high)


def _highest(goal: Goal, probed: ProbedLoads, axis: SearchAxis) -> Boundary | LoadPoint:
    """Return the highest load for a goal, from the loads that already ran with the first seeds and a few more."""
    search = Search(probed, axis, goal)
    start, beyond = _around(probed, axis, goal.is_met)
    if start is not None and beyond is not None and beyond.scale <= STEP * start.scale:
        return search.close_in(start, beyond, COARSE)
    bracket = search.bracket(axis.start if start is None else start.scale, STEP)
    return bracket if isinstance(bracket, LoadPoint) else search.close_in(*bracket, COARSE)


def _around(
    probed: ProbedLoads, axis: SearchAxis, is_met: Callable[[LoadPoint], bool]
) -> tuple[LoadPoint | None, LoadPoint | None]:
    """Return the highest load that ran and holds, and the first that does not."""
    last = None
    for point in probed.points:
        first = point.first(FIRST_SEEDS)
        if not is_met(first):
            return last, first
        if axis.least <= point.scale <= axis.most:
            last = first
    return last, None
