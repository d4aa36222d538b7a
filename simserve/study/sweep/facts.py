"""Sweep facts: each point's means with their intervals, the Pareto fronts and the best points, as plain data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve import __version__
from simserve.study.intervals import CONFIDENCE, Estimate, mean_of
from simserve.study.measures import ATTAINMENT, GOODPUT, Measure
from simserve.study.sweep.pareto import pareto_front
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.run import ALL_MEASURES, FLEET, PER_USD, Row
from simserve.study.sweep.sweep import Sweep
from simserve.tables.schema import SCHEMA

TTFT, TPOT = "ttft_s.p99", "tpot_s.p99"
COST = "usd_per_hour"


@dataclass(frozen=True)
class _PointRuns:
    """A point and its runs."""

    point: SweepPoint
    rows: Sequence[Row]
    measures: Mapping[str, Estimate]
    """Means over the seeds that finished."""

    @property
    def status(self) -> str:
        n = sum(row["status"] == "finished" for row in self.rows)
        return "finished" if n == len(self.rows) else "partly" if n else "failed"

    @property
    def is_saturated(self) -> bool:
        """In most of its runs the queue only grew."""
        return 2 * sum(bool(row.get("saturated")) for row in self.rows) > len(self.rows)

    @property
    def counts(self) -> bool:
        """Its figures may be held against others'."""
        return self.status == "finished" and not self.is_saturated

    @property
    def gives(self) -> bool:
        """Some of its requests had what the SLO asks: what gives nothing is no bargain at any price."""
        return self.counts and self.value(GOODPUT.key) > 0

    def value(self, key: str) -> float:
        """NaN where there is none."""
        return float(self.rows[0][key]) if key in FLEET else self.measures[key].value

    def meets(self, goal_frac: float) -> bool:
        """So many of the requests of all its runs had what the SLO asks."""
        return self.counts and self.value(ATTAINMENT.key) >= goal_frac


def sweep_facts(sweep: Sweep) -> dict[str, Any]:
    """What `sweep.json` holds and `simserve sweep --json` prints; NaN where a number could not be measured."""
    question = sweep.question
    probed = [_probed(point, rows) for point, rows in zip(question.points, sweep.rows, strict=True)]
    slos = [point.scenario.slo for point in question.points if point.scenario is not None]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "scenario": {"name": question.first.name, "seed": question.first.seed},
        "keys": list(dict.fromkeys(key for point in question.points for key in point.values)),
        "seeds": list(question.seeds),
        "confidence": CONFIDENCE,
        "goal_frac": question.goal_frac,
        "slo": {k: v for k, v in slos[0].default if v is not None} if all(slo == slos[0] for slo in slos) else None,
        "slo_classes": sorted({name for slo in slos for name in slo.classes}),
        "fronts": {
            "cost_goodput": _front([each for each in probed if each.gives], (COST, 1), (GOODPUT.key, -1)),
            "ttft_tpot": _front(probed, (TTFT, 1), (TPOT, 1)),
        },
        "best": _best(probed, question.goal_frac),
        "points": [_facts(each, question.goal_frac) for each in probed],
    }


def _probed(point: SweepPoint, rows: Sequence[Row]) -> _PointRuns:
    finished = [row for row in rows if row["status"] == "finished"]
    return _PointRuns(point, rows, {m.key: _mean(finished, m) for m in ALL_MEASURES} if finished else {})


def _mean(rows: Sequence[Row], measure: Measure) -> Estimate:
    """No measure can be below 0, and no share above 1, however wide an interval Student gives few runs."""
    result = mean_of([math.nan if row[measure.key] is None else row[measure.key] for row in rows])
    most = 1.0 if measure.unit == "frac" else math.inf
    return Estimate(result.value, max(result.low, 0.0), min(result.high, most))


def _facts(each: _PointRuns, goal_frac: float) -> dict[str, Any]:
    has_runs = each.status != "failed"
    finished = next((row for row in each.rows if row["status"] == "finished"), None)
    reasons = dict.fromkeys(row["reason"] for row in each.rows if row["reason"])
    has_slo = has_runs and not math.isnan(each.value(ATTAINMENT.key))
    return {
        "point": each.point.number,
        "values": each.point.values,
        "status": each.status,
        "reason": "; ".join(reasons) or None,
        "n_seeds": sum(row["status"] == "finished" for row in each.rows),
        "fleet": None if finished is None else {key: finished[key] for key in FLEET} | {"gpus": _gpus(each.point)},
        "saturated": each.is_saturated if has_runs else None,
        "meets_goal": each.meets(goal_frac) if has_slo else None,
        "measures": {key: vars(result) for key, result in each.measures.items()} if has_runs else None,
    }


def _gpus(point: SweepPoint) -> list[str]:
    """The cards of its pools, each once."""
    assert point.scenario is not None, "it ran"
    return sorted({pool.gpu or point.scenario.gpu for pool in point.scenario.cluster.pools})


def _front(probed: Sequence[_PointRuns], x: tuple[str, int], y: tuple[str, int]) -> list[int]:
    """The points that no other beats in both, by number, along x; a sign of 1: less is better."""
    known = [each for each in probed if each.counts and not math.isnan(each.value(x[0]) + each.value(y[0]))]
    front = pareto_front([x[1] * each.value(x[0]) for each in known], [-y[1] * each.value(y[0]) for each in known])
    return [known[place].point.number for place in front]


def _best(probed: Sequence[_PointRuns], goal_frac: float) -> dict[str, Any]:
    """The points that answer the three questions, null where none does."""
    known = [each for each in probed if each.counts]
    return {
        "per_usd": _most(known, PER_USD.key),
        "goodput": _most(known, GOODPUT.key),
        "cheapest": _cheapest([each for each in known if each.meets(goal_frac)]),
    }


def _most(known: Sequence[_PointRuns], key: str) -> dict[str, Any] | None:
    """The point with the most of it, of equals the cheapest; and those that chance alone may have put behind it."""
    ranked = [each for each in known if not math.isnan(each.value(key))]
    first = max(ranked, key=lambda each: (each.value(key), -each.value(COST)), default=None)
    if first is None:
        return None
    others = [each for each in ranked if each is not first]
    gaps = {each.point.number: _gap(first, each, key) for each in others}
    sure = all(gap.has_interval for gap in gaps.values())
    like = [number for number, gap in gaps.items() if not gap.is_sure]
    return {"point": first.point.number, "not_told_apart": like if sure else None}


def _gap(a: _PointRuns, b: _PointRuns, key: str) -> Estimate:
    """a - b, seed by seed: what both owe to the same luck falls out."""
    return mean_of([mine[key] - others[key] for mine, others in zip(a.rows, b.rows, strict=True)])


def _cheapest(known: Sequence[_PointRuns]) -> dict[str, Any] | None:
    """Of equally cheap points, the one with the most goodput."""
    first = min(known, key=lambda each: (each.value(COST), -each.value(GOODPUT.key)), default=None)
    return None if first is None else {"point": first.point.number}
