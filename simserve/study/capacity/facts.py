"""Capacity facts: the answer of a search as plain data, for JSON, tables and pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.decision import LOAD_TOLERANCE_FRAC
from simserve.metrics.reservation import reservation_warnings
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.cost_warnings import notes, warnings
from simserve.study.capacity.boundary import LEAST_MISSES, Boundary
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.question import CapacityQuestion
from simserve.study.capacity.rate import Capacity, Unbounded
from simserve.study.capacity.short_run import short_run_warnings
from simserve.study.deterministic_load import NOTE
from simserve.study.fleet import fleet_of
from simserve.study.intervals import CONFIDENCE, Estimate
from simserve.version import __version__

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
LEVELS = ("p50", "p90", "p99", "p99.9")


def capacity_facts(result: Capacity | Unbounded, points: Sequence[LoadPoint] | None = None) -> dict[str, Any]:
    """Return what `simserve capacity --json` prints; `answer` is null where the search found no highest load.

    points: all loads that were run, where they are more than those of the search.
    """
    probed, goal_frac = points or result.points, result.question.goal_frac
    load = load_at_answer(result)
    return {
        **question_facts(
            result.question, [*short_run_warnings(result), *load_warnings(load)], reserving=ends_of(result)
        ),
        "asked": "rate",
        **state_facts(result),
        "load": load,
        "own_load": own_load_facts(result.question, probed),
        "answer": _answer(result) if isinstance(result, Capacity) else None,
        "points": [{**point_facts(each, goal_frac), "offered_per_s": _offered_per_s(each, result)} for each in probed],
    }


def ends_of(result: Capacity | Unbounded) -> tuple[LoadPoint, ...]:
    """Return the loads on both sides of the answer, or the last one of the search."""
    return (result.above, result.below) if isinstance(result, Capacity) else (result.last,)


def load_at_answer(result: Capacity | Unbounded) -> dict[str, Any]:
    """Return nominal and drawn load at the highest load that meets the goal, or at the last one of the search."""
    return (result.below if isinstance(result, Capacity) else result.last).load


def load_warnings(load: Mapping[str, Any]) -> list[str]:
    """Return a warning where the seeds drew a load far from the nominal load."""
    if load["off_frac"] is None or abs(load["off_frac"]) <= LOAD_TOLERANCE_FRAC:
        return []
    side, off = "below" if load["off_frac"] < 0 else "above", f"{abs(load['off_frac']):.1%}"
    return [f"the seeds drew a load {off} {side} the nominal one; the answer is corrected by regression on that"]


def own_load_facts(question: CapacityQuestion, points: Sequence[LoadPoint]) -> dict[str, Any] | None:
    """Return whether the scenario meets its SLO at its own load; None where the search did not run that."""
    own = next((point for point in points if point.scale == 1), None)
    return None if own is None else point_facts(own, question.goal_frac)


def _offered_per_s(point: LoadPoint, result: Capacity | Unbounded) -> float:
    """Return the nominal rate; without one, the drawn rate scaled to the answer's seeds, so that rates are in order."""
    if not isinstance(result, Capacity) or point.load["nominal_per_s"]:
        return point.offered_per_s
    same_seeds = result.below.first(len(point.runs))
    return point.offered_per_s * result.below.offered_per_s / same_seeds.offered_per_s


def state_facts(result: Capacity | Unbounded) -> dict[str, Any]:
    """Return whether there is an answer, and where the search stopped if not."""
    if isinstance(result, Capacity):
        return {"state": "found", "stopped_at": None}
    stopped_at = point_facts(result.last, result.question.goal_frac)
    return {"state": "every load" if result.is_met else "no load", "stopped_at": stopped_at}


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
        "slo": _targets(scenario.slo.default),
        "slo_classes": {name: _targets(targets) for name, targets in scenario.slo.classes.items()},
        "pools": [
            _pool(setup, str((pool.scheduler or {}).get("kind")))
            for setup, pool in zip(scenario.setups, scenario.cluster.pools, strict=True)
        ],
        "is_repeated": question.is_deterministic,
        "warnings": [*reserved, *warnings(scenario.setups), *notes(scenario.setups), *deterministic, *gate_warnings],
    }


def _pool(setup: PoolSetup, scheduler: str) -> dict[str, Any]:
    """Return the facts of a pool, with the keys of a run's summary."""
    return {
        "name": setup.name,
        "role": setup.role,
        "model": setup.model.name,
        "gpu": setup.gpu.name,
        "engine": setup.engine.name,
        "engine_version": setup.engine.version,
        "scheduler": scheduler,
        "n_replicas": setup.n_replicas,
        "gpus_per_replica": setup.gpus_per_replica,
        "ranks_per_replica": setup.ranks_per_replica,
        "calibrated": setup.calibrated,
        "calibration": setup.calibration_name,
        "kv_verified": setup.ledger.verified,
    }


def _targets(targets: Any) -> dict[str, float]:
    return {key: limit for key, limit in targets if limit is not None}


def _answer(result: Capacity) -> Mapping[str, Any]:
    rate = result.offered_per_s
    return {
        **confidence_facts(result.question, result.boundary, result.is_precise),
        "scale": vars(result.scale),
        "offered_per_s": vars(rate),
        **per_facts(result.question.scenario, rate),
    }


def confidence_facts(question: CapacityQuestion, boundary: Boundary, is_precise: bool) -> dict[str, Any]:
    """Return how precise the answer is, and what fails beyond it."""
    n_requests = boundary.below.n_requests
    return {
        "confidence": CONFIDENCE,
        "n_seeds": len(boundary.below.runs),
        "n_requests": n_requests,
        "n_enough": n_requests * (1 - question.goal_frac) >= LEAST_MISSES - 1e-6,
        "is_precise": is_precise,
        "precision_frac": question.precision_frac,
        "fails_first": fails_first(boundary.above),
        "kv_limit_is_a_guess": any(run["trust"].get("kv_limit_is_a_guess") for run in boundary.below.runs),
    }


def fails_first(above: LoadPoint) -> str:
    """Return what fails at a load: `queue` where it saturates, else the SLO that most requests miss."""
    return "queue" if above.is_saturated else min(above.by_slo().items(), key=_share)[0]


def per_facts(scenario: Scenario, rate: Estimate) -> dict[str, Any]:
    """Return a rate as requests per GPU, dollar and kWh."""
    fleet = fleet_of(scenario)
    return {
        "per_gpu_s": _over(rate, fleet["n_gpus"]),
        "per_usd": _over(rate, fleet["usd_per_hour"] / 3600),
        "per_kwh": _over(rate, fleet["kw"] / 3600),
        "fleet": fleet,
    }


def _share(item: tuple[str, float]) -> float:
    return item[1]


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
