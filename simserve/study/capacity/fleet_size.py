"""Fleet size: the fewest replicas of a pool with which a given share of requests meets every SLO."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.scenario import Scenario
from simserve.study.capacity.boundary import FIRST_SEEDS, Goal
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import point_facts, question_facts
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion, check_slo, place_of_pool
from simserve.study.fleet import fleet_of
from simserve.study.intervals import CONFIDENCE
from simserve.study.run_seeds import Summary, replicate

MOST = 1024
"""More replicas are not tried."""

RunsWith = Callable[[int, Sequence[int]], list[Summary]]
"""What comes of so many replicas, with each of some seeds."""

OnProgress = Callable[[int], None]
"""Called with each number of replicas that is tried."""


@dataclass(frozen=True)
class FleetSize:
    """The answer. The `scale` of a point is its number of replicas."""

    question: CapacityQuestion
    place: int
    """Of the pool, among those of the scenario."""
    result: LoadPoint | None
    """The fewest that hold; None: not even MOST do."""
    points: tuple[LoadPoint, ...]
    """All that were tried, the fewest first."""


def find_fleet_size(question: CapacityQuestion, pool: str, progress: OnProgress | None = None) -> FleetSize:
    """Search. Raises SimserveError where there is no SLO to hold a load to, or no such pool."""
    check_slo(question.scenario)
    place = place_of_pool(question.scenario, pool, "--replicas")

    def runs_with(n: int, seeds: Sequence[int]) -> list[Summary]:
        if progress:
            progress(n)
        return replicate([with_replicas(question.scenario, place, n)], seeds)[0]

    return search(question, place, runs_with)


def study_fleet_size(question: CapacityQuestion, pool: str, progress: OnProgress | None = None) -> CapacityResult:
    """Likewise, as data."""
    answer = find_fleet_size(question, pool, progress)
    return CapacityResult(fleet_size_facts(answer), tuple((None, point) for point in answer.points))


def search(question: CapacityQuestion, place: int, runs_with: RunsWith) -> FleetSize:
    """Likewise, whatever it is that runs: from the scenario's own number on."""
    first = question.scenario.seed
    own = question.scenario.cluster.pools[place].replicas
    goal = Goal(question.goal_frac)
    probed: dict[int, LoadPoint] = {}

    def holds(n: int) -> bool:
        if n not in probed:
            probed[n] = LoadPoint(n, tuple(runs_with(n, range(first, first + min(FIRST_SEEDS, question.most_seeds)))))
        return goal.is_met(probed[n])

    n = fewest(holds, own)
    return FleetSize(question, place, None if n is None else probed[n], _in_order(probed))


def fewest(holds: Callable[[int], bool], start: int, limit: int = MOST) -> int | None:
    """The least number that holds, where more of them hold better: from `start` by steps that double, then by
    bisection; None: not even the `limit` does. What was asked once is asked again: let `holds` remember."""
    most = min(start, limit)
    least, step = most - 1, 1
    while not holds(most):
        if most >= limit:
            return None
        least, most, step = most, min(most + step, limit), 2 * step
    while least > 0 and holds(least):
        least, most, step = max(0, least - 2 * step), least, 2 * step
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if holds(middle) else (middle, most)
    return most


def with_replicas(scenario: Scenario, place: int, n: int) -> Scenario:
    """The scenario with so many replicas in one of its pools."""
    data = scenario.to_dict()
    data["cluster"]["pools"][place]["replicas"] = n
    return Scenario.from_dict(data)


def fleet_size_facts(answer: FleetSize) -> dict[str, Any]:
    """What `simserve capacity --replicas --json` prints; `answer` is null where no number holds."""
    scenario, result = answer.question.scenario, answer.result
    return {
        **question_facts(answer.question),
        "asked": "replicas",
        "pool": scenario.cluster.pools[answer.place].name,
        "confidence": CONFIDENCE,
        "answer": None if result is None else _fleet(scenario, answer.place, result),
        "points": [_point(point) for point in answer.points],
    }


def _fleet(scenario: Scenario, place: int, result: LoadPoint) -> dict[str, Any]:
    n, sure = int(result.scale), result.attained
    fleet = fleet_of(with_replicas(scenario, place, n))
    return {"replicas": n, "low_frac": sure.low, "high_frac": sure.high, "n_seeds": len(result.runs), "fleet": fleet}


def _point(point: LoadPoint) -> dict[str, Any]:
    return {"replicas": int(point.scale), **point_facts(point)}


def _in_order(probed: dict[int, LoadPoint]) -> tuple[LoadPoint, ...]:
    return tuple(point for _, point in sorted(probed.items()))
