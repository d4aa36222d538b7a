"""Capacity facts: the parts that answers to several questions of a search have."""

from collections.abc import Sequence
from typing import Any, Literal, cast

from simserve.metrics.answers.capacity import CapacityStudy, SearchedCapacity
from simserve.metrics.answers.capacity_found import Efficiency, FoundPrecision
from simserve.metrics.answers.capacity_loads import LATENCIES, ProbedLoad, SearchEnd
from simserve.metrics.answers.parts import Bounded, Limit, ScenarioName
from simserve.metrics.answers.pools import StudiedPool
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC
from simserve.metrics.kv_json import reservation_warnings
from simserve.metrics.tails import pooled
from simserve.scenario import Scenario
from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.capacity.boundary import LEAST_MISSES, Boundary, Unbounded
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.fleet import NOTE, fleet_of
from simserve.study.intervals import CONFIDENCE, Estimate
from simserve.version import __version__

LEVELS = ("p50", "p90", "p99", "p99.9")

LEAST_WINDOW = 10
"""Shortest window, in p99 E2E latencies: a shorter one is largely start-up."""


def search_of(
    question: CapacityQuestion,
    kind: Literal["rate", "concurrency"],
    highest: Boundary | Unbounded,
    warnings: Sequence[str] = (),
) -> SearchedCapacity:
    """Return the question, where its search ended, and why without an answer; adds `warnings`."""
    last = highest.ends[-1]
    return SearchedCapacity(
        **vars(studied(question, [*_short_run_warnings(highest), *warnings], reserving=highest.ends)),
        question=kind,
        state=cast(SearchEnd, highest.state),
        stopped_at=None if isinstance(highest, Boundary) else probed_load(last, question.goal_frac),
        load=last.load,
    )


def _short_run_warnings(highest: Boundary | Unbounded) -> list[str]:
    """Return a warning where saturation limits the answer, and the runs are too short to show it."""
    if not isinstance(highest, Boundary) or not highest.above.is_saturated:
        return []
    window_s = min(run.window.at("duration_s") for run in highest.below.runs)
    e2e_s = highest.below.latency_s("e2e_s", "p99")
    if not window_s < LEAST_WINDOW * e2e_s:
        return []
    cause = f"runs of {window_s:.3g} s are short for requests that take up to {e2e_s:.3g} s"
    return [f"{cause}: their start-up may look like a queue that only grows; lengthen the runs"]


def load_warnings(point: LoadPoint) -> list[str]:
    """Return a warning where the seeds drew a load far from the nominal load."""
    off_frac = point.load.off_frac
    if off_frac is None or abs(off_frac) <= LOAD_TOLERANCE_FRAC:
        return []
    side, off = "below" if off_frac < 0 else "above", f"{abs(off_frac):.1%}"
    return [f"the seeds drew a load {off} {side} the nominal one; the answer is corrected by regression on that"]


def studied(question: CapacityQuestion, gate: Sequence[str] = (), reserving: Sequence[LoadPoint] = ()) -> CapacityStudy:
    """Return the question, its scenario and its warnings, as every answer repeats them; adds those of a gate, and that
    of the first of the loads `reserving` at which reservations of KV keep requests waiting."""
    scenario = question.scenario
    deterministic = [NOTE] if question.is_deterministic else []
    reserved = reservation_warnings(run.kv for point in reserving for run in point.runs)
    return CapacityStudy(
        version=__version__,
        scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
        goal_frac=question.goal_frac,
        slo=scenario.slo.default.given,
        slo_classes={name: targets.given for name, targets in scenario.slo.classes.items()},
        pools=pools_of(scenario),
        is_repeated=question.is_deterministic,
        warnings=[*reserved, *warnings(scenario.setups), *notes(scenario.setups), *deterministic, *gate],
    )


def pools_of(scenario: Scenario) -> list[StudiedPool]:
    """Return the pools of a scenario."""
    pools = zip(scenario.setups, scenario.cluster.pools, strict=False)  # without what a roll-out turns one into
    return [
        StudiedPool(
            name=setup.name,
            role=setup.role,
            model=setup.model.name,
            gpu=setup.gpu.name,
            engine=setup.engine.name,
            engine_version=setup.engine.version,
            scheduler=str((pool.scheduler or {}).get("kind")),
            n_replicas=setup.n_replicas,
            gpus_per_replica=setup.gpus_per_replica,
            ranks_per_replica=setup.ranks_per_replica,
            calibrated=setup.calibrated,
            calibration=setup.calibration_name,
            kv_verified=setup.ledger.verified,
        )
        for setup, pool in pools
    ]


def precision_of(question: CapacityQuestion, boundary: Boundary, *, is_known: bool = False) -> FoundPrecision:
    """Return how precise the answer is, which may be known whatever its interval, and what fails beyond it."""
    n_requests = boundary.at.n_requests
    return FoundPrecision(
        confidence=CONFIDENCE,
        n_seeds=len(boundary.at.runs),
        n_requests=n_requests,
        n_enough=n_requests * (1 - question.goal_frac) >= LEAST_MISSES - 1e-6,
        is_precise=is_known or boundary.half_frac <= question.precision_frac,
        precision_frac=question.precision_frac,
        fails_first=fails_first(boundary.above, question.goal_frac),
        kv_limit_is_a_guess=any(run.trust.kv_limit_is_a_guess for run in boundary.at.runs),
    )


def fails_first(above: LoadPoint, goal_frac: float) -> Limit:
    """Return what fails at a load: `queue` where it saturates, else the limit with the largest quantile of its own
    ratio at the goal."""
    whole = pooled(above.samples)
    if above.is_saturated or not whole.n:
        return "queue"
    return cast(Limit, whole.decisive(goal_frac)[1].first_limit(goal_frac))


def efficiency_of(scenario: Scenario, rate: Estimate) -> Efficiency:
    """Return a rate as requests per GPU, dollar and kWh."""
    fleet = fleet_of(scenario)
    return Efficiency(
        per_gpu_s=bounded(rate, fleet.n_gpus),
        per_usd=bounded(rate, fleet.usd_per_hour / 3600) if fleet.usd_per_hour else None,
        per_kwh=bounded(rate, fleet.kw / 3600) if fleet.kw else None,
        fleet=fleet,
    )


def bounded(estimate: Estimate, amount: float = 1.0) -> Bounded:
    """Return an estimate per amount."""
    return Bounded(value=estimate.value / amount, low=estimate.low / amount, high=estimate.high / amount)


def probed_load(point: LoadPoint, goal_frac: float, **load: float) -> ProbedLoad:
    """Return a load, its attainment and its latencies; `load` is what it is in the unit of its question."""
    known: dict[str, Any] = {"offered_per_s": point.offered_per_s, **load}
    known |= {key: {level: point.latency_s(key, level) for level in LEVELS} for key in LATENCIES}
    return ProbedLoad(
        **known,
        scale=point.scale,
        drawn_per_s=point.drawn_per_s,
        served_per_s=point.mean("served_per_s"),
        requests_per_s=point.mean("requests_per_s"),
        output_tokens_per_s=point.mean("output_tokens_per_s"),
        n_runs=len(point.runs),
        n_requests=point.n_requests,
        attained_frac=point.attained_frac,
        low_frac=point.attained.low,
        high_frac=point.attained.high,
        decision=point.decision(goal_frac),
        saturated=point.is_saturated,
        by_slo=point.by_slo(),
    )
