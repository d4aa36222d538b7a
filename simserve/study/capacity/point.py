"""Point: one load, tried with some seeds, and what came of it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.study.capacity.criterion import EVERYTHING, Criterion
from simserve.study.intervals import Estimate, mean_of
from simserve.study.run_seeds import Summary


@dataclass(frozen=True)
class LoadPoint:
    """One load, tried with some seeds."""

    scale: float
    """Times the scenario's own rates; or the number of clients, or of replicas, where these are what is tried."""
    runs: tuple[Summary, ...]
    """One a seed."""

    @property
    def offered_per_s(self) -> float:
        """Requests a second."""
        return self.mean("offered_per_s")

    @property
    def counts(self) -> NDArray[np.int64]:
        """Of each run, the requests that met every SLO and all that arrived, `(n_runs, 2)`."""
        return self.counts_of(EVERYTHING)

    def counts_of(self, criterion: Criterion) -> NDArray[np.int64]:
        """Likewise, of what is asked."""
        return np.array([criterion.counts(run) for run in self.runs])

    @property
    def attained_frac(self) -> float:
        """Of all requests of all runs."""
        return self.share_of(EVERYTHING)

    def share_of(self, criterion: Criterion) -> float:
        """Likewise, of what is asked; NaN where nobody was asked about."""
        n_met, n_arrived = self.counts_of(criterion).sum(axis=0)
        return float(n_met / n_arrived) if n_arrived else math.nan

    @property
    def attained(self) -> Estimate:
        """The share of all requests, with the interval of the mean over runs, or that within the only one.

        NaN where nobody arrived: at all, or in a run that the interval needs.
        """
        if len(self.runs) == 1:
            within = self.runs[0]["slo_attainment"]
            low, high = (math.nan if within[key] is None else within[key] for key in ("low_frac", "high_frac"))
            return Estimate(self.attained_frac, low, high)
        result = mean_of([float(n_met / n_arrived) if n_arrived else math.nan for n_met, n_arrived in self.counts])
        low, high = (max(0.0, result.low), min(1.0, result.high)) if result.has_interval else (math.nan, math.nan)
        return Estimate(self.attained_frac, low, high)

    @property
    def is_saturated(self) -> bool:
        """In most runs the queue only grew: what was attained says how long they were."""
        return 2 * self.n_saturated > len(self.runs)

    @property
    def n_saturated(self) -> int:
        """Runs whose queue only grew."""
        return sum(bool(run["trust"]["saturated"]) for run in self.runs)

    def by_slo(self) -> dict[str, float]:
        """The share that met each SLO."""
        result = [run["slo_attainment"]["by_slo"] for run in self.runs]
        return {key: float(np.mean([each[key] for each in result])) for key in result[0]}

    def latency_s(self, key: str, level: str) -> float:
        """The mean of the runs' percentiles; NaN where a run has none."""
        return float(np.mean([math.nan if run[key][level] is None else run[key][level] for run in self.runs]))

    def mean(self, key: str) -> float:
        """The mean of a number of the runs; NaN where a run has none."""
        return float(np.mean([math.nan if (result := run.get(key)) is None else result for run in self.runs]))

    def first(self, n_runs: int) -> "LoadPoint":
        """The same load as its first seeds had it."""
        return LoadPoint(self.scale, self.runs[:n_runs])
