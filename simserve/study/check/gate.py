"""Gate: by how much one side's p99 goodput falls short of another's, and when that is more than chance.

Both sides are run at the same loads with the same seeds, so that most of what chance does, it does to both. The loss is
the logarithm of the ratio of two roots, the rates at which the goal is just met; its error comes from leaving out the
same seed on both sides. What does not change at all loses exactly nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from simserve.study.intervals import CONFIDENCE, standard_error
from simserve.tables.columns import Floats, Ints

FALSE_ALARMS = 0.001
"""Probability that a change which loses no more than the tolerance fails, all looks together."""

FOUND = 0.95
"""Probability of detecting a loss of the smallest detectable size."""

FAR = 3.0
"""Logits between a goal and what a few seeds attained, that more seeds do not make up: 20 times as many misses."""

Answer = Literal["fail", "pass", "open"]

ControlVariate = Sequence[Floats]
"""Covariates of the baseline's seeds and of the candidate's."""


@dataclass(frozen=True)
class AttainmentCurve:
    """Attainment of one side at two loads, between which it stops meeting the goal; the same seeds at both."""

    scales: tuple[float, float]
    """Loads as multiples of the scenario's own rates, the lower first."""
    n_met: Ints
    """Requests that met every SLO, `(2, n_seeds)`."""
    n_arrived: Ints
    """Requests that arrived, `(2, n_seeds)`."""
    seeds: tuple[int, ...]

    def log_root(self, goal_frac: float) -> float:
        """Return the logarithm of the scale that just meets the goal, on a line through the logits of misses."""
        return float(self._roots(goal_frac, self._missed.sum(axis=1), self.n_arrived.sum(axis=1)))

    def log_roots_without(self, goal_frac: float) -> Floats:
        """Return `log_root` without each seed in turn, `(n_seeds,)`."""
        rest = (counts.sum(axis=1, keepdims=True) - counts for counts in (self._missed, self.n_arrived))
        return self._roots(goal_frac, *rest)

    def reaches(self, goal_frac: float) -> bool:
        """Return whether the goal lies between the loads, or at most half their distance beyond: a line serves."""
        near, far = self._beyond(goal_frac, self._missed.sum(axis=1), self.n_arrived.sum(axis=1))
        return bool(far > near and -0.5 <= -near / (far - near) <= 1.5)

    def is_far(self, goal_frac: float) -> bool:
        """Return whether the goal lies so far from both loads that no further seeds could bring it near."""
        near, far = self._beyond(goal_frac, self._missed.sum(axis=1), self.n_arrived.sum(axis=1))
        return bool(min(abs(near), abs(far)) > FAR and near * far > 0)

    def is_like(self, other: "AttainmentCurve") -> bool:
        """Return whether both have the same loads and outcomes."""
        pairs = ((self.n_met, other.n_met), (self.n_arrived, other.n_arrived))
        return self.scales == other.scales and all(np.array_equal(*pair) for pair in pairs)

    def rise(self) -> float:
        """Return the logits by which the share of misses grows from one load to the other."""
        below, above = _logits(self._missed.sum(axis=1), self.n_arrived.sum(axis=1))
        return float(above - below)

    @property
    def _missed(self) -> Ints:
        return self.n_arrived - self.n_met

    def _roots(self, goal_frac: float, missed: Ints, arrived: Ints) -> Floats:
        near, far = self._beyond(goal_frac, missed, arrived)
        low, high = map(math.log, self.scales)
        flat = near == far
        way: Floats = np.where(flat, 0.5, near / np.where(flat, 1.0, near - far))
        return low + (high - low) * way

    @staticmethod
    def _beyond(goal_frac: float, missed: Ints, arrived: Ints) -> Floats:
        """Return the logits of misses less those of the goal, at both loads, `(2, ...)`."""
        return _logits(missed, arrived) - math.log((1 - goal_frac) / goal_frac)


def _logits(missed: Ints, arrived: Ints) -> Floats:
    """Return the logits of the share that missed, half a request added on both sides to keep them finite."""
    odds: Floats = (missed + 0.5) / (arrived - missed + 0.5)
    return np.log(odds)


@dataclass(frozen=True)
class Loss:
    """Loss of p99 goodput by the candidate; negative for a gain."""

    log: float
    """log(baseline / candidate)."""
    error: float
    """Standard error of log, with n_free degrees of freedom."""
    n_free: float
    is_paired: bool
    """Both sides had the same seeds."""

    @property
    def frac(self) -> float:
        """Return the loss as a share of the baseline's."""
        return -math.expm1(-self.log)

    def at_least(self, doubt: float) -> float:
        """Return its one-sided lower limit at that significance."""
        return -math.expm1(-(self.log - self._reach(doubt)))

    def at_most(self, doubt: float) -> float:
        """Return its one-sided upper limit at that significance."""
        return -math.expm1(-(self.log + self._reach(doubt)))

    def interval(self) -> tuple[float, float]:
        """Return its interval at CONFIDENCE."""
        return self.at_least((1 - CONFIDENCE) / 2), self.at_most((1 - CONFIDENCE) / 2)

    def smallest_found(self, tolerance_frac: float, doubt: float) -> float:
        """Return the loss that would fail with probability FOUND at this standard error."""
        reach = self._reach(doubt) + self._reach(1 - FOUND)
        return -math.expm1(math.log1p(-tolerance_frac) - reach)

    def _reach(self, doubt: float) -> float:
        return float(stdtrit(self.n_free, 1 - doubt)) * self.error if self.error else 0.0


def loss_between(
    baseline: AttainmentCurve, candidate: AttainmentCurve, goal_frac: float, control: ControlVariate | None = None
) -> Loss:
    """Return the loss, seed by seed where both sides had the same seeds, else as of independent samples. `control` says
    how hard each seed of either side happened to be, whatever the server; without it, it counts as noise."""
    value = baseline.log_root(goal_frac) - candidate.log_root(goal_frac)
    without = [side.log_roots_without(goal_frac) for side in (baseline, candidate)]
    if baseline.seeds == candidate.seeds:
        lost = without[0] - without[1]
        return Loss(value, standard_error(lost), _n_free(lost - lost.mean(), 1), is_paired=True)
    return _unpaired(value, without, control or tuple(np.zeros(len(each)) for each in without))


def answer(loss: Loss, tolerance_frac: float, doubt: float) -> Answer:
    """Return `fail` if it surely lost more than that, `pass` if it surely did not, else `open`."""
    if loss.at_least(doubt) > tolerance_frac:
        return "fail"
    return "pass" if loss.at_most(doubt) <= tolerance_frac else "open"


def significance(n_looks: int) -> float:
    """Return the false-alarm probability of each look."""
    return FALSE_ALARMS / n_looks


def _unpaired(value: float, without: Sequence[Floats], control_variate: Sequence[Floats]) -> Loss:
    """Return the loss without the part that is due to one side's seeds being harder than the other's.

    A line, of one slope on both sides, through what each seed did to the root (jackknife pseudo-values) over how hard
    it was (analysis of covariance: Cochran 1957, Biometrics 13).
    """
    n_seeds = [len(each) for each in without]
    done = [-(n - 1) * (each - each.mean()) for n, each in zip(n_seeds, without, strict=True)]
    centered = [each - each.mean() for each in control_variate]
    spread = sum(float(x @ x) for x in centered)
    slope = sum(float(x @ y) for x, y in zip(centered, done, strict=True)) / spread if spread else 0.0
    left = np.concatenate([y - slope * x for x, y in zip(centered, done, strict=True)])
    gap = float(control_variate[0].mean() - control_variate[1].mean())
    variance = (
        float(left @ left)
        / max(1, len(left) - 3)
        * (sum(1 / n for n in n_seeds) + (gap * gap / spread if spread else 0.0))
    )
    return Loss(value - slope * gap, math.sqrt(variance), _n_free(left, 3), is_paired=False)


def _n_free(left: Floats, n_fitted: int) -> float:
    """Return the degrees of freedom of a variance: fewer where a few seeds, with one long burst each, dominate it. An
    estimated variance itself varies with the kurtosis of what it is made of (Box 1953, Biometrika 40)."""
    n, total = len(left), float(np.square(left).sum())
    kurtosis = n * float((left**4).sum()) / total**2 if total else 3.0
    return max(1.0, min(n - n_fitted, 2 * n / max(kurtosis - 1, 1.0)))
