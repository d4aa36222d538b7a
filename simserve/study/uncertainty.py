"""Uncertainty: replays of a run with loads and costs of their own, for prediction intervals and the answer.

Each replay perturbs compute, memory, links, host, front end and KV blocks at once, by factors as wide as the held-out
errors of kernels and servers, and every latency once more by the residual error on real servers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.cost.calibration import Calibration
from simserve.metrics.answer import FAR_FRAC, Outcomes, outcomes, queue_over, worst_class
from simserve.metrics.batches import T_95
from simserve.metrics.classes import of_class
from simserve.metrics.decision import beyond_warning, within_capacity
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import met_by_goal
from simserve.metrics.results import Results
from simserve.metrics.student import quantile
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.distortion import Distortion
from simserve.scenario.models import MeasureSection
from simserve.scenario.server_errors import WITHIN_SD, server_errors
from simserve.simulation import Progress, n_shards, simulate
from simserve.study import capacity_probe
from simserve.study.capacity_probe import UNKNOWN, Draw, NearCapacity
from simserve.study.nominal import answer_over, met_probability
from simserve.study.processes import Answers, forked, n_jobs
from simserve.study.scaled_replays import FULL, RunFigures, ScaledReplays
from simserve.tables.columns import Flags
from simserve.workload.load import Load, offered_load
from simserve.workload.segment import segment

REPLAYS = 8
"""Default number of replays."""

MOST_WHOLE = 16_000
"""Requests of the longest run that is replayed whole; a longer one is replayed in segments."""

SEGMENT = MOST_WHOLE // 4
"""Requests of a segment, its run-in included. Each is run twice, so replays of a long run take as long as four runs of
MOST_WHOLE requests."""

RUN_IN_FRAC = 0.2
"""Share of a segment before its measured window."""

SESSIONS_RUN_IN_FRAC = 0.5
"""Share where requests wait for answers: as many sessions as usual are under way only after some of them."""

CONFIDENCE = 0.9

SHAPES = 4
"""Matrices of a layer, over which errors of kernels cancel in part."""

VERSION_SD = 0.03
"""Spread of kernels between two versions of an engine; two campaigns on the same card differ by 5% (bf16)."""

SCALED_SD = 0.15
"""Spread of kernels scaled from another card by the data sheet."""

ROOFLINE_SD = 0.25
"""Spread of a roofline with assumed efficiencies."""

HOST_SD = 0.2
FRONT_END_SD = 0.5
"""Spread of constants fitted to few runs: their difference between fits that each leave out a group of runs."""

KV_SD = 0.04
"""Spread of a computed number of KV blocks."""

METRIC_OF: Mapping[str, str] = {
    "ttft_s": "ttft_s",
    "queue_s": "ttft_s",
    "tpot_s": "tpot_s",
    "itl_s": "tpot_s",
    "e2e_s": "e2e_s",
}
"""The latency with the errors on servers that stand for those of each."""

RESIDUAL_SD: Mapping[str, float] = {key: WITHIN_SD[metric] for key, metric in METRIC_OF.items()}
"""Spread of the log ratio of predicted to measured, for servers like the fitted ones."""

LEAST_REACH, MOST_REACH = 0.2, 0.8
"""Bounds of the distance from capacity, as a logarithm, within which draws of costs are probed: at three standard
deviations, but requests of a probe differ from the load's, and probes offer three times the load."""

NO_RESIDUAL: Mapping[str, float] = dict.fromkeys(RESIDUAL_SD, 1.0)

LEVELS = ("mean", "p50", "p90", "p95", "p99", "p99.9")


@dataclass(frozen=True)
class CostSpread:
    """Standard deviations of the logs of the factors."""

    compute: float
    memory: float
    link: float
    host: float
    front_end: float
    kv_blocks: float


OnReplay = Callable[[int, int], None]
"""Called after each run of a replay, with how many are done and how many there are."""


def run_with_replays(
    scenario: Scenario, progress: Callable[[Progress], None] | None = None, on_replay: OnReplay | None = None
) -> Results:
    """Run a scenario, and `predict` on the other cores at the same time; or afterward, if the run needs them all."""
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    if load.concurrency is not None:  # its number of requests, or its end, shows only at the end
        results = simulate(scenario, load=load, progress=progress)
        predict(scenario, results, on_replay)
        return results
    replays = _Replays.of(scenario, load)
    if n_shards(scenario, load, n_jobs()) > 1:
        results = simulate(scenario, load=load, progress=progress, jobs=n_jobs())
        with forked(replays.run, replays.n_runs) as answers:
            replays.put(results, answers, on_replay)
        return results
    with forked(replays.run, replays.n_runs) as answers:
        results = simulate(scenario, load=load, progress=progress)
        replays.put(results, answers, on_replay)
    return results


def predict(scenario: Scenario, results: Results, on_replay: OnReplay | None = None) -> None:
    """Put `prediction` and the `answer` of the replays into the summary of a run.

    Each replay draws a load of its own, with the seeds after the scenario's, beside costs of its own. Replays of a run
    of more than MOST_WHOLE requests are segments, each run with and without perturbed costs. `prediction` is null where
    nothing is replayed; the answer is then that of the run. Deterministic: loads and factors come from the scenario's
    seed, whichever core computes them.
    """
    load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    requests = results.columns["requests"]
    replays = _Replays.of(scenario, load, len(requests["arrival_s"]), results.facts.last_arrival_s)
    with forked(replays.run, replays.n_runs) as answers:
        replays.put(results, answers, on_replay)


@dataclass(frozen=True)
class _Replays:
    """The replays of a scenario."""

    scenario: Scenario
    load: Load
    """The run's own."""
    end_s: float
    """Its end, of a closed loop."""
    segment_frac: float | None
    """Length of a segment, as a share of the run; None: replays are whole."""
    draws: Sequence[Draw]

    @classmethod
    def of(cls, scenario: Scenario, load: Load, n_sent: int = 0, end_s: float = 0.0) -> "_Replays":
        """Plan the replays; n_sent and end_s: requests and end of the run, which a closed loop needs."""
        n_requests = len(load.trace) if load.concurrency is None else n_sent
        frac = SEGMENT / n_requests if n_requests > MOST_WHOLE else None
        return cls(scenario, load, end_s, frac, draws_for(scenario))

    @property
    def n_runs(self) -> int:
        """Number of runs; each segment is run twice."""
        return len(self.draws) if self.segment_frac is None else 2 * len(self.draws)

    def run(self, place: int) -> RunFigures:
        """Make one of the runs."""
        if self.segment_frac is None:
            distortion, residual = self.draws[place]
            return _figures(simulate(self._reseeded(place), distortion=distortion), residual)
        place, is_perturbed = divmod(place, 2)
        distortion, residual = self.draws[place] if is_perturbed else (Distortion(), NO_RESIDUAL)
        load = self._segment(place, self.segment_frac)
        frac = RUN_IN_FRAC if load.trace.dependencies is None else SESSIONS_RUN_IN_FRAC
        n_run_in = max(frac * SEGMENT, min(2 * (load.concurrency or 0), SEGMENT / 2))
        measure = MeasureSection(warmup_requests=int(n_run_in))
        measured = self._reseeded(place).model_copy(update={"measure": measure})
        return _figures(simulate(measured, load=load, distortion=distortion), residual)

    def _reseeded(self, place: int) -> Scenario:
        return self.scenario.model_copy(update={"seed": self.scenario.seed + place + 1})

    def _segment(self, place: int, frac: float) -> Load:
        """Cut the segments of a trace out of the run's own load, and others out of loads of their own."""
        load, workload = self.load, self.scenario.workload
        if workload.trace is None:
            load = offered_load(workload, self.scenario.seed + place + 1, self.scenario.base_dir)
        return segment(load, place / (len(self.draws) - 1) * (1 - frac), frac, self.end_s)

    def put(self, results: Results, answers: Answers, on_replay: OnReplay | None) -> None:
        """Put what the runs came to into the summary of the scenario's own run."""
        results.summary["prediction"] = None
        if not self.draws:
            return
        self._put_replays(results, answers, on_replay)
        near = near_capacity(self.scenario, self.load, results.summary, self.draws)
        results.summary |= UNKNOWN if near is None else near.facts()
        chance, answer = results.summary["probability_beyond_capacity"], results.summary["answer"]
        if answer is not None:
            answer["decision"] = within_capacity(answer["decision"], chance)
        results.summary["warnings"] += beyond_warning(chance)

    def _put_replays(self, results: Results, answers: Answers, on_replay: OnReplay | None) -> None:
        runs: dict[int, RunFigures] = {}
        for place, answer in answers:
            runs[place] = answer
            if on_replay:
                on_replay(len(runs), self.n_runs)
        ordered = [runs[place] for place in range(self.n_runs)]
        run = _figures(results)
        if self.segment_frac is None:
            results.summary["prediction"] = prediction_over(run, ordered)
            results.summary["answer"] = answer_over(
                [run.outcomes, *(each.outcomes for each in ordered)], GOAL_FRAC, "replays"
            )
            return
        is_drawn = self.scenario.workload.trace is None
        replays = ScaledReplays(run, ordered[::2], ordered[1::2], is_drawn)
        results.summary["prediction"] = prediction_over(run, replays.whole())
        results.summary["answer"] = replays.answer() or results.summary["answer"]


def near_capacity(
    scenario: Scenario, load: Load, summary: Mapping[str, Any], draws: Sequence[Draw]
) -> NearCapacity | None:
    """Compare the load of a run with capacity, over draws of costs; None where its load adapts or is too short."""
    spread = spread_of(scenario.setups)
    costs = max(spread.compute, spread.memory, spread.host / 2)
    reach = min(max(3 * hypot(costs, residual_of(scenario.setups)["tpot_s"]), LEAST_REACH), MOST_REACH)
    return capacity_probe.near_capacity(scenario, load, summary, draws, reach)


def draws_for(scenario: Scenario) -> Sequence[Draw]:
    """Return the draws of a scenario's replays; none where it wants no replays."""
    requested = scenario.measure.replays
    n = REPLAYS if requested is None else requested
    return draws_of(spread_of(scenario.setups), n, scenario.seed, residual_of(scenario.setups)) if n > 1 else ()


def prediction_over(run: RunFigures, replays: Sequence[RunFigures]) -> dict[str, Any]:
    """Return the prediction of a run from its replays, all of one length."""
    runs = [run.outcomes, *(replay.outcomes for replay in replays)]
    name = worst_class(runs)
    judged = [each[name] for each in runs if name in each]
    is_full = queue_over(each.queue for each in judged) in FULL  # attainment then depends on length
    attained = [replay.outcomes[name].attained_frac for replay in replays if name in replay.outcomes]
    return {
        "replays": len(replays),
        "confidence": CONFIDENCE,
        "latencies": {
            key: {
                level: prediction_interval(value, [r.latencies[key][level] for r in replays])
                for level, value in levels.items()
            }
            for key, levels in run.latencies.items()
            if all(key in replay.latencies for replay in replays)
        },
        "attainment": [min(attained), max(attained)] if attained else None,
        "n_met": sum(frac >= GOAL_FRAC for frac in attained) if attained and not is_full else None,
        "slo_probability": None if is_full else met_probability(judged, GOAL_FRAC),
    }


def spread_of(setups: Sequence[PoolSetup]) -> CostSpread:
    """Return the spread of costs of the pool with the largest spread."""
    spreads = [_spread(setup) for setup in setups]
    return CostSpread(*(max(getattr(each, name) for each in spreads) for name in CostSpread.__dataclass_fields__))


def _spread(setup: PoolSetup) -> CostSpread:
    kv = 0.0 if setup.ledger.verified else KV_SD
    if setup.engine.name == "ideal":
        return CostSpread(0.0, 0.0, 0.0, 0.0, 0.0, kv)
    result = setup.calibration
    if result is None:
        return CostSpread(ROOFLINE_SD, ROOFLINE_SD, ROOFLINE_SD, 2 * HOST_SD, FRONT_END_SD, kv)
    extra = VERSION_SD if setup.calibrated and result.runs is None else SCALED_SD
    matrices = _sd(result, "gemm", setup.weight_dtype) / sqrt(SHAPES)
    if setup.model.experts is not None:  # one kernel takes most of a step
        matrices = max(matrices, _sd(result, "moe", setup.weight_dtype))
    return CostSpread(
        compute=_both(matrices, extra),
        memory=_both(max(matrices, _sd(result, "decode_attention", setup.kv_dtype) / 2), extra),
        link=_both(_sd(result, "all_reduce", str(setup.tensor)), extra),
        host=HOST_SD if setup.calibrated and result.runs is None else 2 * HOST_SD,
        front_end=FRONT_END_SD,
        kv_blocks=kv,
    )


def residual_of(setups: Sequence[PoolSetup]) -> Mapping[str, float]:
    """Return the spread of log ratios on real servers, beyond what perturbed costs show.

    It is that of servers like the fitted ones, beside that between servers where nothing was fitted to such servers; or
    that of runs left out of a card's fit to serving runs, if it is wider in any pool.
    """
    runs = [setup.calibration.runs for setup in setups if setup.calibration is not None]
    spreads = [each.spreads for each in runs if each is not None]
    between = server_errors().of(setups)

    def total(key: str) -> float:
        wait = "ttft_s" if METRIC_OF[key] == "ttft_s" else "tpot_s"
        unlike = hypot(RESIDUAL_SD[key], between[METRIC_OF[key]])
        return max([unlike, *(spread.get(wait, 0.0) for spread in spreads)])

    return {key: total(key) for key in RESIDUAL_SD}


def _sd(calibration: Calibration, op: str, dtype: str) -> float:
    """Return the spread of the log ratio on held-out kernels; the widest of the operation for an untimed dtype."""
    spreads = {key: each for key, each in calibration.spreads.items() if key[0] == op}
    result = [spreads[op, dtype]] if (op, dtype) in spreads else list(spreads.values())
    return max((log(each.p95 / each.p05) / (2 * NormalDist().inv_cdf(0.95)) for each in result), default=0.1)


def _both(one: float, other: float) -> float:
    return sqrt(one * one + other * other)


def draws_of(
    spread: CostSpread, n: int, seed: int, residual: Mapping[str, float] = RESIDUAL_SD
) -> list[tuple[Distortion, dict[str, float]]]:
    """Draw n sets of factors that cover each distribution evenly (a Latin hypercube), and of residual errors."""
    generator = np.random.default_rng([seed, n])
    quantiles = normal_scores(n)

    def logs(sd: float) -> NDArray[np.float64]:
        return sd * generator.permutation(quantiles)

    factors = {name: np.exp(logs(getattr(spread, name))) for name in CostSpread.__dataclass_fields__}
    first, token = logs(1.0), logs(1.0)  # the residual is one error of waits, and one of steps
    return [
        (
            Distortion(**{name: float(values[i]) for name, values in factors.items()}),
            {
                key: exp(sd * float(first[i] if key in ("ttft_s", "queue_s") else token[i]))
                for key, sd in residual.items()
            },
        )
        for i in range(n)
    ]


def normal_scores(n: int) -> list[float]:
    """Return the middles of n equally likely parts of the normal distribution."""
    return [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]


def _figures(results: Results, residual: Mapping[str, float] = NO_RESIDUAL) -> RunFigures:
    """Return the figures of a run when its latencies are off by the residual factors."""
    summary = results.summary
    latencies = {
        key: {level: summary[key][level] * factor for level in LEVELS}
        for key, factor in residual.items()
        if summary[key]["n"]
    }
    of_run = outcomes(summary) if residual is NO_RESIDUAL else _outcomes(results, residual)
    errors = {key: {level: log_error(summary[key], level) for level in levels} for key, levels in latencies.items()}
    return RunFigures(latencies, of_run, summary["requests"]["arrived"], errors)


def log_error(latency: Mapping[str, Any], level: str) -> float:
    """Return the standard error of a latency's logarithm by its interval in the summary; 0 where it has none."""
    low, high = latency["intervals"].get(level) or (0.0, None)
    if not low > 0:
        return 0.0
    return log(latency[level] / low if high is None else high / low) / (1 if high is None else 2) / T_95[max(T_95)]


def _outcomes(results: Results, residual: Mapping[str, float]) -> Outcomes:
    """Return the outcomes of a run when its latencies are off by the residual factors."""
    met, is_far = _met(results, residual), _met(results, residual, FAR_FRAC)
    requests, result = results.columns["requests"], {}
    for name, outcome in outcomes(results.summary).items():
        mine = requests["in_window"] if name is None else requests["in_window"] & of_class(requests, name)
        result[name] = replace(
            outcome,
            attained_frac=float(np.logical_and.reduce(list(met.values()))[mine].mean()),
            by_slo={goal: float(met[goal][mine].mean()) for goal in outcome.by_slo},
            is_far_below=bool(np.logical_and.reduce(list(is_far.values()))[mine].all()),
            interval=None,
        )
    return result


def _met(results: Results, residual: Mapping[str, float], frac: float = 1.0) -> dict[str, Flags]:
    """Return which requests meet that share of the limit of each goal, `(n_requests,)`."""
    slo, slo_classes = results.facts.slo, results.facts.slo_classes

    def nearer(targets: Mapping[str, float]) -> dict[str, float]:
        return {goal: frac * limit / residual[goal] for goal, limit in targets.items()}

    of_classes = {name: nearer(targets) for name, targets in slo_classes.items()}
    return met_by_goal(results.columns["requests"], nearer(slo), of_classes)


def prediction_interval(predicted: float | None, values: Sequence[float]) -> list[float] | None:
    """Return the prediction interval of a percentile: Student's, for the logarithm of one more value."""
    if predicted is None or not predicted > 0 or not all(value > 0 for value in values):
        return None
    logs = np.log(values) - log(predicted)
    half = quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * float(logs.std(ddof=1))
    center = float(logs.mean())
    return [predicted * exp(min(center - half, 0.0)), predicted * exp(max(center + half, 0.0))]
