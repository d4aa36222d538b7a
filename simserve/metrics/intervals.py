"""Intervals: 95% confidence intervals of a share, a mean or a percentile of one run, from batches of its requests.

Definitions and coverage: docs/statistics.md.

Neighbors in a queue share its state, so a thousand requests may carry the information of ten independent ones. Means
of long batches are nearly independent; their remaining correlation and the skewness of waits are corrected for
(N-Skart: Tafazzoli, Steiger and Wilson, IEEE Transactions on Automatic Control 56, 2011).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simserve.metrics.goal import fewest_for, wilson
from simserve.tables.columns import Flags, Floats

T_95: Mapping[int, float] = {20: 2.093024, 8: 2.364624}
"""Two-sided 95% quantiles of Student's t with n - 1 degrees of freedom, by the number n of batches."""

LEAST_PER_BATCH = 8
"""Fewest values of a batch."""

LEAST = min(T_95) * LEAST_PER_BATCH
"""Fewest values for an interval."""

MOST_AUTOCORRELATION = 0.8
"""Cap on the lag-1 autocorrelation of batch means, beyond which the correction is unreliable (N-Skart's limit)."""


@dataclass(frozen=True)
class Batches:
    """Values in order of arrival, as batches of nearly equal size."""

    n: int
    means: Floats
    """Mean of each batch, `(n_batches,)`."""
    mean: float
    """Mean of all values."""

    @classmethod
    def of(cls, values: Floats | Flags) -> "Batches | None":
        """Divide values into batches; None with too few values."""
        n = len(values)
        if n < LEAST:
            return None
        n_batches = max(T_95) if n >= max(T_95) * LEAST_PER_BATCH else min(T_95)
        starts = np.arange(n_batches) * n // n_batches
        means = np.add.reduceat(values, starts, dtype=np.float64) / np.diff(np.append(starts, n))
        return cls(n, means, float(values.mean()))

    @property
    def n_batches(self) -> int:
        """The number of batches."""
        return len(self.means)

    @property
    def t(self) -> float:
        """Student's quantile for this number of means."""
        return T_95[self.n_batches]

    @property
    def error(self) -> float:
        """The standard error of the mean, corrected for the autocorrelation of neighboring batches (as AR(1))."""
        away = self._away
        squares = float(away @ away)
        if squares == 0:
            return 0.0
        common = min(max(float(away[1:] @ away[:-1]) / squares, 0.0), MOST_AUTOCORRELATION)
        n = self.n_batches
        return math.sqrt(squares / (n - 1) / n * (1 + common) / (1 - common))

    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the mean: Student's, corrected for the skewness of the means."""
        bend = self._skewness / (6 * math.sqrt(self.n_batches))
        return self.mean - _skewed(self.t, bend) * self.error, self.mean - _skewed(-self.t, bend) * self.error

    @property
    def _away(self) -> Floats:
        away: Floats = self.means - self.means.mean()
        return away

    @property
    def _skewness(self) -> float:
        """The skewness of the means, corrected for their small number."""
        away, n = self._away, self.n_batches
        spread = math.sqrt(float(away @ away) / (n - 1))
        return float((away**3).sum()) * n / ((n - 1) * (n - 2)) / spread**3 if spread > 0 else 0.0


def inefficiency(values: Floats) -> float:
    """Return the statistical inefficiency: values per independent value, at least 1; 1 where nothing varies."""
    batches, variance = Batches.of(values), float(values.var()) if len(values) else 0.0
    if batches is None or variance == 0:
        return 1.0
    return max(1.0, batches.error**2 * batches.n / variance)


def _skewed(t: float, bend: float) -> float:
    """Correct Student's quantile for the skewness of means (Willink, Communications in Statistics 34, 2005)."""
    return t if abs(bend) < 1e-6 else (math.cbrt(1 + 6 * bend * (t - bend)) - 1) / (2 * bend)


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
    """Return the standard error of a share, from batches of outcomes. Misses in few batches do not show their
    autocorrelation (no miss yet differs from no miss ever), so that of the requests themselves is used then."""
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
