"""Fleet size: the fewest replicas of a pool with which a given share of requests meets every SLO."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simserve.metrics.answer import Attained
from simserve.metrics.answers.capacity import ReplicasCapacity
from simserve.metrics.answers.capacity_found import FoundReplicas
from simserve.metrics.answers.parts import NominalLoad
from simserve.study.capacity.boundary import FIRST_SEEDS
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import load_warnings, probed_load, studied
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
    """Return the fewest replicas of a pool. Raises SimserveError without an SLO or such a pool."""
    check_slo(question.scenario)
    place = place_of_pool(question.scenario, pool, "--replicas")

    def runs_with(n: int, seeds: Sequence[int]) -> list[Run]:
        if progress:
            progress(n)
        return each_run(Run.of, [with_replicas(question.scenario, {place: n})], seeds)[0]

    size = search(question, place, runs_with)
    return CapacityResult(fleet_size_answer(size), tuple((None, point) for point in size.points))


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


def fleet_size_answer(size: FleetSize) -> ReplicasCapacity:
    """Return the answer with all numbers that ran; without a fleet where no number holds."""
    question, point = size.question, size.fewest or size.points[-1]
    return ReplicasCapacity(
        **vars(studied(question, load_warnings(point), size.points)),
        question="replicas",
        pool=question.scenario.cluster.pools[size.place].name,
        confidence=CONFIDENCE,
        load=NominalLoad(**point.load),
        answer=None if size.fewest is None else _fleet(size, size.fewest),
        tied=None if size.tied is None else _fleet(size, size.tied),
        points=[probed_load(each, question.goal_frac, replicas=int(each.scale)) for each in size.points],
    )


def _fleet(size: FleetSize, point: LoadPoint) -> FoundReplicas:
    n = int(point.scale)
    return FoundReplicas(
        replicas=n,
        decision=point.decision(size.question.goal_frac),
        attained_frac=point.attained.value,
        low_frac=point.attained.low,
        high_frac=point.attained.high,
        n_seeds=len(point.runs),
        fleet=fleet_of(with_replicas(size.question.scenario, {size.place: n})),
    )
