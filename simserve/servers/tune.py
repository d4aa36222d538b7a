"""Tune: the best settings of a scenario's server under its SLO, confirmed on fresh draws, as flags to change."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.errors import SimserveError
from simserve.metrics.answers.comparison import LoadDecision, NoDecision
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.tune import FlagChange, LatencyChange, TriedPoint, TuneAnswer, TuneWord
from simserve.metrics.tails import log_of, pooled
from simserve.scenario import Scenario
from simserve.scenario.dump import flow
from simserve.servers.server_settings import POOL
from simserve.servers.settings import flags_by_key
from simserve.servers.tuning_search import MISSED, PointSearch, TuneQuestion, changed, value_at, value_of
from simserve.study.compare.compare import ComparedSide, compare
from simserve.study.fleet import is_deterministic
from simserve.study.intervals import mean_of
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run
from simserve.tables.journal import Journal

FINALISTS, CONFIRM_SEEDS = 4, 8
FRESH = 10_000
"""Seeds from the scenario's own on that the search did not use; the confirmation begins as far behind."""

NOT_VARIED = {
    "engine": "engine and its version",
    f"{POOL}.gpu": "GPU",
    "weight_dtype": "precision",
    f"{POOL}.gpu_memory_utilization": "share of memory",
    f"{POOL}.speculation": "speculation",
    f"{POOL}.parallel.data": "data and expert parallelism",
    "cluster.kv_link": "prefill apart from decode",
    f"{POOL}.replicas": "number of GPUs",
}
"""What a search leaves as it is unless it is asked for."""

SHOWN = (("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "p50"), ("tpot_s", "p99"), ("e2e_s", "p99"))

INSTALL = "tune: needs Optuna, which is not installed; pip install 'simserve[tune]'"


def find_tune(question: TuneQuestion, journal: Journal[TriedPoint]) -> TuneAnswer:
    """Return the best settings of a scenario's server, confirmed on fresh draws. Raises SimserveError without Optuna,
    an SLO, or a point that runs."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise SimserveError(INSTALL) from None
    search = PointSearch(question, journal)
    search.run()
    ranked = sorted(
        (point for point in search.points.values() if point.r is not None),
        key=lambda point: value_of(point, question.objective) or 0.0,
    )
    if not ranked:
        raise SimserveError(f"{question.scenario.name}: no point can run: {next(iter(search.points.values())).reason}")
    scenario, best = question.scenario, _best(question, ranked)
    tuned = scenario if best is None else changed(scenario, best.values)
    return _answer(question, search, tuned, None if tuned == scenario else best)


def _best(question: TuneQuestion, ranked: Sequence[TriedPoint]) -> TriedPoint | None:
    """Return the best of the finalists on draws that the search did not use."""
    finalists = ranked[:FINALISTS]
    if is_deterministic(question.scenario):
        return finalists[0]
    enter("the best points on fresh draws")
    first = question.scenario.seed + FRESH
    scenarios = [changed(question.scenario, point.values) for point in finalists]
    runs = each_run(Run.of, scenarios, range(first, first + CONFIRM_SEEDS))
    return min(zip(finalists, runs, strict=True), key=lambda pair: _over(pair[1], question))[0]


def _over(runs: Sequence[Run], question: TuneQuestion) -> float:
    """Return what is to be small over several runs, as a logarithm."""
    r = log_of(pooled([run.sample for run in runs]).r(question.goal_frac))
    if question.objective == "r":
        return r
    return MISSED + r if r > 0 else sum(_log(run, question) for run in runs) / len(runs)


def _log(run: Run, question: TuneQuestion) -> float:
    """Return the logarithm of the objective of one run; NaN where nothing of it counts."""
    if question.objective == "r":
        return log_of(run.sample.r(question.goal_frac))
    goodput = run.summary.goodput
    rate = goodput and (goodput.per_usd if question.objective == "cost" else goodput.per_gpu_s)
    return -math.log(rate) if rate else math.nan


def _answer(question: TuneQuestion, search: PointSearch, tuned: Scenario, best: TriedPoint | None) -> TuneAnswer:
    """Hold the best point against the scenario on draws that neither search nor choice used."""
    scenario, n_seeds = question.scenario, 1 if is_deterministic(question.scenario) else CONFIRM_SEEDS
    first = scenario.seed + 2 * FRESH
    before, after = each_run(Run.of, [scenario, tuned], range(first, first + n_seeds))
    logs = [_log(new, question) - _log(old, question) for old, new in zip(before, after, strict=True)]
    change = mean_of(logs)
    load: LoadDecision | NoDecision | None = None
    if best is not None and n_seeds > 1:
        enter("the load that both carry")
        sides = [each.model_copy(update={"seed": first}) for each in (scenario, tuned)]
        load = compare(ComparedSide("before", sides[0]), ComparedSide("tuned", sides[1]), n_seeds).decision
    is_sure = change.high < 0 if change.has_interval else change.value < 0
    word: TuneWord = "better" if is_sure or (load is not None and load.outcome == "better") else "tied"
    if best is None:
        word = "same"
    answer = TuneAnswer(
        word=word,
        scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
        objective=question.objective,
        goal_frac=question.goal_frac,
        n_tried=len(search.points),
        n_possible=search.n_possible,
        varied=search.space,
        not_varied=[text for key, text in NOT_VARIED.items() if key not in search.space],
        changes=[] if best is None else _changes(scenario, tuned, search.space),
        gain_frac=None if math.isnan(change.value) else 1 - math.exp(change.value),
        gain=(1 - math.exp(change.high), 1 - math.exp(change.low)) if change.has_interval else None,
        r_before=pooled([run.sample for run in before]).r(question.goal_frac),
        r_after=pooled([run.sample for run in after]).r(question.goal_frac),
        n_seeds=n_seeds,
        latencies=[_latency(*shown, before, after) for shown in SHOWN],
        load=load,
        points=list(search.points.values()),
    )
    return answer.with_runs(None, tuned.to_yaml())


def _latency(key: str, level: str, before: Sequence[Run], after: Sequence[Run]) -> LatencyChange:
    means = (mean_of([run.summary.at(f"{key}.{level}") for run in side]).value for side in (before, after))
    return LatencyChange(latency=key, level=level, **dict(zip(("before_s", "after_s"), means, strict=True)))


def _changes(scenario: Scenario, tuned: Scenario, space: Mapping[str, Sequence[Any]]) -> list[FlagChange]:
    """Return what differs, under the flags of the engine."""
    flags = flags_by_key(scenario.setups[0].engine.name)
    keys = [*space, *([f"{POOL}.replicas"] if f"{POOL}.replicas" not in space else [])]
    sides = ((key, value_at(scenario, key), value_at(tuned, key)) for key in keys)
    return [
        FlagChange(flag=flags.get(key, key), key=key, before=_text(old), after=_text(new))
        for key, old, new in sides
        if old != new
    ]


def _text(value: Any) -> str | None:
    match value:
        case {"kind": kind}:
            return str(kind)
    return None if value is None else flow(value)
