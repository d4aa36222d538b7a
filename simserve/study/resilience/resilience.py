"""The runs of a resilience study: fleets of fixed size, failures one at a time, and the answer of both."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import fmean

from simserve.errors import SimserveError
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.answers.resilience import ResilienceAnswer, SizedFleet, SpareOption
from simserve.metrics.answers.sweep_runs import FinishedRun, SweepRun
from simserve.metrics.decision import Effort
from simserve.scenario import Scenario
from simserve.study.processes import Runner
from simserve.study.progress import enter
from simserve.study.resilience.error_budget import ErrorBudget, Group
from simserve.study.resilience.failures import Threat
from simserve.study.resilience.question import FEWEST_SEEDS, MOST_RUNS, ResilienceQuestion
from simserve.study.resilience.transients import PairedRuns, window_s
from simserve.study.sweep.point_runs import PointRuns
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.run import key_of, task_of
from simserve.study.sweep.sweep import run_tasks
from simserve.tables.journal import Journal
from simserve.version import __version__

NOISE = Effort(by="noise")
"""Costs count as exact."""


class ResilienceStudy:
    """The runs of a question; the journal keeps those that finished."""

    def __init__(self, question: ResilienceQuestion, journal: Journal[SweepRun], runner: Runner) -> None:
        self._question, self._journal, self._runner = question, journal, runner
        self._failed: dict[str, SweepRun] = {}
        self._keys: set[str] = set()
        self._struck: dict[Group, list[PairedRuns]] = {}
        """Runs with failures, by what was there before."""
        self._reasons: list[str] = []
        """Why runs with failures failed."""
        self._cut: dict[str, str] = {}
        """Warnings of runs that end before a repair, by what failed."""

    def answer(self) -> ResilienceAnswer:
        """Run all, and return what `resilience.json` holds. Raises SimserveError where the pool as it is cannot run."""
        question, scenario = self._question, self._question.scenario
        self._strike((self._least(), 0))
        options = [] if question.is_scaled else self._budget.options(question.spares)
        while (group := self._next(options)) is not None:
            self._strike(group)
            options = self._budget.options(question.spares)
        return ResilienceAnswer(
            version=__version__,
            scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
            pool=question.pool,
            replicas=question.n,
            is_scaled=question.is_scaled,
            goal_frac=question.goal_frac,
            slo=scenario.slo.default.given or None,
            budget_minutes=self._budget.minutes,
            n_runs=len(self._keys),
            best=next((place for place, each in enumerate(options) if each.holds), None),
            options=options,
            transients=[each.facts() for struck in self._struck.values() for each in struck],
            fleets=[*self._fleets.values()],
            warnings=self._warnings(),
        )

    def _least(self) -> int:
        """Return the replicas without spares, or the fewest that meet the goal, where a failure makes a difference."""
        question, budget = self._question, self._budget
        more = [] if question.is_scaled else range(question.n, question.n + question.spares[-1] + 1)
        return next((size for size in more if not budget.is_below(size)), question.n)

    def _next(self, options: Sequence[SpareOption]) -> Group | None:
        """Return the first fleet that exceeds the budget by what failures cost with fewer spares, while runs are left;
        None where one before it holds."""
        question = self._question
        for option in options:
            spare, minutes = option.spare or 0, option.state_minutes or 0.0
            group = (question.n, spare) if option.kind == "warm" else (question.n + spare, 0)
            if option.holds or (self._n_left < FEWEST_SEEDS and question.given_seeds is None):
                return None
            if minutes <= self._budget.minutes and option.kind != "cold" and group not in self._struck:
                return group
        return None

    @property
    def _n_left(self) -> int:
        """Return the seeds of each failure for which runs are left."""
        return (MOST_RUNS - len(self._keys)) // len(self._question.threats)

    @cached_property
    def _points(self) -> Mapping[int, PointRuns]:
        """The fleets of fixed size with their runs, by their replicas."""
        question, n_seeds = self._question, self._question.n_seeds
        enter("fleets of fixed size")
        scenarios = {size: question.fleet(size) for size in question.sizes}
        rows = iter(self._rows([(each, each.seed + at) for at in range(n_seeds) for each in scenarios.values()]))
        by_seed = [[next(rows) for _ in scenarios] for _ in range(n_seeds)]
        points = {
            size: PointRuns(SweepPoint(size, (), scenario), of_size, n_seeds, question.goal_frac, NOISE)
            for (size, scenario), of_size in zip(scenarios.items(), zip(*by_seed, strict=True), strict=True)
        }
        if not points[question.n].finished:
            reasons = "; ".join(dict.fromkeys(row.reason for row in points[question.n].rows if row.reason))
            raise SimserveError(f"{question.scenario.name}: no run of the pool as it is finished: {reasons}")
        return points

    @cached_property
    def _fleets(self) -> Mapping[int, SizedFleet]:
        return {size: _sized(size, point) for size, point in self._points.items()}

    @property
    def _budget(self) -> ErrorBudget:
        question = self._question
        setup, runs = question.scenario.setups[question.place], self._points[question.n].finished
        return ErrorBudget(
            n=question.n,
            threats=question.threats,
            fleets=self._fleets,
            goal_frac=question.goal_frac,
            requests_per_s=fmean(run.offered_per_s or 0.0 for run in runs),
            usd_per_hour=setup.gpus_per_replica * setup.gpu.price_per_hour_usd,
            upsets={group: {each.threat.what: each.upset for each in runs} for group, runs in self._struck.items()},
        )

    def _strike(self, group: Group) -> None:
        """Run a fleet with one failure of each kind, at an instant of its own in each seed: the middles of strata."""
        question, point = self._question, self._points[group[0]]
        enter(f"failures of {group[0]} replicas")
        n = question.given_seeds or min(question.n_pairs, max(FEWEST_SEEDS, self._n_left))
        same = [point.finished[at % len(point.finished)] for at in range(n)]
        struck = [(threat, at) for threat in question.threats for at in range(n)]
        wanted = [(self._failing(threat, group, same[at], (at + 0.5) / n), same[at].seed) for threat, at in struck]
        rows = self._rows(wanted)
        for place, threat in enumerate(question.threats):
            pairs = [(row, run) for row, run in zip(rows[place * n :], same, strict=False) if row.status == "finished"]
            self._reasons += [row.reason for row in rows[place * n : place * n + n] if row.reason]
            self._struck.setdefault(group, []).append(PairedRuns(threat, group, pairs, question.goal_frac))

    def _failing(self, threat: Threat, group: Group, same: FinishedRun, frac: float) -> Scenario:
        """Return a fleet with a failure that far into the part of the measured window that a repair fits into."""
        question, failure = self._question, threat.failure
        start_s, length_s = question.warmup_s, window_s(same)
        fits_s = max(length_s - threat.repair_s, length_s / 2)
        if threat.repair_s > length_s / 2:
            self._cut[threat.what] = (
                f"a repair after a {threat.what} failure takes {threat.repair_s:.0f} s and the load {length_s:.0f} s, "
                "so that transients are cut short; make the load longer"
            )
        changes = {"what": threat.what, "at_s": start_s + frac * fits_s, "pool": question.pool}
        changes |= {"detect_s": failure.detect_s, "recover": failure.recover}
        return question.fleet(group[0], changes, warm=group[1])

    def _rows(self, wanted: Sequence[tuple[Scenario, int]]) -> list[SweepRun]:
        """Run what the journal lacks; return the rows of scenarios with their seeds."""
        keyed = [(key_of(each, seed), task_of(each, seed)) for each, seed in wanted]
        self._keys |= {key for key, _ in keyed}
        run_tasks(self._journal, self._runner, dict(keyed), self._failed)
        return [(self._journal.rows | self._failed)[key] for key, _ in keyed]

    def _warnings(self) -> list[str]:
        of_fleets = [f"{size} replicas: {each.reason}" for size, each in self._fleets.items() if each.reason]
        return [*of_fleets, *dict.fromkeys(self._reasons), *self._cut.values()]


def _sized(size: int, point: PointRuns) -> SizedFleet:
    reasons = dict.fromkeys(row.reason for row in point.rows if row.reason)
    return SizedFleet(
        replicas=size,
        attained_frac=None if point.answer is None else point.answer.attained_frac,
        n_seeds=len(point.finished),
        reason="; ".join(reasons) or None,
        decision=point.judged,
    )
