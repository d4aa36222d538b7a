"""Point runs: a point of a sweep with its runs, their means and SLO answer, and draws of its costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from simserve.metrics.answer import AnswerJson, Attained
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.parts import Interval
from simserve.metrics.answers.struct import column_of
from simserve.metrics.answers.sweep import PointStatus
from simserve.metrics.answers.sweep_runs import FinishedRun, SweepRun
from simserve.metrics.cost_error import Pair
from simserve.metrics.decision import DEFAULT_EFFORT, Decision, Effort
from simserve.metrics.summary_schema import DecisionJson
from simserve.metrics.tails import Sample
from simserve.study.cost_draws import reach_of
from simserve.study.drawn_costs import DrawnCosts
from simserve.study.intervals import mean_of
from simserve.study.processes import Task
from simserve.study.slo_answer import slo_answer
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.run import COSTS, AtCapacity, WithDraw, task_of

SMALLER = "fewer replicas meet the SLO with cost error"
"""Why a point meets it, the costs of which are not drawn."""


@dataclass(frozen=True)
class PointRuns:
    """A point and its runs."""

    point: SweepPoint
    rows: Sequence[SweepRun]
    """All runs, one per seed; shared seeds come first."""
    n_shared: int
    """Seeds shared by all points."""
    goal_frac: float
    effort: Effort = DEFAULT_EFFORT
    keys: Sequence[str | None] = ()
    """Keys of all runs."""
    known: Mapping[str, SweepRun] = field(default_factory=dict)
    """Rows of the sweep, by key."""
    smaller: "Sequence[PointRuns]" = ()
    """Points with fewer replicas, which more never make worse."""

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
        return [row for row in self.rows[: self.n_shared] if row.status == "finished"]

    @property
    def finished(self) -> list[FinishedRun]:
        """Return the finished runs."""
        return [row for row in self.rows if row.status == "finished"]

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
        if result is None or self.decided is None:
            return result
        return result.model_copy(update={"decision": self.decided.old_word, "queue": self.decided.queue})

    @property
    def decision(self) -> Attained | None:
        """Return whether the SLO is met; None without an answer. A failed run turns "met" into "edge"."""
        if self.answer is None:
            return None
        has_failed = self.status == "partly" or any(row.status == "failed" for row in self.cost_rows)
        return "edge" if has_failed and self.answer.decision == "met" else self.answer.decision

    @property
    def judged(self) -> DecisionJson | None:
        """Return the decision with all that it rests on, as a run has it; None without an answer."""
        if self.decided is None:
            return None
        facts, is_sure = self.decided.facts(), self.decision == self.decided.old_word
        if self.follows:
            return facts.model_copy(update={"r_total": None, "probability": None, "why": SMALLER})
        return facts if is_sure else facts.model_copy(update={"word": "edge"})

    @cached_property
    def _samples(self) -> Mapping[int, Sample]:
        """Return the finished runs as a decision sees them, by seed."""
        return {run.seed: run.sample.sample() for run in self.finished}

    @cached_property
    def _by_noise(self) -> Decision | None:
        """Return the decision as if costs were exact; None where no request counts."""
        samples = [sample for sample in self._samples.values() if sample.n]
        return Decision(samples, self.goal_frac, confidence=self.effort.confidence) if samples else None

    @cached_property
    def decided(self) -> Decision | None:
        """Return the decision, with the error of costs once their draws ran; None where no request counts."""
        costs, rows = self._costs, self.cost_rows
        if self._by_noise is None or costs is None or self.cost_tasks:
            return self._by_noise
        pairs = [
            Pair(self._samples[row.seed], row.sample.sample())
            for row in rows
            if row.status == "drawn" and row.seed in self._samples
        ]
        beyond_frac = next((row.beyond_frac for row in rows if row.status == "probed"), None)
        return replace(self._by_noise, pairs=pairs, server_sd=costs.server_sd, beyond_frac=beyond_frac)

    @cached_property
    def follows(self) -> bool:
        """Whether it meets the SLO as fewer replicas do with cost error, so that its own costs need no draws."""
        return self._meets_by_noise and any(
            each.decision == "met" and each.decided is not None and each.decided.pairs for each in self.smaller
        )

    @property
    def _meets_by_noise(self) -> bool:
        return self.is_ranked and self._by_noise is not None and self._by_noise.word == "meets"

    @property
    def next_tasks(self) -> dict[str, Task]:
        """Return the runs with draws of its costs that may change its decision; none while fewer replicas may tell."""
        waits = self._meets_by_noise and any(each._meets_by_noise and each.cost_tasks for each in self.smaller)
        return {} if waits else self.cost_tasks

    @cached_property
    def _costs(self) -> DrawnCosts | None:
        """Return the draws of its costs, on seeds that it ran; None where costs count as exact, or hardly matter."""
        scenario, by_noise = self.point.scenario, self._by_noise
        if scenario is None or by_noise is None or self.effort.by == "noise" or not self.is_ranked or self.follows:
            return None
        within_reach = by_noise.margin.by_noise.probability(reach_of(scenario.setups))
        if by_noise.word == "saturated" or within_reach <= 1 - self.effort.confidence:
            return None
        first = scenario.model_copy(update={"seed": self.rows[0].seed})
        costs = DrawnCosts.of(first, lambda _: first, len(self.rows), self.effort.n_draws)
        return costs if costs.draws else None

    @cached_property
    def _wanted(self) -> Mapping[str, Task]:
        """Return the runs with draws of its costs, and that of its capacity, by key."""
        scenario, costs, seed = self.point.scenario, self._costs, self.rows[0].seed
        if costs is None or scenario is None:
            return {}
        run = self.shared[0]
        of_all = f"of {len(costs.draws)} of {seed}"
        keys = [f"{self.keys[own - seed]}{COSTS}{place} {of_all}" for place, own in enumerate(costs.seeds)]
        draws = [task_of(scenario, own, WithDraw(draw[0])) for own, draw in zip(costs.seeds, costs.draws, strict=True)]
        probed = {
            f"{self.keys[0]}{COSTS}capacity": task_of(scenario, seed, AtCapacity(costs.draws, run.load, run.service_s))
        }
        # a fleet that follows the load has no capacity of its own
        return dict(zip(keys, draws, strict=True)) | ({} if scenario.cluster.scales else probed)

    @property
    def cost_rows(self) -> list[SweepRun]:
        """Return the rows of those that ran."""
        return [self.known[key] for key in self._wanted if key in self.known]

    @property
    def cost_tasks(self) -> dict[str, Task]:
        """Return those that have not run."""
        return {key: task for key, task in self._wanted.items() if key not in self.known}


def _mean(runs: Sequence[FinishedRun], name: str) -> Interval:
    """Return a mean; its interval, which Student makes wide for few runs, ends at 0 and a share's at 1."""
    values = [getattr(run, name) for run in runs]
    mean, column = mean_of([math.nan if value is None else value for value in values]), column_of(Measures, name)
    most = 1.0 if column is not None and column.form == "share" else math.inf
    return Interval(value=mean.value, low=max(mean.low, 0.0), high=min(mean.high, most))
