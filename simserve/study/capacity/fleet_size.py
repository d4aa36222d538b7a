"""Fleet size: the fewest replicas of a pool with which a given share of requests meets every SLO."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.metrics.answer import Attained
from simserve.study.capacity.boundary import FIRST_SEEDS
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import load_warnings, point_facts, question_facts
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion, check_slo, place_of_pool
from simserve.study.fleet import fleet_of, with_replicas
from simserve.study.intervals import CONFIDENCE
from simserve.study.run_seeds import Run, each_run

MOST = 1024
"""Highest number of replicas that a search runs."""

RunsWith = Callable[[int, Sequence[int]], list[Run]]
"""Runs a number of replicas with each of some seeds."""

OnProgress = Callable[[int], None]
"""Called with each number of replicas before it runs."""


@dataclass(frozen=True)
class FleetSize:
    """The answer; the `scale` of a point is its number of replicas."""

    question: CapacityQuestion
    place: int
    """Index of the pool in the scenario."""
    fewest: LoadPoint | None
    """The fewest replicas that meet the SLO; None: not even MOST do."""
    points: tuple[LoadPoint, ...]
    """All that were run, the fewest first."""

    @property
    def tied(self) -> LoadPoint | None:
        """The fewest replicas on the edge; None where all below the answer miss the SLO."""
        edges = [point for point in self.points if point.decision(self.question.goal_frac) == "edge"]
        return next((each for each in edges if self.fewest is None or each.scale < self.fewest.scale), None)


def study_fleet_size(question: CapacityQuestion, pool: str, progress: OnProgress | None = None) -> CapacityResult:
    """Return the fewest replicas of a pool as data. Raises SimserveError without an SLO or such a pool."""
    check_slo(question.scenario)
    place = place_of_pool(question.scenario, pool, "--replicas")

    def runs_with(n: int, seeds: Sequence[int]) -> list[Run]:
        if progress:
            progress(n)
        return each_run(Run.of, [with_replicas(question.scenario, {place: n})], seeds)[0]

    answer = search(question, place, runs_with)
    return CapacityResult(fleet_size_facts(answer), tuple((None, point) for point in answer.points))


def search(question: CapacityQuestion, place: int, runs_with: RunsWith) -> FleetSize:
    """Search from the scenario's own number of replicas; a number on the edge gets more seeds."""
    first, most_seeds = question.scenario.seed, question.most_seeds
    own = question.scenario.cluster.pools[place].replicas
    probed: dict[int, LoadPoint] = {}

    def decision(n: int) -> Attained:
        def run(places: range) -> list[Run]:
            return list(runs_with(n, range(first + places.start, first + places.stop)))

        if n not in probed:
            point = LoadPoint.of(n, run(range(min(FIRST_SEEDS, most_seeds))))
            probed[n] = point.decided(question.goal_frac, run, question.effort) if most_seeds > 1 else point
        return probed[n].decision(question.goal_frac)

    n = fewest(lambda n: decision(n) == "met", own)
    fewer = (n or 1) - 1
    while fewer > 0 and decision(fewer) == "edge":
        fewer -= 1
    return FleetSize(question, place, None if n is None else probed[n], tuple(probed[n] for n in sorted(probed)))


def fewest(holds: Callable[[int], bool], start: int, limit: int = MOST) -> int | None:
    """Return the least number that holds, for a monotonic `holds`; None where not even `limit` does.

    Steps double from `start`, then bisect. `holds` is called again with the same number: cache it.
    """
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


def fleet_size_facts(answer: FleetSize) -> dict[str, Any]:
    """Return what `simserve capacity --replicas --json` prints; `answer` is null where no number holds."""
    scenario, point = answer.question.scenario, answer.fewest
    load = (point or answer.points[-1]).load
    return {
        **question_facts(answer.question, load_warnings(load), answer.points),
        "asked": "replicas",
        "pool": scenario.cluster.pools[answer.place].name,
        "confidence": CONFIDENCE,
        "load": load,
        "answer": None if point is None else _fleet(answer, point),
        "tied": None if answer.tied is None else _fleet(answer, answer.tied),
        "points": [
            {"replicas": int(each.scale), **point_facts(each, answer.question.goal_frac)} for each in answer.points
        ],
    }


def _fleet(answer: FleetSize, point: LoadPoint) -> dict[str, Any]:
    n, estimate = int(point.scale), point.attained
    fleet = fleet_of(with_replicas(answer.question.scenario, {answer.place: n}))
    attained = {"attained_frac": estimate.value, "low_frac": estimate.low, "high_frac": estimate.high}
    decision = point.decision(answer.question.goal_frac)
    return {"replicas": n, "decision": decision, **attained, "n_seeds": len(point.runs), "fleet": fleet}
