"""Load point: one load, the runs of its seeds, and what they attained under a criterion."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simserve.metrics.answer import Attained, Outcome, Outcomes, worst_class
from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.decision import Effort
from simserve.metrics.figures import Summary
from simserve.metrics.margin import Margin, margin_of
from simserve.metrics.outcomes import outcomes, whole_outcome
from simserve.metrics.tails import Sample
from simserve.study.intervals import Estimate
from simserve.study.run_seeds import Run
from simserve.study.slo_answer import at_nominal, mean_load, slo_answer


@dataclass(frozen=True)
class Criterion:
    """What a load must meet: every SLO of every request, one SLO alone, or the SLOs of one class."""

    slo: str | None = None
    """None: every SLO."""
    slo_class: str | None = None
    """None: all classes."""

    def outcome(self, run: Summary) -> Outcome | None:
        """Return what a run attained under this criterion; None where no request counts."""
        if self.slo_class is not None:
            return outcomes(run).get(self.slo_class)
        whole = whole_outcome(run)
        if whole is None or self.slo is None:
            return whole
        return whole.model_copy(update={"attained_frac": run.attained.by_slo[self.slo]})

    def sample(self, sample: Sample) -> Sample:
        """Return how close the requests come to what this criterion limits."""
        tails = {name: tail for name, tail in sample.tails.items() if self.slo_class in (None, name)}
        if (slo := self.slo) is not None:
            tails = {
                name: replace(tail, limits=(slo,), ratios=tail.ratios[:, [tail.limits.index(slo)]], groups=None)
                for name, tail in tails.items()
                if slo in tail.limits
            }
        return replace(sample, tails=tails)


EVERYTHING = Criterion()
"""Every request meets every SLO that it has."""


@dataclass(frozen=True)
class LoadPoint:
    """One load, run with some seeds."""

    scale: float
    """Multiple of the scenario's rates; or the number of clients or replicas."""
    runs: tuple[Summary, ...]
    """One per seed."""
    samples: tuple[Sample, ...] = ()
    """How close the requests of each run come to their limits, for the error of costs."""

    @classmethod
    def of(cls, scale: float, runs: Iterable[Run]) -> "LoadPoint":
        """Return a load with its runs."""
        summaries, samples = zip(*runs, strict=True)
        return cls(scale, summaries, samples)

    def with_more(self, runs: Iterable[Run]) -> "LoadPoint":
        """Return the load with further runs."""
        more = LoadPoint.of(self.scale, runs)
        return LoadPoint(self.scale, self.runs + more.runs, self.samples + more.samples)

    @cached_property
    def load(self) -> NominalLoad:
        """Mean nominal and drawn load of the runs."""
        return mean_load([run.load for run in self.runs])

    @property
    def offered_per_s(self) -> float:
        """Nominal requests/s; the drawn rate where there is none."""
        return self.drawn_per_s / (1 + (self.load.off_frac or 0.0))

    @property
    def drawn_per_s(self) -> float:
        """Requests/s that the runs drew."""
        return self.mean("offered_per_s")

    @cached_property
    def outcomes(self) -> tuple[Outcomes, ...]:
        """Outcomes of each run, by class."""
        return tuple(outcomes(run) for run in self.runs)

    def outcomes_of(self, criterion: Criterion) -> list[Outcome]:
        """Return the outcome of each run under a criterion; for EVERYTHING, that of the worst class."""
        if criterion is not EVERYTHING:
            return [outcome for run in self.runs if (outcome := criterion.outcome(run)) is not None]
        name = worst_class(self.outcomes)
        return [run[name] for run in self.outcomes if name in run]

    @property
    def n_requests(self) -> int:
        """Requests that arrived in all runs."""
        return sum(run.requests.arrived for run in self.runs)

    @property
    def attained_frac(self) -> float:
        """Share that met every SLO, at the nominal load."""
        return self.attained.value

    def share_of(self, criterion: Criterion) -> float:
        """Return the share that met a criterion, at the nominal load; NaN where no request counts."""
        runs = self.outcomes_of(criterion)
        return at_nominal(runs).value if runs else math.nan

    @cached_property
    def attained(self) -> Estimate:
        """Share that met every SLO, at the nominal load, and its interval; NaN where no request counts."""
        answer = slo_answer(self.outcomes, 1.0)
        if answer is None:
            return Estimate(math.nan, math.nan, math.nan)
        return Estimate(answer.attained_frac, answer.at("low_frac"), answer.at("high_frac"))

    def margin(self, goal_frac: float, criterion: Criterion = EVERYTHING) -> Margin | None:
        """Return where log r of a criterion lies by noise; None where no request counts."""
        samples = [part for part in map(criterion.sample, self.samples) if part.n]
        return margin_of(samples, goal_frac, (), {}) if samples else None

    def decision(self, goal_frac: float) -> Attained:
        """Return whether the load meets the SLO."""
        answer = slo_answer(self.outcomes, goal_frac)
        decision: Attained = "edge" if answer is None else answer.decision
        return decision

    def decided(self, goal_frac: float, more: Callable[[range], Sequence[Run]], effort: Effort) -> "LoadPoint":
        """Return the load with seeds added as long as it is on the edge of its goal.

        more: runs the load with the seeds at those places, counted from 0.
        """
        point = self
        for look in effort.looks():
            if look > len(point.runs) and point.decision(goal_frac) == "edge" and any(point.outcomes):
                point = point.with_more(more(range(len(point.runs), look)))
        return point

    @property
    def is_saturated(self) -> bool:
        """Whether the queue only grew in most runs; attainment then depends on their length."""
        return 2 * self.n_saturated > len(self.runs)

    @property
    def n_saturated(self) -> int:
        """Number of saturated runs."""
        return sum(bool(run.trust.saturated) for run in self.runs)

    def by_slo(self) -> dict[str, float]:
        """Return the share that met each SLO."""
        shares = [run.attained.by_slo for run in self.runs]
        return {key: float(np.mean([each[key] or 0.0 for each in shares])) for key in shares[0]}

    def holds(self, goal_frac: float) -> bool:
        """Return whether the share at the nominal load meets the goal, whatever its interval."""
        return self.attained_frac >= goal_frac and not self.is_saturated

    @property
    def worst_slo(self) -> tuple[str, float]:
        """SLO that the fewest requests met, and their share."""
        return min(self.by_slo().items(), key=lambda item: item[1])

    def latency_s(self, key: str, level: str) -> float:
        """Return the mean of the runs' percentiles; NaN where a run has none."""
        return self.mean(f"{key}.{level}")

    def mean(self, key: str) -> float:
        """Return the mean of a number over the runs; NaN where a run has none."""
        return float(np.mean([run.at(key) for run in self.runs]))

    def first(self, n_runs: int) -> "LoadPoint":
        """Return the load with its first runs only."""
        return LoadPoint(self.scale, self.runs[:n_runs], self.samples[:n_runs])
