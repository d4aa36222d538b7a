"""Intervals: 95% confidence intervals of a share, a mean or a percentile of one run.

Definitions and coverage: docs/statistics.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from simserve.metrics.batches import Batches
from simserve.metrics.decision import wilson
from simserve.metrics.goal import fewest_for
from simserve.tables.columns import Flags, Floats

ENOUGH = 50
"""Fewest effective independent requests for intervals of nominal coverage (docs/statistics.md)."""

Ends = tuple[float, float | None]
"""Lower and upper end; no upper end where the run is too short to bound it."""


@dataclass(frozen=True)
class ShareInterval:
    """A confidence interval of a share."""

    low_frac: float
    high_frac: float
    n_batches: int
    correlated: bool
    """Whether the effective sample size is too small, so that the true interval is wider."""


def share_interval(outcomes: Flags, inefficiency: float) -> ShareInterval | None:
    """Return an interval for the share of true outcomes in order of arrival; None with too few.

    Wilson's (1927) for the effective number of independent outcomes, with Student's quantile. The statistical
    `inefficiency` of requests determines it where hardly any batch has both outcomes.
    """
    batches = Batches.of(outcomes)
    if batches is None:
        return None
    frac, n = batches.mean, batches.n
    error = share_error(batches, inefficiency)
    n_effective = frac * (1 - frac) / error**2 if error > 0 else n / inefficiency
    low, high = wilson(frac, n_effective, batches.t)
    return ShareInterval(low, high, batches.n_batches, n / inefficiency < ENOUGH)


def share_error(batches: Batches, inefficiency: float) -> float:
    """Return the standard error of a share, from batches of outcomes.

    Misses in few batches do not show their autocorrelation (no miss yet differs from no miss ever), so that of the
    requests themselves is used then.
    """
    n_mixed = min(np.count_nonzero(batches.means < 1), np.count_nonzero(batches.means > 0))
    alone = math.sqrt(batches.mean * (1 - batches.mean) / batches.n)
    if 2 * n_mixed >= batches.n_batches:
        return batches.error or alone
    return max(batches.error, alone * math.sqrt(inefficiency))


def mean_interval(values: Floats) -> Ends | None:
    """Return the interval of the mean of non-negative values in order of arrival; None with too few."""
    batches = Batches.of(values)
    if batches is None:
        return None
    low, high = batches.interval()
    return max(0.0, low), high


def percentile_interval(values: Floats, ordered: Floats, level: float, inefficiency: float) -> Ends | None:
    """Return the interval of a percentile, level 0..100; None where too few values lie beyond it.

    values: in order of arrival; ordered: sorted. The ends are the order statistics at the level minus and plus the
    error of the share below the percentile.
    """
    n, frac = len(values), level / 100
    if n < fewest_for(level):
        return None
    batches = Batches.of(values <= np.percentile(ordered, level))
    if batches is None:
        return None
    half = batches.t * share_error(batches, inefficiency)
    low, high = math.floor((frac - half) * (n - 1)), math.ceil((frac + half) * (n - 1))
    return float(ordered[low]) if low >= 0 else 0.0, float(ordered[high]) if high < n else None
