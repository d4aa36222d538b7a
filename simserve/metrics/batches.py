"""Batches: means of consecutive values, for the standard error of autocorrelated values.

Neighbors in a queue share its state, so a thousand requests may carry the information of ten independent ones. Means
of long batches are nearly independent; their remaining correlation and the skewness of waits are corrected for
(N-Skart: Tafazzoli, Steiger and Wilson, IEEE Transactions on Automatic Control 56, 2011).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
