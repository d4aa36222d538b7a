"""Surroundings: what lies around a capacity: how far each SLO and class alone would hold, and the curve of latency."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.study.capacity.axis import SearchAxis
from simserve.study.capacity.boundary import FIRST_SEEDS, Boundary, Goal, Search
from simserve.study.capacity.criterion import Criterion, parts_of
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.probed_loads import ProbedLoads
from simserve.study.capacity.rate import Capacity

GRID = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1)
"""Loads of the curve, as shares of the capacity: thin where little happens."""

NEAR_FRAC = 0.04
"""A load that was tried anyway stands for one of the grid that is so near."""

WIDEST_ROOM = 4.0
"""What holds at so many times the capacity is not followed further."""

STEP = 1.25
COARSE = 0.05
"""As CLOSE, for what is said beside the answer."""


@dataclass(frozen=True)
class SingleCriterion:
    """How far one SLO, or one class, would hold if nothing else mattered."""

    criterion: Criterion
    result: Boundary | LoadPoint
    """A point: it holds even there, the highest load that was looked at, or does not even there, the lowest."""
    is_met: bool
    """Of a point: it holds."""
    whole: Boundary | LoadPoint
    """The capacity as the same seeds have it: the room beyond it owes nothing to luck."""


@dataclass(frozen=True)
class LoadCurve:
    """What lies around a capacity."""

    alone: tuple[SingleCriterion, ...]
    curve: tuple[LoadPoint, ...]
    """By load, all with the same FIRST_SEEDS seeds."""


def look_around(result: Capacity, probed: ProbedLoads, axis: SearchAxis) -> LoadCurve:
    """A few more runs."""
    at = result.scale.value
    curve = _curve(at, probed, axis)
    parts = parts_of(result.question.scenario)
    if not parts:
        return LoadCurve((), curve)
    near = SearchAxis(at, max(axis.least, at / WIDEST_ROOM), min(axis.most, at * WIDEST_ROOM), axis.is_whole)
    frac = result.question.goal_frac
    whole = _highest(Goal(frac), probed, near)
    alone = []
    for each in parts:
        goal = Goal(frac, criterion=each)
        highest = _highest(goal, probed, near)
        is_met = isinstance(highest, LoadPoint) and goal.is_met(highest)
        alone.append(SingleCriterion(each, highest, is_met, whole))
    return LoadCurve(tuple(alone), curve)


def _curve(at: float, probed: ProbedLoads, axis: SearchAxis) -> tuple[LoadPoint, ...]:
    """The grid but for loads that nobody comes with, and whatever was tried between its ends."""
    for share in GRID:
        wanted = min(max(axis.nearest(at * share), axis.least), axis.most)
        if all(abs(point.scale / wanted - 1) > NEAR_FRAC for point in probed.points):
            probed.if_any(wanted, FIRST_SEEDS)
    low, high = GRID[0] * at * (1 - NEAR_FRAC), GRID[-1] * at * (1 + NEAR_FRAC)
    result = [point.first(FIRST_SEEDS) for point in probed.points if low <= point.scale <= high]
    return tuple(result)


def _highest(goal: Goal, probed: ProbedLoads, axis: SearchAxis) -> Boundary | LoadPoint:
    """From what was tried anyway with the first seeds, closed in on with a few runs more."""
    search = Search(probed, axis, goal)
    start = _last(probed, axis, goal.is_met)
    bracket = search.bracket(axis.start if start is None else start, STEP)
    if isinstance(bracket, LoadPoint):
        return bracket
    return search.close_in(*_tightened(*bracket, probed, goal), COARSE)


def _tightened(below: LoadPoint, above: LoadPoint, probed: ProbedLoads, goal: Goal) -> tuple[LoadPoint, LoadPoint]:
    """The nearest two of what was tried that have the answer between them."""
    for point in probed.points:
        if below.scale < point.scale < above.scale:
            first = point.first(FIRST_SEEDS)
            if not goal.is_met(first):
                return below, first
            below = first
    return below, above


def _last(probed: ProbedLoads, axis: SearchAxis, is_met: Callable[[LoadPoint], bool]) -> float | None:
    """The highest load that holds, of those that were tried, before the first that does not."""
    last = None
    for point in probed.points:
        if not is_met(point.first(FIRST_SEEDS)):
            break
        if axis.least <= point.scale <= axis.most:
            last = point.scale
    return last
