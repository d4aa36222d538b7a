"""Draws of costs: factors on compute, memory, links, host, front end and KV blocks, all at once, and residual errors.

The factors are as wide as the held-out errors of kernels and servers. Every latency is off once more, by the residual
error on real servers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import exp, hypot, log, sqrt
from statistics import NormalDist

import numpy as np

from simserve.cost.calibration import Calibration
from simserve.scenario import PoolSetup, Scenario
from simserve.scenario.server_errors import WITHIN_SD, server_errors
from simserve.scenario.setup import Distortion
from simserve.tables.columns import Floats

REPLAYS, MOST_REPLAYS = 8, 10**6
"""Default number of replays, and more than any scenario has."""

CONFIDENCE = 0.9
"""Confidence of intervals over draws."""

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

Draw = tuple[Distortion, Mapping[str, float]]
"""Factors on costs, and residual errors of latencies."""

FACTORS = tuple(Distortion.__dataclass_fields__)


@dataclass(frozen=True)
class CostSpread:
    """Standard deviations of the logs of the factors."""

    compute: float
    memory: float
    link: float
    host: float
    front_end: float
    kv_blocks: float
    sources: Mapping[str, str] = field(default_factory=dict)
    """What each is an error of, such as a fit: whatever has the same error has the same draws of it."""


def draws_for(scenario: Scenario, most: int = MOST_REPLAYS) -> Sequence[Draw]:
    """Return the draws of a scenario's replays, so many at most; none where it wants no replays."""
    n = min(most, REPLAYS if scenario.measure.replays is None else scenario.measure.replays)
    return draws_of(spread_of(scenario.setups), n, scenario.seed, residual_of(scenario.setups)) if n > 1 else ()


def reach_of(setups: Sequence[PoolSetup]) -> float:
    """Return the distance from capacity, as a logarithm, beyond which costs do not matter."""
    spread = spread_of(setups)
    costs = max(spread.compute, spread.memory, spread.host / 2)
    return min(max(3 * hypot(costs, residual_of(setups)["tpot_s"]), LEAST_REACH), MOST_REACH)


def spread_of(setups: Sequence[PoolSetup]) -> CostSpread:
    """Return the spread of each cost in the pool where it is largest."""
    spreads = [_spread(setup) for setup in setups]
    widest = {name: max(spreads, key=lambda each, name=name: getattr(each, name)) for name in FACTORS}  # type: ignore[misc]
    sources = {name: each.sources[name] for name, each in widest.items()}
    return CostSpread(**{name: getattr(each, name) for name, each in widest.items()}, sources=sources)


def _spread(setup: PoolSetup) -> CostSpread:
    kv, sources = 0.0 if setup.ledger.verified else KV_SD, _sources(setup)
    if setup.engine.name == "ideal":
        return CostSpread(0.0, 0.0, 0.0, 0.0, 0.0, kv, sources)
    result = setup.calibration
    if result is None:
        return CostSpread(ROOFLINE_SD, ROOFLINE_SD, ROOFLINE_SD, 2 * HOST_SD, FRONT_END_SD, kv, sources)
    extra = VERSION_SD if setup.calibrated and result.runs is None else SCALED_SD
    matrices = _sd(result, "gemm", setup.weight_dtype) / sqrt(SHAPES)
    if setup.model.experts is not None:  # one kernel takes most of a step
        matrices = max(matrices, _sd(result, "moe", setup.weight_dtype))
    return CostSpread(
        compute=_both(matrices, extra),
        memory=_both(max(matrices, _sd(result, "decode_attention", setup.kv_dtype) / 2), extra),
        link=_both(_sd(result, "all_reduce", str(setup.parallel.tensor)), extra),
        host=HOST_SD if setup.calibrated and result.runs is None else 2 * HOST_SD,
        front_end=FRONT_END_SD,
        kv_blocks=kv,
        sources=sources,
    )


def _sources(setup: PoolSetup) -> Mapping[str, str]:
    """Return what the errors of a pool's costs are errors of."""
    fit, engine = setup.calibration, setup.engine.name
    kernels = f"roofline of {setup.gpu.name}" if fit is None else f"{fit.sha256} on {setup.gpu.name}"
    return {
        "compute": f"compute {kernels} {setup.weight_dtype}",
        "memory": f"memory {kernels} {setup.weight_dtype} {setup.kv_dtype}",
        "link": f"link {kernels} {setup.parallel.tensor}",
        "host": f"host {engine} {None if fit is None else fit.host_version}",
        "front_end": f"front end {engine}",
        "kv_blocks": f"KV blocks {engine}",
    }


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


def draws_of(spread: CostSpread, n: int, seed: int, residual: Mapping[str, float] = RESIDUAL_SD) -> list[Draw]:
    """Draw n sets of factors that cover each distribution evenly (a Latin hypercube), and of residual errors.

    Each factor has a stream of its own, named by what it is an error of, so that two scenarios share its draws just
    where they share the error.
    """
    quantiles = np.array(normal_scores(n))

    def scores(source: str) -> Floats:
        name = int.from_bytes(sha256(source.encode()).digest()[:8])
        return np.random.default_rng([seed, n, name]).permutation(quantiles)

    factors = {name: np.exp(getattr(spread, name) * scores(spread.sources.get(name, name))) for name in FACTORS}
    first, token = scores("waits"), scores("steps")  # the residual is one error of waits, and one of steps
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
