"""Ratio: the split of GPUs into prefill and decode replicas that sustains the highest rate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from simserve.errors import SimserveError
from simserve.metrics.answers.capacity import RatioCapacity
from simserve.metrics.answers.capacity_found import FoundSplit, SplitRate
from simserve.metrics.answers.capacity_loads import SearchEnd
from simserve.metrics.answers.parts import FoundLoad
from simserve.scenario import Scenario
from simserve.scenario.cluster import DISAGGREGATED_ONLY
from simserve.study.capacity.boundary import FIRST_SEEDS, Boundary, Unbounded
from simserve.study.capacity.capacity_result import CapacityResult
from simserve.study.capacity.facts import bounded, efficiency_of, fails_first, load_warnings, studied
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion, ProbedLoads, RunsAt, check_slo, place_of_pool
from simserve.study.capacity.rate import SCALES
from simserve.study.capacity.search import Goal, Search
from simserve.study.fleet import at_scale, with_replicas
from simserve.study.intervals import CONFIDENCE, Estimate
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run

FEW = 8
"""Up to this many splits all run; of more, only those on the way of a search for the maximum."""

ROLES = ("prefill", "decode")

TOGETHER = "together"
"""Name of the same GPUs as one pool that does both."""

MACHINE = ("model", "gpu", "engine", "weight_dtype", "kv_dtype")
DEGREES = {"tensor", "pipeline", "data", "expert"}
"""Settings of a pool, and those of its parallelism, that two pools share if their replicas are interchangeable."""

RunsOf = Callable[[str], RunsAt]
"""Returns the function that runs a split, by its name."""


@dataclass(frozen=True)
class Split:
    """Numbers of prefill and decode replicas."""

    prefill: int
    decode: int

    @property
    def name(self) -> str:
        """Name such as `3:5`."""
        return f"{self.prefill}:{self.decode}"


@dataclass(frozen=True)
class Served:
    """The highest rate of one split, and the loads of its search."""

    name: str
    highest: Boundary | Unbounded
    probed: tuple[LoadPoint, ...]

    @property
    def rate(self) -> Estimate:
        """Requests/s; that of the last load where every load meets the goal, 0 where none does."""
        if isinstance(self.highest, Boundary):
            return self.highest.offered_per_s
        at = self.highest.last.offered_per_s if self.highest.is_met else 0.0
        return Estimate(at, at, at)


def study_ratio(question: CapacityQuestion, pools: str, n_gpus: int | None = None) -> CapacityResult:
    """Return the best split. Raises SimserveError without an SLO, a rate, these pools, or GPUs for one of each."""
    check_slo(question.scenario)
    at_scale(question.scenario, 1.0)
    scenario, places = question.scenario, _places(question.scenario, pools)
    sizes = [scenario.setups[place].gpus_per_replica for place in places]
    own = sum(scenario.setups[place].n_replicas * size for place, size in zip(places, sizes, strict=True))
    splits = splits_of(n_gpus or own, sizes)
    of_splits = ({places[0]: each.prefill, places[1]: each.decode} for each in splits)
    scenarios = {each.name: with_replicas(scenario, n) for each, n in zip(splits, of_splits, strict=True)}
    one_pool = together(scenario, places, n_gpus or own)
    if one_pool is not None:
        scenarios[TOGETHER] = one_pool

    def runs_of(name: str) -> RunsAt:
        return lambda scale, seeds: each_run(Run.of, [at_scale(scenarios[name], scale)], seeds)[0]

    served = search(question, splits, runs_of)
    reference = None if one_pool is None else _served(question, TOGETHER, runs_of(TOGETHER))
    return _result(question, scenarios, served, reference)


def search(question: CapacityQuestion, splits: Sequence[Split], runs_of: RunsOf) -> list[Served]:
    """Return the highest rate of each split; of more than FEW, of those on the way to the best."""
    known: dict[int, Served] = {}

    def rate(i: int) -> float:
        if i not in known:
            known[i] = _served(question, splits[i].name, runs_of(splits[i].name))
        return known[i].rate.value

    low, high = 0, len(splits) - 1
    while low < high:  # the rate has one maximum: it rises with replicas of the side that binds, then falls
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rate(middle) < rate(middle + 1) else (low, middle)
    wanted = range(len(splits)) if len(splits) <= FEW else range(max(0, low - 1), min(len(splits), low + 2))
    for i in wanted:
        rate(i)
    return [known[i] for i in sorted(known)]


def splits_of(n_gpus: int, sizes: Sequence[int]) -> list[Split]:
    """Return all splits with as many replicas as the GPUs allow. Raises SimserveError if there is none."""
    prefill, decode = sizes
    most = (n_gpus - decode) // prefill
    if most < 1:
        rule = f"must be enough for a replica of each pool, {prefill + decode} GPUs"
        raise SimserveError(f"--gpus: {rule}, got {n_gpus}; ask for more, or for smaller replicas")
    return [Split(n, (n_gpus - n * prefill) // decode) for n in range(1, most + 1)]


def _places(scenario: Scenario, pools: str) -> tuple[int, int]:
    """Return the indices of the two pools. Raises SimserveError where no pool has that name, or it has another role."""
    names = pools.split(":")
    if len(names) != len(ROLES):
        rule = "must be the names of a prefill and of a decode pool, as in prefill:decode"
        raise SimserveError(f"--ratio: {rule}, got {pools}; name two pools of the scenario")
    places = [place_of_pool(scenario, name, "--ratio") for name in names]
    for place, role in zip(places, ROLES, strict=True):
        pool = scenario.cluster.pools[place]
        if pool.role != role:
            rule = f"pool {pool.name} must have the role {role}"
            raise SimserveError(f"--ratio: {rule}, got {pool.role}; name the pools in the order PREFILL:DECODE")
    return places[0], places[1]


def together(scenario: Scenario, places: Sequence[int], n_gpus: int) -> Scenario | None:
    """Return the same GPUs as one pool of the prefill pool's replicas; None where the decode pool's differ."""
    setups = [scenario.setups[place] for place in places]
    machines = [([getattr(pool, key) for key in MACHINE], pool.parallel.model_dump(include=DEGREES)) for pool in setups]
    if machines[0] != machines[1] or len(scenario.cluster.pools) > len(places):
        return None
    data = scenario.to_dict()
    cluster = data["cluster"]
    n = n_gpus // setups[0].gpus_per_replica
    cluster["pools"] = [{**cluster["pools"][places[0]], "name": TOGETHER, "role": "both", "replicas": n}]
    for key in DISAGGREGATED_ONLY:
        cluster.pop(key, None)
    return Scenario.from_dict(data)


def _served(question: CapacityQuestion, name: str, runs_at: RunsAt) -> Served:
    enter(f"split {name}")
    probed = ProbedLoads(question, runs_at)
    return Served(name, Search(probed, SCALES, Goal(question.goal_frac)).highest(), probed.points)


def _result(
    question: CapacityQuestion, scenarios: Mapping[str, Scenario], served: Sequence[Served], reference: Served | None
) -> CapacityResult:
    best = max(served, key=lambda each: each.rate.value)
    holds = best.rate.value > 0
    others = [each for each in served if each is not best]
    last = best.highest.ends[-1]
    answer = RatioCapacity(
        **vars(studied(question, load_warnings(last), best.probed)),
        question="ratio",
        load=last.load,
        state="found" if holds else "no load",
        answer=FoundSplit(
            **vars(_split(best, scenarios, question.goal_frac)),
            confidence=CONFIDENCE,
            n_seeds=min(FIRST_SEEDS, question.most_seeds),
            is_clear=all(each.rate.high < best.rate.low for each in others),
        )
        if holds
        else None,
        together=None if reference is None else _split(reference, scenarios, question.goal_frac),
        splits=[_split(each, scenarios, question.goal_frac) for each in served],
    )
    everything = [*served, *([reference] if reference else [])]
    return CapacityResult(answer, tuple((each.name, point) for each in everything for point in each.probed))


def _split(served: Served, scenarios: Mapping[str, Scenario], goal_frac: float) -> SplitRate:
    scenario = scenarios[served.name]
    return SplitRate(
        split=served.name,
        replicas={pool.name: pool.replicas for pool in scenario.cluster.pools},
        state=cast(SearchEnd, served.highest.state),
        offered_per_s=FoundLoad(**vars(bounded(served.rate))),
        fails_first=fails_first(served.highest.ends[0], goal_frac),
        **vars(efficiency_of(scenario, served.rate)),
    )
