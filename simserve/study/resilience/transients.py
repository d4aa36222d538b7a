"""Transients: what one failure of a kind costs, by pairs of runs with and without it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan

import numpy as np

from simserve.metrics.answers.parts import Interval
from simserve.metrics.answers.resilience import Transient
from simserve.metrics.answers.sweep_runs import FinishedRun
from simserve.study.intervals import mean_of
from simserve.study.resilience.error_budget import Group, Upset
from simserve.study.resilience.failures import Threat

BIN_S, LEAST_ARRIVALS = 15.0, 100
"""Least length of an interval of arrivals, and least arrivals of one on average."""


@dataclass(frozen=True)
class PairedRuns:
    """Runs with a failure and the same seeds without it."""

    threat: Threat
    group: Group
    """Replicas and warm spares before it."""
    pairs: Sequence[tuple[FinishedRun, FinishedRun]]
    goal_frac: float

    @property
    def upset(self) -> Upset:
        """Return what the failure costs on average."""
        return Upset(self._extra(_missed).value or 0.0, self._extra(self._below_s).value or 0.0)

    def facts(self) -> Transient:
        """Return it as the answer has it."""
        n_lost, monthly = self.threat.of(self.group[0])
        return Transient(
            what=self.threat.what,
            replicas=self.group[0],
            warm=self.group[1],
            n_lost=n_lost,
            mtbf_s=self.threat.mtbf_s,
            source=self.threat.source,
            detect_s=self.threat.failure.detect_s,
            repair_s=self.threat.failure.detect_s if self.group[1] else self.threat.repair_s,
            failures=monthly,
            missed=self._extra(_missed),
            lost=self._extra(lambda run: run.n_failed),
            below_s=self._extra(self._below_s),
            recover_s=self._extra(partial(self._below_s, in_all=False)),
            n_seeds=len(self.pairs),
        )

    def _below_s(self, run: FinishedRun, *, in_all: bool = True) -> float:
        """Return the time of the intervals in which too few of the arriving requests met the SLO, or the longest of it
        at a stretch. As rows keep no arrival times, intervals have equal numbers of requests."""
        tails, length_s = [tail.tail() for tail in run.sample.tails], window_s(run)
        n = sum(tail.n for tail in tails)
        n_bins = max(1, int(min(length_s / BIN_S, n / LEAST_ARRIVALS)))
        n_missed = np.zeros(n_bins)
        for tail in tails:
            n_missed += np.bincount(tail.places[tail.highest() > 1] * n_bins // tail.n, minlength=n_bins)
        is_low = n_missed > (1 - self.goal_frac) * n / n_bins
        edges = np.flatnonzero(np.diff(np.concatenate([[0], is_low.astype(np.int8), [0]])))
        n_low = is_low.sum() if in_all else np.diff(edges)[::2].max(initial=0)
        return float(n_low) * length_s / n_bins

    def _extra(self, figure: Callable[[FinishedRun], float]) -> Interval:
        """Return the mean increase of a figure, with Student's interval; it falls by noise alone."""
        if not self.pairs:
            return Interval()
        mean = mean_of([figure(run) - figure(same) for run, same in self.pairs])
        low, high = (None if isnan(end) else max(0.0, end) for end in (mean.low, mean.high))
        return Interval(value=max(0.0, mean.value), low=low, high=high)


def _missed(run: FinishedRun) -> float:
    return float(sum(tail.n_missed for tail in run.sample.tails))


def window_s(run: FinishedRun) -> float:
    """Return the length of the measured window of a run."""
    n, per_s = sum(tail.n for tail in run.sample.tails), run.offered_per_s or 0.0
    return n / per_s if per_s else 0.0
