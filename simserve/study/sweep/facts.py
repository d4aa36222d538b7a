"""Sweep facts: each point's means with their intervals, the Pareto fronts and the best points, as plain data."""

import math
from collections.abc import Sequence
from typing import Any

from simserve.study.intervals import CONFIDENCE, Estimate, mean_of
from simserve.study.measures import GOODPUT
from simserve.study.sweep.point_runs import COST, PointRuns
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.run import FLEET, PER_USD
from simserve.study.sweep.sweep import Sweep
from simserve.tables.schema import SCHEMA
from simserve.version import __version__

TTFT, TPOT = "ttft_s.p99", "tpot_s.p99"


def sweep_facts(sweep: Sweep) -> dict[str, Any]:
    """Return what `sweep.json` holds and `simserve sweep --json` prints; NaN where a number could not be measured."""
    question, measured = sweep.question, sweep.points
    slos = [point.scenario.slo for point in question.points if point.scenario is not None]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "scenario": {"name": question.first.name, "seed": question.first.seed},
        "keys": list(dict.fromkeys(key for point in question.points for key in point.values)),
        "seeds": list(question.seeds),
        "confidence": CONFIDENCE,
        "goal_frac": question.goal_frac,
        "slo": slos[0].default.given if all(slo == slos[0] for slo in slos) else None,
        "slo_classes": sorted({name for slo in slos for name in slo.classes}),
        "fronts": {
            "cost_goodput": _front([each for each in measured if each.has_goodput], (COST, 1), (GOODPUT.key, -1)),
            "ttft_tpot": _front(measured, (TTFT, 1), (TPOT, 1)),
        },
        "best": _best(measured),
        "tied": _tied([each for each in measured if each.is_ranked]),
        "points": [_facts(each) for each in measured],
    }


def _facts(each: PointRuns) -> dict[str, Any]:
    has_runs = each.status != "failed"
    finished = next(iter(each.finished), None)
    reasons = dict.fromkeys(row["reason"] for row in each.rows if row["reason"])
    return {
        "point": each.point.number,
        "values": each.point.values,
        "status": each.status,
        "reason": "; ".join(reasons) or None,
        "n_seeds": len(each.finished),
        "fleet": None if finished is None else {key: finished[key] for key in FLEET} | {"gpus": _gpus(each.point)},
        "saturated": each.is_saturated if has_runs else None,
        "decision": each.decision,
        "meets_goal": each.decision == "met" if each.answer else None,
        "answer": each.answer,
        "load": each.load if has_runs else None,
        "shared_load": each.shared_load if has_runs else None,
        "measures": {key: vars(result) for key, result in each.measures.items()} if has_runs else None,
        "warnings": each.warnings,
    }


def _gpus(point: SweepPoint) -> list[str]:
    """Return the GPU types of its pools."""
    assert point.scenario is not None, "it ran"
    return sorted({pool.gpu or point.scenario.gpu for pool in point.scenario.cluster.pools})


def _front(measured: Sequence[PointRuns], x: tuple[str, int], y: tuple[str, int]) -> list[int]:
    """Return the numbers of non-dominated points along x; a sign of 1: less is better."""
    known = [each for each in measured if each.is_ranked and not math.isnan(each.value(x[0]) + each.value(y[0]))]
    front = pareto_front([x[1] * each.value(x[0]) for each in known], [-y[1] * each.value(y[0]) for each in known])
    return [known[place].point.number for place in front]


def _best(measured: Sequence[PointRuns]) -> dict[str, Any]:
    """Return the points that answer the three questions, null where none does."""
    known = [each for each in measured if each.is_ranked]
    return {
        "per_usd": _most(known, PER_USD.key),
        "goodput": _most(known, GOODPUT.key),
        "cheapest": _cheapest([each for each in known if each.decision == "met"]),
    }


def _most(known: Sequence[PointRuns], key: str) -> dict[str, Any] | None:
    """Return the point with the highest value, of equals the cheapest, and those statistically tied with it."""
    ranked = [each for each in known if not math.isnan(each.value(key))]
    first = max(ranked, key=lambda each: (each.value(key), -each.value(COST)), default=None)
    if first is None:
        return None
    others = [each for each in ranked if each is not first]
    gaps = {each.point.number: _gap(first, each, key) for each in others}
    sure = all(gap.has_interval for gap in gaps.values())
    like = [number for number, gap in gaps.items() if not gap.is_sure]
    return {"point": first.point.number, "not_told_apart": like if sure else None}


def _gap(a: PointRuns, b: PointRuns, key: str) -> Estimate:
    """Return the paired difference a - b over shared seeds."""
    return mean_of([mine[key] - others[key] for mine, others in zip(a.shared, b.shared, strict=True)])


def _cheapest(known: Sequence[PointRuns]) -> dict[str, Any] | None:
    """Return the cheapest point, of equals the one with the most goodput."""
    first = min(known, key=lambda each: (each.value(COST), -each.value(GOODPUT.key)), default=None)
    return None if first is None else {"point": first.point.number}


def _tied(known: Sequence[PointRuns]) -> list[int]:
    """Return the points on the edge that cost less than any that surely meets the SLO, the cheapest first."""
    limit = min((each.value(COST) for each in known if each.decision == "met"), default=math.inf)
    edges = [each for each in known if each.decision == "edge" and each.value(COST) < limit]
    return [each.point.number for each in sorted(edges, key=lambda each: each.value(COST))]


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the places of non-dominated points, the lowest cost first, including equal points.

    A point dominates another if its cost is at most and its gain at least as large, one of them strictly. No NaN.
    """
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place]))
    front: list[int] = []
    for place in order:
        best = front[-1] if front else None
        if best is None or gains[place] > gains[best] or (costs[place], gains[place]) == (costs[best], gains[best]):
            front.append(place)
    return front
