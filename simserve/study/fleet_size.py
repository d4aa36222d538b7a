"""Fleet size: the fewest replicas of a pool with which a given share of requests meets every SLO."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.errors import SimserveError, did_you_mean
from simserve.scenario import Scenario
from simserve.study.capacity import FIRST_SEEDS, Point, Question, check_slo
from simserve.study.capacity_facts import fleet_of, point_facts, question_facts
from simserve.study.intervals import CONFIDENCE, mean_of
from simserve.study.replications import Summary, replicate

MOST = 1024
"""More replicas are not tried."""

RunsWith = Callable[[int, Sequence[int]], list[Summary]]
"""What comes of so many replicas, with each of some seeds."""

Told = Callable[[int], None]
"""Called with each number of replicas that is tried."""


@dataclass(frozen=True)
class FleetSize:
    """The answer. The `scale` of a point is its number of replicas."""

    question: Question
    pool: str
    found: Point | None
    """The fewest that hold; None: not even MOST do."""
    points: tuple[Point, ...]
    """All that were tried, the fewest first."""


def find_fleet_size(question: Question, pool: str, told: Told | None = None) -> FleetSize:
    """Search. Raises SimserveError where there is no SLO to hold a load to, or no such pool."""
    check_slo(question.scenario)
    names = [each.name for each in question.scenario.cluster.pools]
    if pool not in names:
        raise SimserveError(f"--replicas: must be the name of a pool, got {pool}; {did_you_mean(pool, names)}")
    place = names.index(pool)

    def runs_with(n: int, seeds: Sequence[int]) -> list[Summary]:
        if told:
            told(n)
        return replicate([with_replicas(question.scenario, place, n)], seeds)[0]

    return search(question, pool, runs_with)


def search(question: Question, pool: str, runs_with: RunsWith) -> FleetSize:
    """Likewise, whatever it is that runs: from the scenario's own number on."""
    first = question.scenario.seed
    own = next(each.replicas for each in question.scenario.cluster.pools if each.name == pool)
    tried: dict[int, Point] = {}

    def holds(n: int) -> bool:
        if n not in tried:
            tried[n] = Point(n, tuple(runs_with(n, range(first, first + FIRST_SEEDS))))
        return tried[n].attained_frac >= question.goal_frac and not tried[n].is_saturated

    n = fewest(holds, own)
    return FleetSize(question, pool, None if n is None else tried[n], _in_order(tried))


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
    scenario, found = answer.question.scenario, answer.found
    place = [each.name for each in scenario.cluster.pools].index(answer.pool)
    return {
        **question_facts(answer.question),
        "pool": answer.pool,
        "confidence": CONFIDENCE,
        "answer": None if found is None else _fleet(scenario, place, found),
        "points": [{**_attained(point), **point_facts(point)} for point in answer.points],
    }


def _fleet(scenario: Scenario, place: int, found: Point) -> dict[str, Any]:
    n = int(found.scale)
    return {**_attained(found), "fleet": fleet_of(with_replicas(scenario, place, n))}


def _attained(point: Point) -> dict[str, Any]:
    """With the interval of the mean over its runs."""
    shares = mean_of([float(n_met / n_arrived) for n_met, n_arrived in point.counts])
    return {"replicas": int(point.scale), "low_frac": max(0.0, shares.low), "high_frac": min(1.0, shares.high)}


def _in_order(tried: dict[int, Point]) -> tuple[Point, ...]:
    return tuple(point for _, point in sorted(tried.items()))
