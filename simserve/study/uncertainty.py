"""Uncertainty: how far the answer may be off because step costs are, found by replays with costs that are off.

Each replay distorts compute, memory, links, host, front end and KV blocks at once, by factors as wide as held-out
kernels and servers were off, and every latency once more by what was left over when real servers were predicted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.cost.calibration import Calibration
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import all_met, met_by_goal
from simserve.metrics.results import Results
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.distortion import Distortion
from simserve.simulate import simulate

REPLAYS = 8
"""Unless a scenario says how many."""

MOST_REQUESTS = 20_000
"""Longer runs are not replayed unless the scenario asks for it: that would take many times as long as the run."""

CONFIDENCE = 0.9

SHAPES = 4
"""Matrices of a layer: errors of kernels cancel in part over so many."""

VERSION_SD = 0.03
"""Of kernels between two versions of an engine; two campaigns on the same card differ by 5% (bf16)."""

SCALED_SD = 0.15
"""Of kernels scaled from another card by the data sheet."""

ROOFLINE_SD = 0.25
"""Of a roofline with assumed efficiencies."""

HOST_SD = 0.2
FRONT_END_SD = 0.5
"""Of constants that few runs tell: those fitted without a group of runs differ so much between groups."""

KV_SD = 0.04
"""Of a computed number of KV blocks."""

LEFT_OVER_SD: Mapping[str, float] = {"ttft_s": 0.13, "queue_s": 0.13, "tpot_s": 0.025, "itl_s": 0.025, "e2e_s": 0.03}
"""Of the log ratio of predicted to measured, for servers whose constants were fitted to others (docs/validation.md)."""

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
    """Put `prediction` into the summary of a run: intervals of all percentiles, and the probability of meeting the SLO.

    null where nothing is replayed. Deterministic: the factors come from the scenario's seed. `told` hears of each
    replay done, and how many there are.
    """
    n_replays = replays_of(scenario, len(results.columns["requests"]["arrival_s"]))
    results.summary["prediction"] = _prediction(scenario, results, n_replays, progress) if n_replays > 1 else None


def _prediction(
    scenario: Scenario, results: Results, n_replays: int, progress: Callable[[int, int], None] | None
) -> dict[str, Any]:
    replays = []
    for distortion, left_over in _draws(spread_of(scenario.setups), n_replays, scenario.seed):
        replays.append(_Replay.of(simulate(scenario, distortion=distortion), left_over))
        if progress:
            progress(len(replays), n_replays)
    attained = [replay.attainment for replay in replays if replay.attainment is not None]
    n_met = sum(share >= GOAL_FRAC for share in attained)
    return {
        "replays": n_replays,
        "confidence": CONFIDENCE,
        "latencies": {
            key: {
                level: _interval(results.summary[key][level], [r.latencies[key][level] for r in replays])
                for level in LEVELS
            }
            for key in LEFT_OVER_SD
            if results.summary[key]["n"] and all(key in replay.latencies for replay in replays)
        },
        "attainment": [min(attained), max(attained)] if attained else None,
        "slo_probability": (n_met + 1) / (len(attained) + 2) if attained else None,
    }


def replays_of(scenario: Scenario, n_requests: int) -> int:
    """As many as the scenario asks for; if it says nothing, some for a run that is short enough."""
    requested = scenario.measure.replays
    return requested if requested is not None else REPLAYS if n_requests <= MOST_REQUESTS else 0


def spread_of(setups: Sequence[PoolSetup]) -> CostSpread:
    """How well the costs of the least known pool are known."""
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
    """Of the log ratio on held-out kernels; the widest of the operation for a dtype that was not timed."""
    spreads = {key: each for key, each in calibration.spreads.items() if key[0] == op}
    result = [spreads[op, dtype]] if (op, dtype) in spreads else list(spreads.values())
    return max((log(each.p95 / each.p05) / (2 * NormalDist().inv_cdf(0.95)) for each in result), default=0.1)


def _both(one: float, other: float) -> float:
    return sqrt(one * one + other * other)


def _draws(spread: CostSpread, n: int, seed: int) -> list[tuple[Distortion, dict[str, float]]]:
    """n sets of factors that cover each distribution evenly (a Latin hypercube), and of left-over errors."""
    generator = np.random.default_rng([seed, n])
    quantiles = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]

    def logs(sd: float) -> NDArray[np.float64]:
        return sd * generator.permutation(quantiles)

    factors = {name: np.exp(logs(getattr(spread, name))) for name in CostSpread.__dataclass_fields__}
    first, token = logs(1.0), logs(1.0)  # what is left over is one error of waits, and one of steps
    return [
        (
            Distortion(**{name: float(values[i]) for name, values in factors.items()}),
            {
                key: exp(sd * float(first[i] if key in ("ttft_s", "queue_s") else token[i]))
                for key, sd in LEFT_OVER_SD.items()
            },
        )
        for i in range(n)
    ]


@dataclass(frozen=True)
class _Replay:
    """What one replay came to."""

    latencies: Mapping[str, Mapping[str, float]]
    attainment: float | None

    @classmethod
    def of(cls, results: Results, left_over: Mapping[str, float]) -> "_Replay":
        latencies = {
            key: {level: results.summary[key][level] * factor for level in LEVELS}
            for key, factor in left_over.items()
            if results.summary[key]["n"]
        }
        return cls(latencies, _attainment(results, left_over))


def _attainment(results: Results, left_over: Mapping[str, float]) -> float | None:
    """The share of the window's requests that meet every SLO when their latencies are off by the left-over factors."""
    slo, slo_classes = results.facts.slo, results.facts.slo_classes
    if not slo and not slo_classes:
        return None
    requests = results.columns["requests"]
    factors = {"itl_s": left_over["itl_s"], **left_over}

    def nearer(targets: Mapping[str, float]) -> dict[str, float]:
        return {goal: limit / factors[goal] for goal, limit in targets.items()}

    of_classes = {name: nearer(targets) for name, targets in slo_classes.items()}
    met = all_met(met_by_goal(requests, nearer(slo), of_classes))
    window = requests["in_window"]
    return None if met is None or not window.any() else float(met[window].mean())


def _interval(predicted: float | None, values: Sequence[float]) -> list[float] | None:
    """Where the percentile lies with the given confidence: Student's interval of one more value, in logs."""
    if predicted is None or not predicted > 0 or not all(value > 0 for value in values):
        return None
    logs = np.log(values) - log(predicted)
    half = _student((1 + CONFIDENCE) / 2, len(logs) - 1) * float(logs.std(ddof=1))
    center = float(logs.mean())
    return [predicted * exp(min(center - half, 0.0)), predicted * exp(max(center + half, 0.0))]


def _student(share: float, n_free: int) -> float:
    """A quantile of Student's t to 1% from four degrees of freedom on (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(share)
    return z + (z**3 + z) / (4 * n_free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n_free**2)
