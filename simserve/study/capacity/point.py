"""Point: one load, tried with some seeds, and what came of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simserve.metrics.answer import Outcome, Outcomes, outcomes, worst_class
from simserve.metrics.decision import Decision
from simserve.study.capacity.criterion import EVERYTHING, Criterion
from simserve.study.intervals import Estimate
from simserve.study.nominal import at_nominal
from simserve.study.run_seeds import Summary
from simserve.study.slo_answer import attained_of, mean_load, more_seeds, slo_answer


@dataclass(frozen=True)
class LoadPoint:
    """One load, tried with some seeds."""

    scale: float
    """Times the scenario's own rates; or the number of clients, or of replicas, where these are what is tried."""
    runs: tuple[Summary, ...]
    """One a seed."""

    @cached_property
    def load(self) -> dict[str, Any]:
        """Nominal and drawn load, means over the runs."""
        return mean_load([run.get("load") for run in self.runs])

    @property
    def offered_per_s(self) -> float:
        """Requests a second that the load offers at its nominal rate; the drawn ones where there is none."""
        return self.drawn_per_s / (1 + (self.load["off_frac"] or 0.0))

    @property
    def drawn_per_s(self) -> float:
        """Requests a second that the runs drew."""
        return self.mean("offered_per_s")

    @cached_property
    def outcomes(self) -> tuple[Outcomes, ...]:
        """What each run attained, by class."""
        return tuple(outcomes(run) for run in self.runs)

    def outcomes_of(self, criterion: Criterion) -> list[Outcome]:
        """Return what each run attained by a criterion; where that is everything, by the class that fares worst."""
        if criterion is not EVERYTHING:
            return [outcome for run in self.runs if (outcome := criterion.outcome(run)) is not None]
        name = worst_class(self.outcomes)
        return [run[name] for run in self.outcomes if name in run]

    @property
    def n_requests(self) -> int:
        """Requests that arrived in all runs."""
        return sum(run["requests"]["arrived"] for run in self.runs)

    @property
    def attained_frac(self) -> float:
        """The share that met every SLO, at the nominal load."""
        return self.attained.value

    def share_of(self, criterion: Criterion) -> float:
        """Return the share that met a criterion, at the nominal load; NaN where no request counts."""
        result = self.outcomes_of(criterion)
        return at_nominal(result).value if result else math.nan

    @cached_property
    def attained(self) -> Estimate:
        """The share that met every SLO, at the nominal load; NaN where no request arrived in a run that counts."""
        result = slo_answer(self.outcomes, 1.0)
        return Estimate(math.nan, math.nan, math.nan) if result is None else attained_of(result)

    def decision(self, goal_frac: float) -> Decision:
        """Return whether the load meets the SLO."""
        result = slo_answer(self.outcomes, goal_frac)
        decision: Decision = "edge" if result is None else result["decision"]
        return decision

    def decided(self, goal_frac: float, more: Callable[[range], Sequence[Summary]], most_seeds: int) -> "LoadPoint":
        """Return the load with seeds added until it is off the edge of its goal, or has the most.

        more: runs it with the seeds at those places, counted from 0.
        """
        point, n = self, len(self.runs)
        while (result := slo_answer(point.outcomes, goal_frac)) and result["decision"] == "edge" and n < most_seeds:
            wanted = more_seeds(result, n, most_seeds)
            point = LoadPoint(self.scale, (*point.runs, *more(range(n, wanted))))
            n = wanted
        return point

    @property
    def is_saturated(self) -> bool:
        """In most runs the queue only grew: what was attained says how long they were."""
        return 2 * self.n_saturated > len(self.runs)

    @property
    def n_saturated(self) -> int:
        """Runs whose queue only grew."""
        return sum(bool(run["trust"]["saturated"]) for run in self.runs)

    def by_slo(self) -> dict[str, float]:
        """Return the share that met each SLO."""
        result = [run["slo_attainment"]["by_slo"] for run in self.runs]
        return {key: float(np.mean([each[key] for each in result])) for key in result[0]}

    def latency_s(self, key: str, level: str) -> float:
        """Return the mean of the runs' percentiles; NaN where a run has none."""
        return float(np.mean([math.nan if run[key][level] is None else run[key][level] for run in self.runs]))

    def mean(self, key: str) -> float:
        """Return the mean of a number of the runs; NaN where a run has none."""
        return float(np.mean([math.nan if (result := run.get(key)) is None else result for run in self.runs]))

    def first(self, n_runs: int) -> "LoadPoint":
        """Return the same load as its first seeds had it."""
        return LoadPoint(self.scale, self.runs[:n_runs])
