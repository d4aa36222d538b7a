"""Statistics: distributions, percentiles as numpy's, and intervals for the mean of outcomes that hang together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Floats

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
"""What every latency is reported at."""

FEW_FOR_P99 = 1000
"""Below so many requests a p99 rests on fewer than ten of them, and is a guess."""

Z_95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""

T_95: Mapping[int, float] = {32: 2.039513, 16: 2.131450, 8: 2.364624}
"""Two-sided 95 % quantiles of Student's t with n - 1 degrees of freedom, by the number n of batches."""

LEAST_PER_BATCH = 8
"""A batch of fewer outcomes than this has no mean worth the name."""


@dataclass(frozen=True)
class Distribution:
    """What is reported of a sample; all NaN for an empty one."""

    n: int
    mean: float
    std: float
    """The population's, as numpy's and vLLM's."""
    percentiles: Mapping[float, float]
    """By level 0..100."""
    highest: float


EMPTY = Distribution(0, math.nan, math.nan, dict.fromkeys(PERCENTILES, math.nan), math.nan)
"""The distribution of nothing."""


def level_name(level: float) -> str:
    """`p50`, `p99.9`."""
    return f"p{level:g}"


def distribution(values: Floats) -> Distribution:
    """The distribution of a sample `(n,)` without NaN."""
    if not len(values):
        return EMPTY
    levels = np.percentile(values, PERCENTILES)
    percentiles = dict(zip(PERCENTILES, levels.tolist(), strict=True))
    return Distribution(len(values), float(values.mean()), float(values.std()), percentiles, float(values.max()))


def interpolated(below: float, above: float, weight: float) -> float:
    """Between two neighbours as `numpy.percentile` does it, to the last bit."""
    step = above - below
    return above - step * (1 - weight) if weight >= 0.5 else below + step * weight


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval of a share."""

    low_frac: float
    high_frac: float
    n_batches: int
    correlated: bool
    """Even the longest batches hang together, so the true interval is wider."""


def share_interval(outcomes: Floats) -> Interval | None:
    """An interval for the mean of 0/1 outcomes in the order of arrival; None if there are too few.

    Batch means (Law & Kelton): outcomes of neighbours in a queue hang together, the means of long batches hardly do.
    Batches are made longer, 32 of them, then 16, then 8, until neighbours no longer correlate. Never narrower than
    Wilson's interval for independent outcomes, which is right when all batches are alike (all met).
    """
    counts = [n for n in T_95 if len(outcomes) >= n * LEAST_PER_BATCH]
    if not counts:
        return None
    for n_batches in counts:
        means = _batch_means(outcomes, n_batches)
        # Of independent means it is beyond this in one of twenty cases, one-sided.
        is_correlated = _lag_one(means) > 1.645 / math.sqrt(n_batches)
        if not is_correlated:
            break
    mean = float(outcomes.mean())
    half = T_95[n_batches] * float(means.std(ddof=1)) / math.sqrt(n_batches)
    low, high = wilson(mean, len(outcomes))
    return Interval(max(0.0, min(mean - half, low)), min(1.0, max(mean + half, high)), n_batches, is_correlated)


def wilson(frac: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share of n independent outcomes (Wilson 1927)."""
    scale = 1 + Z_95**2 / n
    centre = (frac + Z_95**2 / (2 * n)) / scale
    half = Z_95 / scale * math.sqrt(frac * (1 - frac) / n + Z_95**2 / (4 * n * n))
    return max(0.0, min(frac, centre - half)), min(1.0, max(frac, centre + half))


def _batch_means(outcomes: Floats, n_batches: int) -> Floats:
    """Means of consecutive batches of nearly equal size, `(n_batches,)`."""
    starts = np.arange(n_batches) * len(outcomes) // n_batches
    sizes = np.diff(np.append(starts, len(outcomes)))
    means: Floats = np.add.reduceat(outcomes, starts) / sizes
    return means


def _lag_one(means: Floats) -> float:
    """Correlation of neighbours; 0 where nothing varies."""
    deviations = means - means.mean()
    variance = float(deviations @ deviations)
    return float(deviations[1:] @ deviations[:-1]) / variance if variance > 0 else 0.0
