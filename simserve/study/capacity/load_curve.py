"""Surroundings: what lies around a capacity: how far each SLO and class alone would hold, and the curve of latency."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.study.capacity.axis import Axis
from simserve.study.capacity.boundary import FIRST_SEEDS, Boundary, Goal, Search
from simserve.study.capacity.criterion import Criterion, parts_of
from simserve.study.capacity.point import Point
from simserve.study.capacity.probed_loads import Tried
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
class Alone:
    """How far one SLO, or one class, would hold if nothing else mattered."""

    criterion: Criterion
    found: Boundary | Point
    """A point: it holds even there, the highest load that was looked at, or does not even there, the lowest."""
    is_met: bool
    """Of a point: it holds."""
    whole: Boundary | Point
    """The capacity as the same seeds have it: the room beyond it owes nothing to luck."""


@dataclass(frozen=True)
class Surroundings:
    """What lies around a capacity."""

    alone: tuple[Alone, ...]
    curve: tuple[Point, ...]
    """By load, all with the same FIRST_SEEDS seeds."""


def look_around(found: Capacity, tried: Tried, axis: Axis) -> Surroundings:
    """A few more runs."""
    at = found.scale.value
    curve = _curve(at, tried, axis)
    parts = parts_of(found.question.scenario)
    if not parts:
        return Surroundings((), curve)
    near = Axis(at, max(axis.least, at / WIDEST_ROOM), min(axis.most, at * WIDEST_ROOM), axis.is_whole)
    frac = found.question.goal_frac
    whole = _highest(Goal(frac), tried, near)
    alone = []
    for each in parts:
        goal = Goal(frac, criterion=each)
        highest = _highest(goal, tried, near)
        is_met = isinstance(highest, Point) and goal.is_met(highest)
        alone.append(Alone(each, highest, is_met, whole))
    return Surroundings(tuple(alone), curve)


def _curve(at: float, tried: Tried, axis: Axis) -> tuple[Point, ...]:
    """The grid but for loads that nobody comes with, and whatever was tried between its ends."""
    for share in GRID:
        wanted = min(max(axis.nearest(at * share), axis.least), axis.most)
        if all(abs(point.scale / wanted - 1) > NEAR_FRAC for point in tried.points):
            tried.if_any(wanted, FIRST_SEEDS)
    low, high = GRID[0] * at * (1 - NEAR_FRAC), GRID[-1] * at * (1 + NEAR_FRAC)
    found = [point.first(FIRST_SEEDS) for point in tried.points if low <= point.scale <= high]
    return tuple(found)


def _highest(goal: Goal, tried: Tried, axis: Axis) -> Boundary | Point:
    """From what was tried anyway with the first seeds, closed in on with a few runs more."""
    search = Search(tried, axis, goal)
    start = _last(tried, axis, goal.is_met)
    bracket = search.bracket(axis.start if start is None else start, STEP)
    if isinstance(bracket, Point):
        return bracket
    return search.close_in(*_tightened(*bracket, tried, goal), COARSE)


def _tightened(below: Point, above: Point, tried: Tried, goal: Goal) -> tuple[Point, Point]:
    """The nearest two of what was tried that have the answer between them."""
    for point in tried.points:
        if below.scale < point.scale < above.scale:
            first = point.first(FIRST_SEEDS)
            if not goal.is_met(first):
                return below, first
            below = first
    return below, above


def _last(tried: Tried, axis: Axis, is_met: Callable[[Point], bool]) -> float | None:
    """The highest load that holds, of those that were tried, before the first that does not."""
    last = None
    for point in tried.points:
        if not is_met(point.first(FIRST_SEEDS)):
            break
        if axis.least <= point.scale <= axis.most:
            last = point.scale
    return last
