"""Capacity facts: the answer of a search as plain data, for JSON, tables and pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.answers.parts import StudiedPool
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC
from simserve.metrics.reservation import reservation_warnings
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.capacity.boundary import LEAST_MISSES, Boundary, Unbounded
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.deterministic_load import NOTE
from simserve.study.fleet import fleet_of
from simserve.study.intervals import CONFIDENCE, Estimate
from simserve.version import __version__

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
LEVELS = ("p50", "p90", "p99", "p99.9")

LEAST_WINDOW = 10
"""Shortest window, in p99 E2E latencies: a shorter one is largely start-up."""


def search_facts(
    question: CapacityQuestion, kind: str, highest: Boundary | Unbounded, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the question, whether there is an answer, and where the search stopped if not; adds `warnings`."""
    is_found = isinstance(highest, Boundary)
    return {
        **question_facts(question, [*_short_run_warnings(highest), *warnings], reserving=highest.ends),
        "asked": kind,
        "state": highest.state,
        "stopped_at": None if is_found else point_facts(highest.ends[-1], question.goal_frac),
        "load": highest.ends[-1].load,
    }


def _short_run_warnings(highest: Boundary | Unbounded) -> list[str]:
    """Return a warning where saturation limits the answer, and the runs are too short to show it."""
    if not isinstance(highest, Boundary) or not highest.above.is_saturated:
        return []
    window_s = min(float(run["window"]["duration_s"]) for run in highest.below.runs)
    e2e_s = highest.below.latency_s("e2e_s", "p99")
    if not window_s < LEAST_WINDOW * e2e_s:
        return []
    cause = f"runs of {window_s:.3g} s are short for requests that take up to {e2e_s:.3g} s"
    return [f"{cause}: their start-up may look like a queue that only grows; lengthen the runs"]


def load_warnings(load: Mapping[str, Any]) -> list[str]:
    """Return a warning where the seeds drew a load far from the nominal load."""
    if load["off_frac"] is None or abs(load["off_frac"]) <= LOAD_TOLERANCE_FRAC:
        return []
    side, off = "below" if load["off_frac"] < 0 else "above", f"{abs(load['off_frac']):.1%}"
    return [f"the seeds drew a load {off} {side} the nominal one; the answer is corrected by regression on that"]


def question_facts(
    question: CapacityQuestion, gate_warnings: Sequence[str] = (), reserving: Sequence[LoadPoint] = ()
) -> dict[str, Any]:
    """Return the question, its scenario and its warnings, as every answer repeats them; adds gate_warnings, and that of
    the first of the loads `reserving` at which reservations of KV keep requests waiting."""
    scenario = question.scenario
    deterministic = [NOTE] if question.is_deterministic else []
    reserved = reservation_warnings(run for point in reserving for run in point.runs)
    return {
        "version": __version__,
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "goal_frac": question.goal_frac,
        "slo": scenario.slo.default.given,
        "slo_classes": {name: targets.given for name, targets in scenario.slo.classes.items()},
        "pools": [pool.facts() for pool in pools_of(scenario)],
        "is_repeated": question.is_deterministic,
        "warnings": [*reserved, *warnings(scenario.setups), *notes(scenario.setups), *deterministic, *gate_warnings],
    }


def pools_of(scenario: Scenario) -> list[StudiedPool]:
    """Return the pools of a scenario."""
    pools = zip(scenario.setups, scenario.cluster.pools, strict=True)
    return [_pool(setup, str((pool.scheduler or {}).get("kind"))) for setup, pool in pools]


def _pool(setup: PoolSetup, scheduler: str) -> StudiedPool:
    return StudiedPool(
        name=setup.name,
        role=setup.role,
        model=setup.model.name,
        gpu=setup.gpu.name,
        engine=setup.engine.name,
        engine_version=setup.engine.version,
        scheduler=scheduler,
        n_replicas=setup.n_replicas,
        gpus_per_replica=setup.gpus_per_replica,
        ranks_per_replica=setup.ranks_per_replica,
        calibrated=setup.calibrated,
        calibration=setup.calibration_name,
        kv_verified=setup.ledger.verified,
    )


def confidence_facts(question: CapacityQuestion, boundary: Boundary, *, is_known: bool = False) -> dict[str, Any]:
    """Return how precise the answer is, which may be known whatever its interval, and what fails beyond it."""
    n_requests = boundary.below.n_requests
    return {
        "confidence": CONFIDENCE,
        "n_seeds": len(boundary.below.runs),
        "n_requests": n_requests,
        "n_enough": n_requests * (1 - question.goal_frac) >= LEAST_MISSES - 1e-6,
        "is_precise": is_known or boundary.half_frac <= question.precision_frac,
        "precision_frac": question.precision_frac,
        "fails_first": fails_first(boundary.above),
        "kv_limit_is_a_guess": any(run["trust"].get("kv_limit_is_a_guess") for run in boundary.below.runs),
    }


def fails_first(above: LoadPoint) -> str:
    """Return what fails at a load: `queue` where it saturates, else the SLO that most requests miss."""
    return "queue" if above.is_saturated else above.worst_slo[0]


def per_facts(scenario: Scenario, rate: Estimate) -> dict[str, Any]:
    """Return a rate as requests per GPU, dollar and kWh."""
    fleet = fleet_of(scenario)
    return {
        "per_gpu_s": _over(rate, fleet["n_gpus"]),
        "per_usd": _over(rate, fleet["usd_per_hour"] / 3600),
        "per_kwh": _over(rate, fleet["kw"] / 3600),
        "fleet": fleet,
    }


def _over(rate: Estimate, amount: float) -> dict[str, float] | None:
    return {key: value / amount for key, value in vars(rate).items()} if amount else None


def point_facts(point: LoadPoint, goal_frac: float) -> dict[str, Any]:
    """Return a load, its attainment and its latencies."""
    attained = point.attained
    return {
        "scale": point.scale,
        "offered_per_s": point.offered_per_s,
        "drawn_per_s": point.drawn_per_s,
        "served_per_s": point.mean("served_per_s"),
        "requests_per_s": point.mean("requests_per_s"),
        "output_tokens_per_s": point.mean("output_tokens_per_s"),
        "n_runs": len(point.runs),
        "n_requests": point.n_requests,
        "attained_frac": point.attained_frac,
        "low_frac": attained.low,
        "high_frac": attained.high,
        "decision": point.decision(goal_frac),
        "saturated": point.is_saturated,
        "by_slo": point.by_slo(),
        **{key: {level: point.latency_s(key, level) for level in LEVELS} for key in LATENCIES},
    }
