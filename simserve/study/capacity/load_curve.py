"""Load curve: latency against load around a capacity, its knees, and the highest load for each SLO and class alone."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from simserve.metrics.answers.capacity_loads import LATENCIES, CriterionLoad, KneeLoad, LoadCurve, SearchEnd
from simserve.metrics.answers.parts import Bounded
from simserve.scenario import Scenario
from simserve.study.capacity.boundary import FIRST_SEEDS, Boundary, SearchAxis, Unbounded
from simserve.study.capacity.facts import bounded, probed_load
from simserve.study.capacity.point import Criterion, LoadPoint
from simserve.study.capacity.question import ProbedLoads
from simserve.study.capacity.search import Goal, Search
from simserve.study.intervals import Estimate

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

RISE = 2.0
LEVEL = "p99"
"""A knee is the highest load up to which p99 stays within twice its light-load value. For an M/M/1 queue that is half
its capacity, where throughput over latency, the power of a queue, is highest (Kleinrock, Power and deterministic rules
of thumb for probabilistic problems in computer communications, ICC 1979)."""


@dataclass(frozen=True)
class Unit:
    """Unit of a load."""

    key: str
    of_point: Callable[[LoadPoint], float]
    of_boundary: Callable[[Boundary], Estimate]

    def of(self, highest: Boundary | Unbounded) -> float:
        """Return the load at which a search ended."""
        return self.of_boundary(highest).value if isinstance(highest, Boundary) else self.of_point(highest.last)


CLIENTS = Unit("concurrency", lambda point: point.scale, lambda boundary: boundary.load)
REQUESTS_PER_S = Unit("offered_per_s", lambda point: point.offered_per_s, lambda boundary: boundary.offered_per_s)


def load_curve(capacity: Boundary, probed: ProbedLoads, axis: SearchAxis, unit: Unit) -> LoadCurve:
    """Run the loads around a capacity, and search for each criterion alone."""
    points = _curve(capacity.load.value, probed, axis)
    # From the rate of the first seeds to that of all seeds of the answer, so that the curve is on its axis.
    seed_ratio = unit.of_point(capacity.at) / unit.of_point(capacity.at.first(FIRST_SEEDS))
    curve = [(unit.of_point(point) * seed_ratio, point) for point in points]
    knees = {key: knee([(load, point.latency_s(key, LEVEL)) for load, point in curve]) for key in LATENCIES}
    return LoadCurve(
        alone=_alone(capacity, probed, axis, unit),
        curve=[probed_load(point, probed.question.goal_frac, **{unit.key: load}) for load, point in curve],
        knees={
            key: KneeLoad(**{unit.key: turn.load}, light_s=turn.light_s, rise=RISE, level=LEVEL)
            for key, turn in knees.items()
            if turn
        },
    )


def _curve(at: float, probed: ProbedLoads, axis: SearchAxis) -> list[LoadPoint]:
    """Return the loads of the grid that have arrivals, and all others that ran within its range, with FIRST_SEEDS."""
    for share in GRID:
        wanted = min(max(axis.nearest(at * share), axis.least), axis.most)
        if all(abs(point.scale / wanted - 1) > NEAR_FRAC for point in probed.points):
            probed.if_any(wanted, FIRST_SEEDS)
    low, high = GRID[0] * at * (1 - NEAR_FRAC), GRID[-1] * at * (1 + NEAR_FRAC)
    return [probed.at(point.scale, FIRST_SEEDS) for point in probed.points if low <= point.scale <= high]


def _alone(capacity: Boundary, probed: ProbedLoads, axis: SearchAxis, unit: Unit) -> list[CriterionLoad]:
    """Return the highest load for each criterion, its interval, its state, and the headroom beyond the capacity."""
    criteria = _single_criteria(probed.question.scenario)
    if not criteria:
        return []
    at, frac = axis.nearest(capacity.load.value), probed.question.goal_frac
    least, most = axis.nearest(at / WIDEST_ROOM), axis.nearest(at * WIDEST_ROOM)
    near = SearchAxis(at, max(axis.least, least), min(axis.most, most), axis.is_whole)
    whole = _highest(Goal(frac), probed, near)  # with the same seeds, so that the difference has no sampling noise
    result = []
    for criterion in criteria:
        highest = _highest(Goal(frac, criterion=criterion), probed, near)
        room_frac = unit.of(highest) / unit.of(whole) - 1
        value = unit.of(capacity) * (1 + room_frac)
        load, attained_frac = Bounded(value=value, low=None, high=None), None
        if isinstance(highest, Boundary):
            load = bounded(Estimate(*(end / highest.load.value * value for end in vars(highest.load).values())))
        else:
            attained_frac = highest.last.share_of(criterion)
        result.append(
            CriterionLoad(
                slo=criterion.slo,
                slo_class=criterion.slo_class,
                room_frac=room_frac,
                state=cast(SearchEnd, highest.state),
                **{unit.key: load},
                attained_frac=attained_frac,
                ends_with="queue" if highest.ends[0].is_saturated else "slo",
            )
        )
    return result


def _single_criteria(scenario: Scenario) -> tuple[Criterion, ...]:
    """Return each SLO alone, then each class with targets alone; nothing where there is only one."""
    slo = scenario.slo
    targets = (slo.default, *slo.classes.values())
    keys = [key for key in type(slo.default).model_fields if any(key in each.given for each in targets)]
    criteria = (*(Criterion(slo=key) for key in keys), *(Criterion(slo_class=name) for name in slo.classes))
    return criteria if len(criteria) > 1 else ()


def _highest(goal: Goal, probed: ProbedLoads, axis: SearchAxis) -> Boundary | Unbounded:
    """Return the highest load for a goal, from the loads that already ran with the first seeds and a few more."""
    search = Search(probed, axis, goal)
    start, beyond = _around(probed, axis, search)
    if start is not None and beyond is not None and beyond.scale <= STEP * start.scale:
        return search.close_in(start, beyond, COARSE)
    bracket = search.bracket(axis.start if start is None else start.scale, STEP)
    return bracket if isinstance(bracket, Unbounded) else search.close_in(*bracket, COARSE)


def _around(probed: ProbedLoads, axis: SearchAxis, search: Search) -> tuple[LoadPoint | None, LoadPoint | None]:
    """Return the highest load that ran and holds, and the first that does not."""
    last = None
    for point in probed.points:
        first = point.first(FIRST_SEEDS)
        if not search.is_met(first):
            return last, first
        if axis.least <= point.scale <= axis.most:
            last = first
    return last, None


@dataclass(frozen=True)
class Knee:
    """The knee of one latency."""

    load: float | None
    """None: latency stays below the knee throughout the curve."""
    light_s: float
    """Latency at the lightest load of the curve."""


def knee(curve: Sequence[tuple[float, float]]) -> Knee | None:
    """Return the knee of (load, latency) pairs in order of load, log-linear between them; None without a latency."""
    known = [(load, value) for load, value in curve if value > 0]
    if not known:
        return None
    light_s = known[0][1]
    limit = RISE * light_s
    for (below, low), (above, high) in itertools.pairwise(known):
        if high > limit:
            return Knee(below + (above - below) * math.log(limit / low) / math.log(high / low), light_s)
    return Knee(None, light_s)
