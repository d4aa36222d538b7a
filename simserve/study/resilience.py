"""Resilience: what failures of one pool cost, by runs of fleets of fixed size and with one failure each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, nan
from statistics import fmean

import numpy as np

from simserve.errors import SimserveError
from simserve.metrics.answers.parts import Interval, ScenarioName
from simserve.metrics.answers.resilience import Group, ResilienceAnswer, SizedFleet, SpareOption, Transient, chosen_of
from simserve.metrics.answers.sweep_runs import FinishedRun, SweepRun
from simserve.metrics.decision import Effort
from simserve.metrics.error_budget import ErrorBudget, Threat
from simserve.metrics.scaling import BIN_S, runs_of
from simserve.scenario import Scenario
from simserve.scenario.fleet import Spares
from simserve.study.failures import FEWEST_SEEDS, MOST_RUNS, ResilienceQuestion
from simserve.study.fleet import is_deterministic
from simserve.study.intervals import mean_of
from simserve.study.processes import Runner
from simserve.study.progress import enter
from simserve.study.sweep.point_runs import PointRuns
from simserve.study.sweep.points import SweepPoint
from simserve.study.sweep.question import SweepQuestion
from simserve.study.sweep.run import key_of, task_of
from simserve.study.sweep.sweep import run_sweep, run_tasks
from simserve.tables.journal import Journal
from simserve.version import __version__

LEAST_ARRIVALS = 100
"""Least arrivals of an interval on average."""


class ResilienceStudy:
    """The runs of a question; the journal keeps those that finished."""

    def __init__(self, question: ResilienceQuestion, journal: Journal[SweepRun], runner: Runner) -> None:
        self._question, self._journal, self._runner = question, journal, runner
        self._keys: set[str] = set()
        self._transients: list[Transient] = []
        self._n_seeds = question.n_pairs
        self._warnings: dict[str, str] = {}
        """Why runs with failures failed, and by what failed, that runs end before a repair."""

    def answer(self) -> ResilienceAnswer:
        """Run all, and return what `resilience.json` holds. Raises SimserveError where the pool as it is cannot run."""
        question, scenario, n = self._question, self._question.scenario, self._question.pool.replicas
        self._runs = {point.point.number: point for point in self._points()}
        setup, fleets = scenario.setups[question.place], {size: _sized(point) for size, point in self._runs.items()}
        if fleets[n].attained_frac is None:
            reason = fleets[n].reason or "no request is in its window"
            raise SimserveError(f"{scenario.name}: no run of the pool as it is finished: {reason}")
        budget = ErrorBudget(
            n=n,
            threats=question.threats,
            fleets=fleets,
            goal_frac=question.goal_frac,
            requests_per_s=fmean(run.offered_per_s or 0.0 for run in self._runs[n].finished),
            usd_per_hour=setup.gpus_per_replica * setup.gpu.price_per_hour_usd,
            transients=self._transients,
            is_scaled=question.is_scaled,
        )
        # with the fewest replicas that meet the goal, as a failure makes no difference to others
        own = question.pool.spares or Spares()
        group: Group | None = (next((size for size in fleets if size >= n and not budget.state(size).is_below), n), 0)
        if question.keeps_spares:
            group = (n, own.warm)
        elif own.n:
            self._warnings |= {"": "the pool's own spares are left out, as the study compares numbers of them"}
        options: list[SpareOption] = []
        while group is not None:
            self._transients += self._strike(group, question.threats)
            options = [] if question.keeps_spares else budget.options(question.spares)
            group = self._next(options, budget.minutes)
        best = next((place for place, each in enumerate(options) if each.holds), None)
        options += self._moved(budget, chosen_of(options, best)) if options and question.moved else ()
        reasons = [f"{size} replicas: {each.reason}" for size, each in fleets.items() if each.reason]
        return ResilienceAnswer(
            version=__version__,
            scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
            pool=question.pool.name,
            replicas=n,
            is_scaled=question.is_scaled,
            goal_frac=question.goal_frac,
            slo=scenario.slo.default.given or None,
            budget_minutes=budget.minutes,
            n_runs=len(self._keys),
            best=best,
            options=options,
            transients=self._transients,
            fleets=[*fleets.values()],
            warnings=[*reasons, *self._warnings.values()],
        )

    def _moved(self, budget: ErrorBudget, one: SpareOption) -> Sequence[SpareOption]:
        """Return an option again, where the gateway does not do what it does with requests of a lost replica."""
        group, kept = budget.group(one.spare or 0, one.kind), [each for each in budget.threats if not each.n_lost]
        assert group is not None, "failures were run"
        moved = self._strike(group, self._question.moved)
        slow = [each for each in self._transients if each.group == group and not each.n_lost]
        other = replace(budget, threats=[*self._question.moved, *kept], transients=[*moved, *slow])
        self._transients += moved
        return [each for each in other.options([one.spare or 0]) if each.kind == one.kind]

    def _points(self) -> Sequence[PointRuns]:
        """Run the fleets of fixed size."""
        question = self._question
        enter("fleets of fixed size")
        n_seeds = 1 if is_deterministic(question.scenario) else question.n_pairs
        points = tuple(SweepPoint(size, (), question.fleet(size)) for size in question.sizes)
        swept = SweepQuestion(points, n_seeds, question.goal_frac, Effort(n_seeds, by="noise"))  # and no more seeds
        self._keys |= swept.keys
        return run_sweep(swept, self._journal, self._runner).points

    def _next(self, options: Sequence[SpareOption], budget_min: float) -> Group | None:
        """Return the first fleet that exceeds the budget by what failures cost with fewer spares, while runs are left;
        None where one before it holds."""
        n, known = self._question.pool.replicas, {each.group for each in self._transients}
        for option in options:
            spare, minutes = option.spare or 0, option.state_minutes or 0.0
            group = (n, spare) if option.kind == "warm" else (n + spare, 0)
            if option.holds or (self._n_left < FEWEST_SEEDS and self._question.given_seeds is None):
                return None
            if minutes <= budget_min and option.kind != "cold" and group not in known:
                return group
        return None

    @property
    def _n_left(self) -> int:
        """Return the seeds of each failure for which runs are left."""
        return (MOST_RUNS - len(self._keys)) // (len(self._question.threats) + len(self._question.moved))

    def _strike(self, group: Group, threats: Sequence[Threat]) -> Sequence[Transient]:
        """Run a fleet with one failure of each kind, at an instant of its own in each seed: the middles of strata."""
        question, finished = self._question, self._runs[group[0]].finished
        enter(f"failures of {group[0]} replicas")
        n_left = self._n_left if threats is question.threats else (MOST_RUNS - len(self._keys)) // len(threats)
        n = self._n_seeds = question.given_seeds or min(self._n_seeds, max(FEWEST_SEEDS, n_left))
        same, failed = [finished[at % len(finished)] for at in range(n)], dict[str, SweepRun]()
        tasks = [
            (key_of(scenario, run.seed), task_of(scenario, run.seed))
            for threat in threats
            for at, run in enumerate(same)
            for scenario in [self._failing(threat, group, _window_s(run), (at + 0.5) / n)]
        ]
        self._keys |= {key for key, _ in tasks}
        run_tasks(self._journal, self._runner, dict(tasks), failed)
        rows = [(self._journal.rows | failed)[key] for key, _ in tasks]
        self._warnings |= {row.reason: row.reason for row in rows if row.reason}
        transients = []
        for place, threat in enumerate(threats):
            both = zip(rows[place * n : (place + 1) * n], same, strict=True)
            pairs = [(row, run) for row, run in both if row.status == "finished"]
            transients.append(_transient(threat, group, pairs, question.goal_frac))
        return transients

    def _failing(self, threat: Threat, group: Group, length_s: float, frac: float) -> Scenario:
        """Return a fleet with a failure that far into the part of the measured window that a repair fits into."""
        question, given_s = self._question, self._question.scenario.measure.warmup_s
        longer, what = threat.longer(length_s), f"a repair after a {threat.what} failure"
        if threat.repair_s > length_s / 2:
            how = "transients are cut short" if threat.n_lost else f"half of it is slow, times {longer:.3g}"
            self._warnings[threat.what] = (
                f"{what if threat.n_lost else 'a gray failure'} takes {threat.repair_s:.0f} s and the load "
                f"{length_s:.0f} s, so that {how}; make the load longer"
            )
        # a warm-up of requests, or of what a run finds, ends where the window begins, as far as the load has an end
        end_s = question.scenario.workload.duration_s or length_s
        start_s = given_s if type(given_s) is float else max(0.0, end_s - length_s)
        at_s = start_s + frac * max(length_s - threat.repair_s, length_s / 2)
        slow = {"speed_frac": threat.speed_frac, "for_s": threat.repair_s / longer}
        failure = {"what": threat.what, "at_s": at_s, "pool": question.pool.name}
        failure |= {"detect_s": threat.detect_s} if threat.n_lost else slow
        return question.fleet(group[0], failure, warm=group[1], migrate=threat.migrate)


def _sized(point: PointRuns) -> SizedFleet:
    return SizedFleet(
        replicas=point.point.number,
        attained_frac=None if point.answer is None else point.answer.attained_frac,
        n_seeds=len(point.finished),
        reason="; ".join(dict.fromkeys(row.reason for row in point.rows if row.reason)) or None,
        decision=point.judged,
    )


Pairs = Sequence[tuple[FinishedRun, FinishedRun]]
"""Runs with a failure, and the same seeds without it."""


def _transient(threat: Threat, group: Group, pairs: Pairs, goal_frac: float) -> Transient:
    """Return what a failure costs."""

    def extra(figure: Callable[[FinishedRun], float], most: float = inf) -> Interval:
        """Return the mean increase of a figure, with Student's interval; it falls by noise alone. What does not fit
        into a load adds at most so much."""
        each = [(figure(run) - figure(same), threat.longer(_window_s(same))) for run, same in pairs]
        mean = mean_of([more + (longer - 1) * min(more, most / longer) for more, longer in each] or [nan])
        return Interval(value=max(mean.value, 0.0), low=max(mean.low, 0.0), high=max(mean.high, 0.0))

    n_lost, monthly = threat.of(group[0])
    return Transient(
        what=threat.what,
        replicas=group[0],
        warm=group[1],
        migrate=threat.migrate,
        n_lost=n_lost,
        speed_frac=threat.speed_frac,
        mtbf_s=threat.mtbf_s,
        source=threat.source,
        detect_s=threat.detect_s,
        repair_s=threat.detect_s if group[1] and n_lost else threat.repair_s,
        failures=monthly,
        missed=extra(lambda run: sum(tail.n_missed for tail in run.sample.tails)),
        lost=extra(lambda run: run.n_failed),
        below_s=extra(lambda run: _below_s(run, goal_frac)[0], threat.repair_s),
        recover_s=extra(lambda run: _below_s(run, goal_frac)[1], threat.repair_s),
        n_seeds=len(pairs),
    )


def _below_s(run: FinishedRun, goal_frac: float) -> tuple[float, float]:
    """Return the time of the intervals in which too few of the arriving requests met the SLO, and the longest of it at
    a stretch. As rows keep no arrival times, intervals have equal numbers of requests."""
    tails, length_s = [tail.tail() for tail in run.sample.tails], _window_s(run)
    n = sum(tail.n for tail in tails)
    n_bins = max(1, int(min(length_s / BIN_S, n / LEAST_ARRIVALS)))
    n_missed = np.zeros(n_bins)
    for tail in tails:
        n_missed += np.bincount(tail.places[tail.highest() > 1] * n_bins // tail.n, minlength=n_bins)
    is_low = n_missed > (1 - goal_frac) * n / n_bins
    longest = max((end - start for start, end in runs_of(is_low)), default=0)
    return float(is_low.sum()) * length_s / n_bins, longest * length_s / n_bins


def _window_s(run: FinishedRun) -> float:
    """Return the length of the measured window of a run."""
    n, per_s = sum(tail.n for tail in run.sample.tails), run.offered_per_s or 0.0
    return n / per_s if per_s else 0.0
