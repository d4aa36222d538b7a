"""Sweep facts: means with intervals, Pareto fronts and best points as an answer, and all runs as a table."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import PricedFleet
from simserve.metrics.answers.struct import fields_of, table_of
from simserve.metrics.answers.sweep import (
    BestPoint,
    BestPoints,
    CheapestPoint,
    Fronts,
    PointOfSweep,
    SweepAnswer,
    SweptScenario,
)
from simserve.metrics.answers.sweep_runs import FinishedRun
from simserve.scenario.dump import flow
from simserve.study.intervals import CONFIDENCE, mean_of
from simserve.study.slo_answer import mean_load
from simserve.study.sweep.point_runs import PointRuns
from simserve.study.sweep.sweep import Sweep
from simserve.tables.columns import TableRows, typed_columns
from simserve.tables.fields import Field, Kind
from simserve.version import __version__

Figure = Callable[[Measures[Any]], Any]
"""Reads one measure of a run, or of a point."""


def sweep_facts(sweep: Sweep) -> SweepAnswer:
    """Return what `sweep.json` holds and `simserve sweep --json` prints, with the rows of `sweep.parquet`."""
    question = sweep.question
    slos = [point.scenario.slo for point in question.points if point.scenario is not None]
    ranked = [each for each in sweep.points if each.is_ranked]
    met = [each for each in ranked if each.decision == "met"]
    cheapest = min(met, key=lambda each: (each.usd_per_hour, -each.goodput_per_s), default=None)
    return SweepAnswer(
        version=__version__,
        scenario=SweptScenario(name=question.first.name, seed=question.first.seed),
        keys=list(dict.fromkeys(key for point in question.points for key in point.values)),
        seeds=list(question.seeds),
        confidence=CONFIDENCE,
        goal_frac=question.goal_frac,
        slo=slos[0].default.given if all(slo == slos[0] for slo in slos) else None,
        slo_classes=sorted({name for slo in slos for name in slo.classes}),
        fronts=_fronts(ranked),
        best=BestPoints(
            per_usd=_most(ranked, lambda measures: measures.goodput_per_usd),
            goodput=_most(ranked, lambda measures: measures.goodput_per_s),
            cheapest=None if cheapest is None else CheapestPoint(point=cheapest.point.number),
        ),
        tied=_tied(ranked),
        points=[_point(each) for each in sweep.points],
    ).with_runs(sweep_rows(sweep))


def sweep_rows(sweep: Sweep) -> TableRows:
    """Return `sweep.parquet`, ordered by point and seed; missing values are null."""
    flat = [(point, run) for point, runs in zip(sweep.question.points, sweep.rows, strict=True) for run in runs]
    keys = list(dict.fromkeys(key for point in sweep.question.points for key in point.values))
    varied = [Field(key, _kind([point.values.get(key) for point, _ in flat])) for key in keys]
    texts = {field.name for field in varied if field.kind == "category"}
    of_point = (Field("point", "int64"), *varied)
    rows = [
        {"point": point.number}
        | {
            key: flow(value) if key in texts and value is not None and not isinstance(value, str) else value
            for key, value in point.values.items()
        }
        for point, _ in flat
    ]
    columns = typed_columns(of_point, rows) | table_of(FinishedRun, [run for _, run in flat])
    return TableRows("sweep.parquet", (*of_point, *fields_of(FinishedRun)), columns)


def _kind(cells: Sequence[Any]) -> Kind:
    """Return the kind that holds all values of a key; lists and mappings become YAML text."""
    types = {type(cell) for cell in cells if cell is not None}
    if types == {bool}:
        return "flag"
    if types == {int}:
        return "int64"
    return "float" if types and types <= {int, float} else "category"


def _point(each: PointRuns) -> PointOfSweep:
    has_runs = each.status != "failed"
    reasons = dict.fromkeys(row.reason for row in (*each.rows, *each.cost_rows) if row.reason)
    first, scenario, fleet = next(iter(each.finished), None), each.point.scenario, None
    if first is not None and scenario is not None:
        gpus = sorted({pool.gpu or scenario.gpu for pool in scenario.cluster.pools})
        fleet = PricedFleet(n_gpus=first.n_gpus, usd_per_hour=first.usd_per_hour, kw=first.kw, gpus=gpus)
    return PointOfSweep(
        point=each.point.number,
        values=each.point.values,
        status=each.status,
        reason="; ".join(reasons) or None,
        n_seeds=len(each.finished),
        fleet=fleet,
        saturated=each.is_saturated if has_runs else None,
        decision=each.decision,
        meets_goal=each.decision == "met" if each.answer else None,
        answer=each.answer,
        judged=each.judged,
        load=mean_load([run.load for run in each.finished]) if has_runs else None,
        shared_load=mean_load([run.load for run in each.shared]) if has_runs else None,
        measures=each.measures if has_runs else None,
        warnings=each.warnings,
    )


def _fronts(ranked: Sequence[PointRuns]) -> Fronts:
    """Return the points that no other beats; those without goodput are on no front of it."""
    latencies = [
        (each.point.number, ttft_s, -tpot_s)
        for each in ranked
        if (ttft_s := each.measures.ttft_p99_s.value) is not None
        and (tpot_s := each.measures.tpot_p99_s.value) is not None
    ]
    costs = [(each.point.number, each.usd_per_hour, each.goodput_per_s) for each in ranked if each.goodput_per_s > 0]
    cost_goodput, ttft_tpot = (
        [points[place][0] for place in pareto_front([cost for _, cost, _ in points], [gain for _, _, gain in points])]
        for points in (costs, latencies)
    )
    return Fronts(cost_goodput=cost_goodput, ttft_tpot=ttft_tpot)


def _most(ranked: Sequence[PointRuns], figure: Figure) -> BestPoint | None:
    """Return the point with the highest value, of equals the cheapest, and those statistically tied with it."""
    known = [each for each in ranked if figure(each.measures).value is not None]
    first = max(known, key=lambda each: (figure(each.measures).value, -each.usd_per_hour), default=None)
    if first is None:
        return None
    gaps = {  # paired differences over shared seeds
        each.point.number: mean_of([figure(a) - figure(b) for a, b in zip(first.shared, each.shared, strict=True)])
        for each in known
        if each is not first
    }
    sure = all(gap.has_interval for gap in gaps.values())
    like = [number for number, gap in gaps.items() if not gap.is_sure]
    return BestPoint(point=first.point.number, not_told_apart=like if sure else None)


def _tied(ranked: Sequence[PointRuns]) -> list[int]:
    """Return the points on the edge that cost less than any that surely meets the SLO, the cheapest first."""
    limit = min((each.usd_per_hour for each in ranked if each.decision == "met"), default=math.inf)
    edges = [each for each in ranked if each.decision == "edge" and each.usd_per_hour < limit]
    return [each.point.number for each in sorted(edges, key=lambda each: each.usd_per_hour)]


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the places of non-dominated points, the lowest cost first, including equal points. A point dominates
    another if its cost is at most and its gain at least as large, one of them strictly. No NaN."""
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -gains[place]))
    front: list[int] = []
    for place in order:
        best = front[-1] if front else None
        if best is None or gains[place] > gains[best] or (costs[place], gains[place]) == (costs[best], gains[best]):
            front.append(place)
    return front
