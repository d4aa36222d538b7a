"""Point runs: a point of a sweep with its runs, their means and SLO answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simserve.metrics.answer import AnswerJson, Attained
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import Interval, NominalLoad
from simserve.metrics.answers.struct import column_of
from simserve.metrics.answers.sweep import PointStatus
from simserve.metrics.answers.sweep_runs import FinishedRun, SweepRun
from simserve.study.intervals import mean_of
from simserve.study.slo_answer import mean_load, slo_answer
from simserve.study.sweep.points import SweepPoint


@dataclass(frozen=True)
class PointRuns:
    """A point and its runs."""

    point: SweepPoint
    rows: Sequence[SweepRun]
    """All runs, one per seed; shared seeds come first."""
    n_shared: int
    """Seeds shared by all points."""
    goal_frac: float

    @cached_property
    def measures(self) -> Measures[Interval]:
        """Return means over the finished shared seeds, so that points are comparable; empty without one."""
        if not self.shared:
            return Measures[Interval]()
        return Measures[Interval].model_validate(
            {field.alias or name: _mean(self.shared, name) for name, field in Measures.model_fields.items()}
        )

    @property
    def shared(self) -> list[FinishedRun]:
        """Return the finished runs with shared seeds."""
        return _finished(self.rows[: self.n_shared])

    @property
    def finished(self) -> list[FinishedRun]:
        """Return the finished runs."""
        return _finished(self.rows)

    @property
    def warnings(self) -> Sequence[str]:
        """Return the warnings of its costs and reservations, from the run with most of them."""
        return max((run.warnings for run in self.finished), key=len, default=[])

    @property
    def status(self) -> PointStatus:
        """Return whether all, some or none of the runs with shared seeds finished."""
        n = len(self.shared)
        return "finished" if n == self.n_shared else "partly" if n else "failed"

    @property
    def is_saturated(self) -> bool:
        """Return whether most of its runs are saturated."""
        return 2 * sum(run.saturated for run in self.finished) > len(self.rows)

    @property
    def is_ranked(self) -> bool:
        """Return whether its figures compare with those of others."""
        return self.status == "finished" and not self.is_saturated

    @property
    def usd_per_hour(self) -> float:
        """Return the price of its fleet; infinite without a finished run."""
        return next((run.usd_per_hour for run in self.finished), math.inf)

    @property
    def goodput_per_s(self) -> float:
        """Return its mean goodput; 0 without an SLO."""
        return self.measures.goodput_per_s.value or 0.0

    @cached_property
    def answer(self) -> AnswerJson | None:
        """Return the SLO answer of all its runs at the nominal load; None without a run or an SLO."""
        runs = [{each.slo_class: each for each in run.outcomes} for run in self.finished]
        result = slo_answer(runs, self.goal_frac) if runs else None
        return None if result is None else AnswerJson(**result)

    @property
    def decision(self) -> Attained | None:
        """Return whether the SLO is met; None without an answer. A failed run turns "met" into "edge"."""
        if self.answer is None:
            return None
        return "edge" if self.status == "partly" and self.answer.decision == "met" else self.answer.decision


def drawn_load(runs: Sequence[FinishedRun]) -> NominalLoad:
    """Return the mean drawn load of runs of a point."""
    return NominalLoad(**mean_load([vars(run.load) for run in runs]))


def _finished(rows: Sequence[SweepRun]) -> list[FinishedRun]:
    return [row for row in rows if row.status == "finished"]


def _mean(runs: Sequence[FinishedRun], name: str) -> Interval:
    """Return a mean; its interval, which Student makes wide for few runs, ends at 0 and a share's at 1."""
    values = [getattr(run, name) for run in runs]
    mean, column = mean_of([math.nan if value is None else value for value in values]), column_of(Measures, name)
    most = 1.0 if column is not None and column.form == "share" else math.inf
    return Interval(value=mean.value, low=max(mean.low, 0.0), high=min(mean.high, most))
