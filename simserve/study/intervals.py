"""Confidence intervals of means over independent runs, and of figures of one run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simserve.metrics.answer import CONFIDENCE as CONFIDENCE
from simserve.metrics.answer import Z_95 as Z_95
from simserve.metrics.goal import wilson
from simserve.metrics.student import quantile
from simserve.tables.columns import Flags, Floats, Ints

BLOCKS = 20
"""Blocks of one run, left out one at a time."""

LEAST_PER_BLOCK = 20
"""Requests; shorter blocks are correlated with their neighbors."""

FEW_MISSES = 20
"""Independent misses below which the spread over runs does not tell how far a share may be off."""

LEAST_BEYOND_A_RUN = 2.0
"""Independent requests beyond a percentile that a run needs: with 1.5–3, 95% intervals over replications of M/M/1
contain the truth in 93–95%, with 1 in 88%, with 0.3 in 71% (docs/statistics.md)."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its confidence interval; NaN ends where the sampling noise is unknown."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether its ends are known."""
        return not math.isnan(self.low)

    @property
    def is_sure(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.low > 0 or self.high < 0


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values with Student's interval (Law & Kelton, 9.4.1); one value has none."""
    sample = np.array(values, np.float64)
    mean, n = float(sample.mean()), len(sample)
    if n < 2 or math.isnan(mean):
        return Estimate(mean, math.nan, math.nan)
    return around(mean, float(sample.std(ddof=1)) / math.sqrt(n), n - 1)


def share_of(values: Sequence[float], n_effective: float) -> Estimate:
    """Return the mean of shares of independent runs with n_effective independent requests in all. Where misses are few,
    most runs have none, and their spread is too small: the interval is then at least Wilson's for all runs together."""
    result = mean_of(values)
    if not result.has_interval:
        return result
    frac, low, high = min(max(result.value, 0.0), 1.0), max(result.low, 0.0), min(result.high, 1.0)
    if n_effective > 0 and n_effective * min(frac, 1 - frac) < FEW_MISSES:
        of_all = wilson(frac, n_effective, Z_95)
        low, high = min(low, of_all[0]), max(high, of_all[1])
    return Estimate(result.value, low, high)


def percentile_of(values: Sequence[float], share_beyond: float, n_effective: float) -> Estimate:
    """Return the mean of a percentile of independent runs, each with this effective sample size.

    In runs too short for it a percentile is biased low, however many runs there are: the interval then has no high end.
    Its low end is at least 0, as is a latency.
    """
    result = mean_of(values)
    is_short = result.has_interval and n_effective * share_beyond < LEAST_BEYOND_A_RUN
    return Estimate(result.value, float(np.maximum(result.low, 0.0)), math.inf if is_short else result.high)


def around(value: float, error: float, n_free: int) -> Estimate:
    """Return Student's interval of a value, from its standard error and degrees of freedom."""
    half = quantile((1 + CONFIDENCE) / 2, n_free) * error
    return Estimate(value, value - half, value + half)


def median_rank(n: int) -> int | None:
    """Return the rank, from both ends of n independent values, that encloses the median with CONFIDENCE.

    None: too few values.
    """
    below = np.cumsum([math.comb(n, k) for k in range(n // 2 + 1)], dtype=object) / 2**n
    return max((rank for rank in range(1, n // 2 + 1) if below[rank - 1] <= (1 - CONFIDENCE) / 2), default=None)


def blocks_of(n: int) -> Ints | None:
    """Return the block of each of n requests in the order of arrival, `(n,)`; None if they are too few."""
    return np.arange(n) * BLOCKS // n if n >= BLOCKS * LEAST_PER_BLOCK else None


def leave_one_out(figure: Callable[[Flags], float], blocks: Ints) -> Floats:
    """Return a figure of all requests without those of each block in turn, `(BLOCKS,)`.

    `figure` takes which requests count, `(n,)`. Neighbors are correlated mostly within a block, so leaving out whole
    blocks shows how the figure varies although requests are autocorrelated (Künsch 1989).
    """
    return np.array([figure(blocks != block) for block in range(BLOCKS)])


def standard_error(without: Floats) -> float:
    """Return the standard error of a figure, from its values without each block, `(n_blocks,)`."""
    n = len(without)
    return math.sqrt((n - 1) / n * float(np.square(without - without.mean()).sum()))
