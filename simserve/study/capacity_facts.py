"""Capacity facts: what a search for the capacity found, as plain data, for JSON, tables and pages."""

from collections.abc import Mapping
from typing import Any

from simserve.study.capacity import Capacity, Point, Question, Unbounded
from simserve.study.fleet import fleet_of
from simserve.study.intervals import CONFIDENCE, Estimate

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
LEVELS = ("p50", "p90", "p99")


def capacity_facts(found: Capacity | Unbounded) -> dict[str, Any]:
    """What `simserve capacity --json` prints; `answer` is null where no load is the highest that holds."""
    points = found.points if isinstance(found, Capacity) else (found.last,)
    return {
        **question_facts(found.question),
        "state": "found" if isinstance(found, Capacity) else "every load" if found.is_met else "no load",
        "answer": _answer(found) if isinstance(found, Capacity) else None,
        "points": [point_facts(point) for point in points],
    }


def question_facts(question: Question) -> dict[str, Any]:
    """What was asked, as every answer repeats it."""
    scenario = question.scenario
    return {
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "goal_frac": question.goal_frac,
        "slo": {key: limit for key, limit in scenario.slo.default if limit is not None},
        "slo_classes": list(scenario.slo.classes),
    }


def _answer(found: Capacity) -> Mapping[str, Any]:
    rate, fleet = found.offered_per_s, fleet_of(found.question.scenario)
    return {
        "confidence": CONFIDENCE,
        "n_seeds": len(found.below.runs),
        "is_precise": found.is_precise,
        "precision_frac": found.question.precision_frac,
        "scale": vars(found.scale),
        "offered_per_s": vars(rate),
        "per_gpu_s": _over(rate, fleet["n_gpus"]),
        "per_usd": _over(rate, fleet["usd_per_hour"] / 3600),
        "per_kwh": _over(rate, fleet["kw"] / 3600),
        "fleet": fleet,
        "fails_first": "queue" if found.above.is_saturated else min(found.above.by_slo().items(), key=_share)[0],
    }


def _share(item: tuple[str, float]) -> float:
    return item[1]


def _over(rate: Estimate, amount: float) -> dict[str, float] | None:
    return {key: value / amount for key, value in vars(rate).items()} if amount else None


def point_facts(point: Point) -> dict[str, Any]:
    """What was tried, and what came of it."""
    return {
        "scale": point.scale,
        "offered_per_s": point.offered_per_s,
        "n_runs": len(point.runs),
        "attained_frac": point.attained_frac,
        "saturated": point.is_saturated,
        "by_slo": point.by_slo(),
        **{key: {level: point.latency_s(key, level) for level in LEVELS} for key in LATENCIES},
    }
