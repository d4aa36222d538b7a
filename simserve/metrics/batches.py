"""Batches: means of consecutive values, which tell how far off the mean of values that hang together may be.

Neighbors in a queue share its state, so a thousand requests may tell no more than ten independent ones. Means of
long batches hardly hang together; what is left of it, and the skewness of waits, are corrected for (N-Skart: Tafazzoli,
Steiger and Wilson, IEEE Transactions on Automatic Control 56, 2011).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Flags, Floats

T_95: Mapping[int, float] = {20: 2.093024, 8: 2.364624}
"""Two-sided 95% quantiles of Student's t with n - 1 degrees of freedom, by the number n of batches."""

LEAST_PER_BATCH = 8
"""A batch of fewer values than this has no mean worth the name."""

LEAST = min(T_95) * LEAST_PER_BATCH
"""Fewer values have no interval."""

MOST_AUTOCORRELATION = 0.8
"""Of neighboring means; beyond it the correction would be a guess (N-Skart's limit)."""


@dataclass(frozen=True)
class Batches:
    """Values in the order in which they came, as batches of nearly equal size."""

    n: int
    means: Floats
    """Of each batch, `(n_batches,)`."""
    mean: float
    """Of all values."""

    @classmethod
    def of(cls, values: Floats | Flags) -> "Batches | None":
        """None of too few values."""
        n = len(values)
        if n < LEAST:
            return None
        n_batches = max(T_95) if n >= max(T_95) * LEAST_PER_BATCH else min(T_95)
        starts = np.arange(n_batches) * n // n_batches
        means = np.add.reduceat(values, starts, dtype=np.float64) / np.diff(np.append(starts, n))
        return cls(n, means, float(values.mean()))

    @property
    def n_batches(self) -> int:
        """How many."""
        return len(self.means)

    @property
    def t(self) -> float:
        """Student's quantile for so many means."""
        return T_95[self.n_batches]

    @property
    def error(self) -> float:
        """The standard error of the mean, wider by what neighboring batches still have in common (as AR(1))."""
        away = self._away
        squares = float(away @ away)
        if squares == 0:
            return 0.0
        common = min(max(float(away[1:] @ away[:-1]) / squares, 0.0), MOST_AUTOCORRELATION)
        n = self.n_batches
        return math.sqrt(squares / (n - 1) / n * (1 + common) / (1 - common))

    def interval(self) -> tuple[float, float]:
        """95% for the mean: Student's, bent to the side of the skewness of the means."""
        bend = self._skewness / (6 * math.sqrt(self.n_batches))
        return self.mean - _bent(self.t, bend) * self.error, self.mean - _bent(-self.t, bend) * self.error

    @property
    def _away(self) -> Floats:
        away: Floats = self.means - self.means.mean()
        return away

    @property
    def _skewness(self) -> float:
        """Of the means, corrected for their small number."""
        away, n = self._away, self.n_batches
        spread = math.sqrt(float(away @ away) / (n - 1))
        return float((away**3).sum()) * n / ((n - 1) * (n - 2)) / spread**3 if spread > 0 else 0.0


def inefficiency(values: Floats) -> float:
    """How many values tell as much as one independent one, at least 1; 1 where nothing varies."""
    batches, variance = Batches.of(values), float(values.var()) if len(values) else 0.0
    if batches is None or variance == 0:
        return 1.0
    return max(1.0, batches.error**2 * batches.n / variance)


def _bent(t: float, bend: float) -> float:
    """Student's quantile for means with skewness (Willink, Communications in Statistics 34, 2005)."""
    return t if abs(bend) < 1e-6 else (math.cbrt(1 + 6 * bend * (t - bend)) - 1) / (2 * bend)
