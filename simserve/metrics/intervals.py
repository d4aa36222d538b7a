"""Intervals: how far a share, a mean or a percentile of one run may be off by chance, at 95%.

What each means, and how often it holds the truth: docs/statistics.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from simserve.metrics.batches import Batches
from simserve.metrics.decision import wilson
from simserve.tables.columns import Flags, Floats

LEAST_BEYOND = 10
"""A percentile rests on so many values beyond it at least: a p99 on 1,000 values, a p99.9 on 10,000."""

ENOUGH = 50
"""Independent requests that a run must be worth for its intervals to be as wide as they should (docs/statistics.md)."""

Ends = tuple[float, float | None]
"""Low and high; no high end where the run is too short to bound it above."""


@dataclass(frozen=True)
class ShareInterval:
    """Of a share."""

    low_frac: float
    high_frac: float
    n_batches: int
    correlated: bool
    """The run is worth too few independent requests, so the true interval is wider."""


def share_interval(outcomes: Flags, inefficiency: float) -> ShareInterval | None:
    """An interval for the share of true outcomes in the order of arrival; None if there are too few.

    Wilson's (1927), for as many independent outcomes as would err as much as these do, with Student's quantile. `hang`
    is how many requests tell as much as one independent one, which counts where hardly any batch has both outcomes.
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
    """The standard error of a share, from batches of outcomes.

    Misses that fell into few batches do not tell how they cluster: no miss yet is not as good as no miss ever. They are
    then taken to hang together as much as the requests themselves.
    """
    n_mixed = min(np.count_nonzero(batches.means < 1), np.count_nonzero(batches.means > 0))
    alone = math.sqrt(batches.mean * (1 - batches.mean) / batches.n)
    if 2 * n_mixed >= batches.n_batches:
        return batches.error or alone
    return max(batches.error, alone * math.sqrt(inefficiency))


def mean_interval(values: Floats) -> Ends | None:
    """Of the mean of values that cannot be negative, in the order of arrival; None if there are too few."""
    batches = Batches.of(values)
    if batches is None:
        return None
    low, high = batches.interval()
    return max(0.0, low), high


def percentile_interval(values: Floats, ordered: Floats, level: float, inefficiency: float) -> Ends | None:
    """Of a percentile, level 0..100; None where too few values lie beyond it.

    values: in the order of arrival; ordered: the same from the lowest up. The share of values below the percentile
    errs by so much; the order statistics at the shares that far below and above it are the ends.
    """
    n, frac = len(values), level / 100
    if n * (1 - frac) < LEAST_BEYOND * (1 - 1e-9):
        return None
    batches = Batches.of(values <= np.percentile(ordered, level))
    if batches is None:
        return None
    half = batches.t * share_error(batches, inefficiency)
    low, high = math.floor((frac - half) * (n - 1)), math.ceil((frac + half) * (n - 1))
    return float(ordered[low]) if low >= 0 else 0.0, float(ordered[high]) if high < n else None
