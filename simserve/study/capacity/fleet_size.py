"""Fleet size: the fewest replicas of a pool with which a given share of requests meets every SLO."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simserve.metrics.answer import Attained
from simserve.metrics.answers.capacity import ReplicasCapacity
from simserve.metrics.answers.capacity_found import FoundReplicas
from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.metrics.decision import Decision
from simserve.metrics.tails import capped
from simserve.study.capacity.boundary import FIRST_SEEDS
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import load_warnings, probed_load, studied
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion, check_slo, place_of_pool
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.fleet import fleet_of, with_replicas
from simserve.study.intervals import CONFIDENCE
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run

MOST = 1024
"""Highest number of replicas that a search runs."""

MOST_FOR_COSTS = 4
"""Most replicas for those that meet the SLO as simulated: further ones do not make up for the error of costs."""

RunsWith = Callable[[int, Sequence[int]], list[Run]]
"""Runs a number of replicas with each of some seeds."""

CostsOf = Callable[[int], DrawnCosts]
"""Maps a number of replicas to draws of its costs."""


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
    judged: Mapping[float, Decision | None] = field(default_factory=dict)
    """Decisions with the error of costs, by number of replicas; of those that meet the SLO by noise."""

    def decision(self, point: LoadPoint) -> Attained:
        """Return whether a number of replicas meets the SLO."""
        judged = self.judged.get(point.scale)
        return point.decision(self.question.goal_frac) if judged is None else judged.old_word

    @property
    def tied(self) -> LoadPoint | None:
        """The fewest replicas on the edge; None where all below the answer miss the SLO."""
        edges = [point for point in self.points if self.decision(point) == "edge"]
        return next((each for each in edges if self.fewest is None or each.scale < self.fewest.scale), None)


def study_fleet_size(question: CapacityQuestion, pool: str) -> CapacityResult:
    """Return the fewest replicas of a pool. Raises SimserveError without an SLO or such a pool."""
    check_slo(question.scenario)
    place = place_of_pool(question.scenario, pool, "--replicas")

    def runs_with(n: int, seeds: Sequence[int]) -> list[Run]:
        enter(f"{n} replicas of {pool}")
        return each_run(Run.of, [with_replicas(question.scenario, {place: n})], seeds)[0]

    def costs_of(n: int) -> DrawnCosts:
        fleet = with_replicas(question.scenario, {place: n})
        return DrawnCosts.of(fleet, lambda _: fleet, question.most_seeds)

    size = search(question, place, runs_with, None if question.effort.by == "noise" else costs_of)
    return CapacityResult(fleet_size_answer(size), tuple((None, point) for point in size.points))


def search(question: CapacityQuestion, place: int, runs_with: RunsWith, costs_of: CostsOf | None = None) -> FleetSize:
    """Search from the scenario's own number of replicas; a number on the edge gets more seeds.

    costs_of: draws of the costs of a number of replicas; None: costs count as exact.
    """
    first, most_seeds = question.scenario.seed, question.most_seeds
    own = question.scenario.cluster.pools[place].replicas
    probed: dict[int, LoadPoint] = {}
    judged: dict[float, Decision | None] = {}

    def run(n: int, places: range) -> list[Run]:
        return list(runs_with(n, range(first + places.start, first + places.stop)))

    def decision(n: int) -> Attained:
        if n not in probed:
            point = LoadPoint.of(n, run(n, range(min(FIRST_SEEDS, most_seeds))))
            more = partial(run, n)
            probed[n] = point.decided(question.goal_frac, more, question.effort) if most_seeds > 1 else point
        return probed[n].decision(question.goal_frac)

    def is_sure(n: int) -> bool:
        if decision(n) != "met":
            return False
        if costs_of is not None and n not in judged:
            settled = costs_of(n).settled(probed[n], question.goal_frac, question.effort, partial(run, n))
            probed[n], judged[n] = settled
        known = judged.get(n)
        return known is None or known.old_word == "met"

    by_noise = fewest(lambda n: decision(n) == "met", own)
    n = by_noise and fewest(is_sure, by_noise, min(MOST, MOST_FOR_COSTS * by_noise))
    fewer = (by_noise or 1) - 1
    while fewer > 0 and decision(fewer) == "edge":
        fewer -= 1
    points = tuple(probed[n] for n in sorted(probed))
    return FleetSize(question, place, None if n is None else probed[n], points, judged)


def fewest(holds: Callable[[int], bool], start: int, limit: int = MOST) -> int | None:
    """Return the least number that holds, for a monotonic `holds`; None where not even `limit` does. Steps double from
    `start`, then bisect. `holds` is called again with the same number: cache it."""
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


def fleet_size_answer(size: FleetSize) -> ReplicasCapacity:
    """Return the answer with all numbers that ran; without a fleet where no number holds."""
    question, point = size.question, size.fewest or size.points[-1]
    return ReplicasCapacity(
        **vars(studied(question, load_warnings(point), size.points)),
        question="replicas",
        pool=question.scenario.cluster.pools[size.place].name,
        confidence=CONFIDENCE,
        load=point.load,
        answer=None if size.fewest is None else _fleet(size, size.fewest),
        tied=None if size.tied is None else _fleet(size, size.tied),
        points=[_probed(size, each) for each in size.points],
    )


def _fleet(size: FleetSize, point: LoadPoint) -> FoundReplicas:
    n, judged, known = int(point.scale), size.judged.get(point.scale), dict[str, Any]()
    if judged is not None:  # how sure it is
        known = {"word": judged.word, "probability": judged.probability, "edge_by": judged.edge_by}
        known |= {"r": capped(judged.margin.log_r)}
    return FoundReplicas(
        replicas=n,
        decision=size.decision(point),
        attained_frac=point.attained.value,
        low_frac=point.attained.low,
        high_frac=point.attained.high,
        n_seeds=len(point.runs),
        fleet=fleet_of(with_replicas(size.question.scenario, {size.place: n})),
        **known,
    )


def _probed(size: FleetSize, point: LoadPoint) -> ProbedLoad:
    """Return a number of replicas, decided with the error of costs where that decides."""
    probed = probed_load(point, size.question.goal_frac, replicas=int(point.scale))
    judged = size.judged.get(point.scale)
    if judged is None:
        return probed
    known = {"decision": judged.old_word, "word": judged.word, "probability": judged.probability}
    return probed.model_copy(update=known)
