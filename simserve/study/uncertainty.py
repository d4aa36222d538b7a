"""Uncertainty: replays of a run with loads and costs of their own, for prediction intervals and the answer.

Each replay perturbs compute, memory, links, host, front end and KV blocks at once, by factors as wide as the held-out
errors of kernels and servers, and every latency once more by the residual error on real servers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.cost.calibration import Calibration
from simserve.metrics.answer import FAR_FRAC, Outcomes, outcomes, queue_over, worst_class
from simserve.metrics.classes import of_class
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import met_by_goal
from simserve.metrics.results import Results
from simserve.metrics.student import quantile
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.distortion import Distortion
from simserve.simulation import simulate
from simserve.study.nominal import answer_over, met_probability
from simserve.tables.columns import Flags

REPLAYS = 8
"""Default number of replays."""

MOST_REQUESTS = 20_000
"""Longest run that is replayed by default; replays take many times as long as the run."""

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

RESIDUAL_SD: Mapping[str, float] = {"ttft_s": 0.13, "queue_s": 0.13, "tpot_s": 0.025, "itl_s": 0.025, "e2e_s": 0.03}
"""Spread of the log ratio of predicted to measured, for servers left out of the fit (docs/validation.md)."""

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


def predict(scenario: Scenario, results: Results, progress: Callable[[int, int], None] | None = None) -> None:
    """Put `prediction` and the `answer` of the replays into the summary of a run.

    Each replay draws a load of its own, with the seeds after the scenario's, beside costs of its own. `prediction` is
    null where nothing is replayed; the answer is then that of the run. Deterministic: the factors come from the
    scenario's seed. `progress` is called after each replay, with how many are done and how many there are.
    """
    n_replays = replays_of(scenario, len(results.columns["requests"]["arrival_s"]))
    results.summary["prediction"] = None
    if n_replays < 2:
        return
    replays: list[_Replay] = []
    for distortion, residual in _draws(spread_of(scenario.setups), n_replays, scenario.seed):
        reseeded = scenario.model_copy(update={"seed": scenario.seed + len(replays) + 1})
        replays.append(_Replay.of(simulate(reseeded, distortion=distortion), residual))
        if progress:
            progress(len(replays), n_replays)
    results.summary["prediction"] = _prediction(results, replays)
    results.summary["answer"] = answer_over(_all_runs(results, replays), GOAL_FRAC, "replays")


def _prediction(results: Results, replays: Sequence["_Replay"]) -> dict[str, Any]:
    runs = _all_runs(results, replays)
    name = worst_class(runs)
    judged = [run[name] for run in runs if name in run]
    is_full = queue_over(each.queue for each in judged) in ("growing", "critical")  # attainment then depends on length
    attained = [replay.outcomes[name].attained_frac for replay in replays if name in replay.outcomes]
    return {
        "replays": len(replays),
        "confidence": CONFIDENCE,
        "latencies": {
            key: {
                level: _interval(results.summary[key][level], [r.latencies[key][level] for r in replays])
                for level in LEVELS
            }
            for key in RESIDUAL_SD
            if results.summary[key]["n"] and all(key in replay.latencies for replay in replays)
        },
        "attainment": [min(attained), max(attained)] if attained else None,
        "n_met": sum(frac >= GOAL_FRAC for frac in attained) if attained and not is_full else None,
        "slo_probability": None if is_full else met_probability(judged, GOAL_FRAC),
    }


def _all_runs(results: Results, replays: Sequence["_Replay"]) -> list[Outcomes]:
    return [outcomes(results.summary), *(replay.outcomes for replay in replays)]


def replays_of(scenario: Scenario, n_requests: int) -> int:
    """Return the number of replays: as the scenario says, by default REPLAYS for a run that is short enough."""
    requested = scenario.measure.replays
    return requested if requested is not None else REPLAYS if n_requests <= MOST_REQUESTS else 0


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
    extra = VERSION_SD if setup.calibrated else SCALED_SD
    matrices = _sd(result, "gemm", setup.weight_dtype) / sqrt(SHAPES)
    if setup.model.experts is not None:  # one kernel takes most of a step
        matrices = max(matrices, _sd(result, "moe", setup.weight_dtype))
    return CostSpread(
        compute=_both(matrices, extra),
        memory=_both(max(matrices, _sd(result, "decode_attention", setup.kv_dtype) / 2), extra),
        link=_both(_sd(result, "all_reduce", str(setup.tensor)), extra),
        host=HOST_SD if setup.calibrated else 2 * HOST_SD,
        front_end=FRONT_END_SD,
        kv_blocks=kv,
    )


def _sd(calibration: Calibration, op: str, dtype: str) -> float:
    """Return the spread of the log ratio on held-out kernels; the widest of the operation for an untimed dtype."""
    spreads = {key: each for key, each in calibration.spreads.items() if key[0] == op}
    result = [spreads[op, dtype]] if (op, dtype) in spreads else list(spreads.values())
    return max((log(each.p95 / each.p05) / (2 * NormalDist().inv_cdf(0.95)) for each in result), default=0.1)


def _both(one: float, other: float) -> float:
    return sqrt(one * one + other * other)


def _draws(spread: CostSpread, n: int, seed: int) -> list[tuple[Distortion, dict[str, float]]]:
    """Draw n sets of factors that cover each distribution evenly (a Latin hypercube), and of residual errors."""
    generator = np.random.default_rng([seed, n])
    quantiles = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]

    def logs(sd: float) -> NDArray[np.float64]:
        return sd * generator.permutation(quantiles)

    factors = {name: np.exp(logs(getattr(spread, name))) for name in CostSpread.__dataclass_fields__}
    first, token = logs(1.0), logs(1.0)  # the residual is one error of waits, and one of steps
    return [
        (
            Distortion(**{name: float(values[i]) for name, values in factors.items()}),
            {
                key: exp(sd * float(first[i] if key in ("ttft_s", "queue_s") else token[i]))
                for key, sd in RESIDUAL_SD.items()
            },
        )
        for i in range(n)
    ]


@dataclass(frozen=True)
class _Replay:
    """The latencies and outcomes of one replay."""

    latencies: Mapping[str, Mapping[str, float]]
    outcomes: Outcomes

    @classmethod
    def of(cls, results: Results, residual: Mapping[str, float]) -> "_Replay":
        latencies = {
            key: {level: results.summary[key][level] * factor for level in LEVELS}
            for key, factor in residual.items()
            if results.summary[key]["n"]
        }
        return cls(latencies, _outcomes(results, residual))


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


def _interval(predicted: float | None, values: Sequence[float]) -> list[float] | None:
    """Return the prediction interval of a percentile: Student's, for the logarithm of one more value."""
    if predicted is None or not predicted > 0 or not all(value > 0 for value in values):
        return None
    logs = np.log(values) - log(predicted)
    half = quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * float(logs.std(ddof=1))
    center = float(logs.mean())
    return [predicted * exp(min(center - half, 0.0)), predicted * exp(max(center + half, 0.0))]
