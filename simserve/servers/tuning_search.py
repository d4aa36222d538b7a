"""Search of a tuning: points of a scenario's settings that Optuna asks for, each run once and kept in a journal."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.errors import ScenarioError, SimserveError
from simserve.metrics.answers.tune import Objective, TriedPoint
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.tails import log_of
from simserve.scenario import Scenario
from simserve.scenario.dump import flow
from simserve.scenario.parallel import valid_tensors
from simserve.servers.command_line import ENGINES, known_flags
from simserve.servers.server_settings import POOL
from simserve.study.capacity.question import check_slo
from simserve.study.progress import enter
from simserve.study.run_seeds import Run, each_run
from simserve.study.sweep.points import SweepAxis
from simserve.tables.journal import Journal

BATCH = 8
"""Points that run together, whatever the number of cores, so that a search can be repeated."""

PATIENCE = 96
"""Points without a better one after which a search ends."""

ROUTERS = ("round_robin", "least_outstanding", "least_kv")
MISSED = 1e3
"""Added to the logarithm of an objective that only counts within the SLO."""


@dataclass(frozen=True)
class TuneQuestion:
    """The scenario, what may change, and what is to be small."""

    scenario: Scenario
    axes: Sequence[SweepAxis] = ()
    """Keys with their values; none: those of the scheduler, the layout of its GPUs and the router."""
    objective: Objective = "r"
    most_points: int = 300
    budget_s: float | None = None
    goal_frac: float = GOAL_FRAC


def space_of(question: TuneQuestion) -> dict[str, list[Any]]:
    """Return the values of each key, the scenario's own among them. Raises SimserveError."""
    scenario = question.scenario
    check_slo(scenario)
    if question.objective == "cost" and any(setup.gpu.price_per_hour_usd is None for setup in scenario.setups):
        raise SimserveError(f"{scenario.name}: --objective cost needs the price of its GPU, which the catalog lacks")
    if not question.axes and len(scenario.cluster.pools) > 1:
        n = len(scenario.cluster.pools)
        example = "--vary cluster.pools.0.scheduler.max_num_seqs=64,128,256"
        raise SimserveError(f"{scenario.name}: has {n} pools, so say what to vary; for example {example}")
    given = {axis.key: list(axis.values) for axis in question.axes} or _own_space(scenario)
    space: dict[str, list[Any]] = {}
    for key, values in given.items():
        _check_key(scenario, key, values)
        own = value_at(scenario, key)
        known = list(values) if own is None or own in values else [own, *values]
        space[key] = sorted(known) if _is_ordered(known) else known
    return space


def _check_key(scenario: Scenario, key: str, values: Sequence[Any]) -> None:
    """Raise ScenarioError for a key of which the scenario takes no value."""
    wrong: list[ScenarioError] = []
    for value in values:
        try:
            changed(scenario, {key: value})
        except ScenarioError as error:
            wrong.append(error)
    if len(wrong) == len(values):
        raise wrong[0]


def _own_space(scenario: Scenario) -> dict[str, Sequence[Any]]:
    """Return what is varied where nothing is asked for: scheduler, layout of the GPUs, router, prefix caching."""
    setup, pool = scenario.setups[0], scenario.cluster.pools[0]
    kind, engine = (pool.scheduler or {}).get("kind", ""), setup.engine.name
    tuned = dict(known_flags(engine)["tuned"]) if engine in ENGINES else {}
    if tuned.pop("kind", None) != kind:
        raise SimserveError(f"{scenario.name}: its scheduler, {kind}, has no known flags; say what to vary with --vary")
    space: dict[str, Sequence[Any]] = {f"{POOL}.scheduler.{key}": values for key, values in tuned.items()}
    n_gpus, each = pool.replicas * setup.gpus_per_replica, setup.gpus_per_replica // pool.parallel.tensor
    degrees = [n for n in valid_tensors(setup.model, setup.gpu) if n & (n - 1) == 0 and n_gpus % (n * each) == 0]
    if len(degrees) > 1 and pool.parallel.expert == pool.parallel.decode_context == 1:
        space[f"{POOL}.parallel.tensor"] = degrees
    if n_gpus > each:
        space["cluster.router"] = ROUTERS
    if scenario.workload.prefixes is not None:
        space[f"{POOL}.enable_prefix_caching"] = (False, True)
    return space


def value_at(scenario: Scenario, key: str) -> Any:
    """Return the value of a key of a resolved scenario; None: it has none."""
    place: Any = scenario.to_dict()
    for part in key.split("."):
        match place:
            case list() if part.isdecimal() and int(part) < len(place):
                place = place[int(part)]
            case dict() if part in place:
                place = place[part]
            case _:
                return None
    return place


def changed(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario with other values; other degrees of tensor parallelism leave the number of GPUs as it is.
    Raises ScenarioError."""
    changes, tensor, replicas = dict(values), f"{POOL}.parallel.tensor", f"{POOL}.replicas"
    if tensor in changes and replicas not in changes:
        pool = scenario.cluster.pools[0]
        changes[replicas] = pool.replicas * pool.parallel.tensor // changes[tensor]
    return scenario.replace(**changes)


class PointSearch:
    """A search of points: each runs once, and is kept in the journal."""

    def __init__(self, question: TuneQuestion, journal: Journal[TriedPoint]) -> None:
        self.question, self.journal, self.space = question, journal, space_of(question)
        self.points: dict[str, TriedPoint] = {}
        """Points by their keys, in the order of the search."""
        self.n_possible = math.prod(len(values) for values in self.space.values())
        own = {key: value_at(question.scenario, key) for key in self.space}
        self.own = {key: value if value in self.space[key] else self.space[key][0] for key, value in own.items()}

    def run(self) -> None:
        """Ask for points and run them until enough were tried, or none of the last was better."""
        import optuna

        begun_s, optuna_log = time.monotonic(), optuna.logging
        optuna_log.set_verbosity(optuna_log.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that Optuna calls experimental
            sampler = optuna.samplers.TPESampler(seed=self.question.scenario.seed, constant_liar=True)
            study = optuna.create_study(sampler=sampler)
        study.enqueue_trial({key: self.space[key].index(self.own[key]) for key in self.space})
        numbers, names = optuna.distributions.IntDistribution, optuna.distributions.CategoricalDistribution
        kinds: dict[str, Any] = {  # places among the values: in order for numbers
            key: numbers(0, len(values) - 1) if _is_ordered(values) else names(range(len(values)))
            for key, values in self.space.items()
        }
        n_since, least = 0, math.inf
        most = min(self.question.most_points, self.n_possible)
        while len(self.points) < most and n_since < PATIENCE:
            if self.question.budget_s is not None and time.monotonic() - begun_s > self.question.budget_s:
                return
            enter(f"{len(self.points)} of {most} points")
            trials = [study.ask(kinds) for _ in range(min(BATCH, most - len(self.points)))]
            batch = [{key: self.space[key][trial.params[key]] for key in self.space} for trial in trials]
            for trial, point in zip(trials, self._run(batch), strict=True):
                value = value_of(point, self.question.objective)
                study.tell(trial, value, optuna.trial.TrialState.FAIL if value is None else None)
                n_since, least = (0, value) if value is not None and value < least - 1e-3 else (n_since + 1, least)

    def _run(self, batch: Sequence[Mapping[str, Any]]) -> list[TriedPoint]:
        """Return a point for each of these values, run where neither search nor journal has it."""
        fresh = {self._key(values): values for values in batch}
        new = {key: values for key, values in fresh.items() if key not in self.journal.rows and key not in self.points}
        for key, point in zip(new, self._points(list(new.values())), strict=True):
            self.journal.add(key, point)
        for key in fresh:
            if key not in self.points:
                known = self.journal.rows[key]
                self.points[key] = known.model_copy(update={"number": len(self.points) + 1})
        return [self.points[self._key(values)] for values in batch]

    def _key(self, values: Mapping[str, Any]) -> str:
        """Return the key of a point in the journal, which other scenarios share."""
        question = self.question
        return f"{question.scenario.digest} {question.objective} {question.goal_frac:g} {_named(values)}"

    def _points(self, wanted: Sequence[Mapping[str, Any]]) -> list[TriedPoint]:
        """Run points that have not run, together; one by one where one of them cannot."""
        points: list[TriedPoint | None] = []
        scenarios: list[Scenario] = []
        for values in wanted:
            try:
                scenarios.append(changed(self.question.scenario, values))
                points.append(None)
            except ScenarioError as error:
                reason = str(error).partition("\n")[0]
                points.append(TriedPoint(settings=_named(values), values=values, reason=reason))
        runs = iter(_runs(scenarios, self.question.scenario.seed))
        return [point or self._point(values, next(runs)) for values, point in zip(wanted, points, strict=True)]

    def _point(self, values: Mapping[str, Any], run: Run | str) -> TriedPoint:
        match run:
            case str(reason):
                return TriedPoint(settings=_named(values), values=values, reason=reason)
            case Run():
                r, goodput = run.sample.r(self.question.goal_frac), run.summary.goodput
                per = {"cost": goodput and goodput.per_usd, "throughput": goodput and goodput.per_gpu_s}
                rate = per.get(self.question.objective)
                value = r if self.question.objective == "r" else 1 / rate if rate and r <= 1 else None
                return TriedPoint(settings=_named(values), values=values, r=r, objective=value)


def _runs(scenarios: Sequence[Scenario], seed: int) -> list[Run | str]:
    """Return a run of each scenario, or why it has none."""
    try:
        return [runs[0] for runs in each_run(Run.of, scenarios, [seed])]
    except SimserveError as error:
        if len(scenarios) == 1:
            return [str(error).partition("\n")[0]]
        return [run for scenario in scenarios for run in _runs([scenario], seed)]


def _is_ordered(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def value_of(point: TriedPoint, objective: Objective) -> float | None:
    """Return what is to be small of a point: the logarithm of its objective, above all others where it misses the SLO;
    None where it cannot run."""
    if point.r is None:
        return None
    r = log_of(float(point.r))
    return r if objective == "r" else MISSED + r if point.objective is None else math.log(point.objective)


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix(f'{POOL}.')}={flow(value)}" for key, value in values.items())
