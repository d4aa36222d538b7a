"""Questions about one scenario: run, capacity, plan."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.api import options
from simserve.api.fleets import resilience
from simserve.errors import SimserveError
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.capacity import CapacityAnswer
    from simserve.metrics.answers.plan import PlanAnswer
    from simserve.metrics.answers.resilience import ResilienceAnswer
    from simserve.metrics.results import Results
    from simserve.scenario import Scenario
    from simserve.scenario.loader import AnyScenario
    from simserve.scenario.model_sizes import ModelAnswer
    from simserve.study.capacity.capacity_result import CapacityResult
    from simserve.study.capacity.question import CapacityQuestion


def run(
    scenario: "AnyScenario",
    *,
    replications: int | None = None,
    precision: float | None = None,
    of: str | None = None,
    budget_runs: int = options.BUDGET_RUNS,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    **changes: object,
) -> "Results":
    """Simulate a scenario, with the runs that decide about its SLO. Raises SimserveError.

    `out`: a folder on the disk that keeps the rows of a long run.
    """
    from simserve.study.fleet import check_not_deterministic
    from simserve.study.precision import add_replications, wanted_runs
    from simserve.study.processes import limited_to
    from simserve.study.uncertainty import run_with_replays

    simulated, effort = options.scenario_with(scenario, changes, seed), options.effort_of(budget_runs, confidence)
    wanted = None
    if (replications, precision, of) != (None, None, None):
        wanted = wanted_runs(replications, precision, of)
        option = ("--replications", replications) if precision is None else ("--precision", precision)
        check_not_deterministic(simulated, *option)
    with limited_to(jobs):
        results = run_with_replays(simulated, out, effort)
        if wanted is not None:
            add_replications(simulated, results, wanted)
    return results


def capacity(
    scenario: "AnyScenario",
    *,
    goal: options.Goal = None,
    precision: float = options.PRECISION,
    concurrency: bool = False,
    replicas: int | str | None = None,
    ratio: str | None = None,
    gpus: int | None = None,
    by: options.By = None,
    confidence: float = CONFIDENCE,
    budget_runs: int = options.BUDGET_RUNS,
    seed: int | None = None,
    jobs: int | None = None,
    **changes: object,
) -> "CapacityAnswer":
    """Find the highest load at which the SLO holds; or the most clients, fewest replicas, or the best split of GPUs.

    `replicas`: the name of a pool, to find its fewest replicas; a number is a change of the scenario. Raises
    SimserveError.
    """
    from simserve.study.capacity.question import CapacityQuestion
    from simserve.study.processes import limited_to

    pool = None
    match replicas:
        case str():
            pool = replicas
        case int():
            changes["replicas"] = replicas
    studied, effort = options.scenario_with(scenario, changes, seed), options.effort_of(budget_runs, confidence, by)
    question = CapacityQuestion(studied, options.goal_of(goal), options.within("--precision", precision), effort)
    with limited_to(jobs):
        result = _capacity(question, {"--concurrency": concurrency, "--replicas": pool, "--ratio": ratio}, gpus)
    return result.answer.with_runs(result.rows, studied.to_yaml())


def _capacity(
    question: "CapacityQuestion", requested: Mapping[str, bool | str | None], gpus: int | None
) -> "CapacityResult":
    """Answer the one question that the options ask. Raises SimserveError for two at once."""
    from simserve.study.capacity.concurrency import study_concurrency
    from simserve.study.capacity.fleet_size import study_fleet_size
    from simserve.study.capacity.rate import study_rate
    from simserve.study.capacity.ratio import study_ratio

    given = {option: str(value) for option, value in requested.items() if value}
    if len(given) > 1:
        raise SimserveError(f"{', '.join(given)}: ask one thing at a time, got {len(given)}; leave out the others")
    if gpus is not None and "--ratio" not in given:
        raise SimserveError(f"--gpus: says how many GPUs --ratio splits, got {gpus} without it; add --ratio")
    match [*given.items()]:
        case []:
            return study_rate(question)
        case [("--concurrency", _)]:
            return study_concurrency(question)
        case [("--replicas", pool)]:
            return study_fleet_size(question, pool)
    if question.effort.by == "total":
        remedy = "leave it out, and ask for the capacity of the best split"
        raise SimserveError(f"--by: must not be total with --ratio, which compares splits by noise; {remedy}")
    return study_ratio(question, given["--ratio"], gpus)


def plan(
    scenario: "AnyScenario",
    *,
    gpus: Sequence[str] = (),
    tensors: Sequence[int] = options.TENSORS,
    split: bool = False,
    spare: int | str = "0",
    growth: float = 0.0,
    months: int = options.MONTHS,
    goal: options.Goal = None,
    max_gpus: int = options.MAX_GPUS,
    price: Mapping[str, float] | None = None,
    by: options.By = None,
    confidence: float = CONFIDENCE,
    budget_runs: int = options.BUDGET_RUNS,
    seed: int | None = None,
    jobs: int | None = None,
    **changes: object,
) -> "PlanAnswer":
    """Find the cheapest fleet that serves the scenario's load within its SLO. Raises SimserveError.

    `gpus` and `tensors`: cards and tensor parallel degrees to compare; `price`: dollars per GPU-hour by card; `spare`:
    replicas that may be down, or `auto`, as many as failures need, two at most, and `auto:4`, four at most.
    """
    from simserve.report.plan.words import with_words
    from simserve.study.plan.facts import plan_facts
    from simserve.study.plan.outcome import Bounds
    from simserve.study.plan.plan import PlanQuestion, find_plan
    from simserve.study.processes import limited_to

    if wrong := [degree for degree in tensors if type(degree) is not int or degree < 1]:
        raise SimserveError(f"--tensor: must be whole numbers from 1 on, got {wrong[0]}; for example --tensor 1,2,4,8")
    n_spare, most = options.spares_of(spare)
    studied, failures = _without_failures(options.scenario_with(scenario, changes, seed), most, is_split=split)
    n_gpus, effort = options.within("--max-gpus", max_gpus), options.effort_of(budget_runs, confidence, by)
    question = PlanQuestion(
        studied,
        Bounds(options.goal_of(goal), n_spare, n_gpus, effort),
        ask=None if most is None else partial(_ask, most, goal=goal, jobs=jobs, **failures),
        gpus=gpus,
        tensors=tensors,
        is_split=split,
        growth_frac=options.within("--growth", growth),
        months=options.within("--months", months),
        given_usd=price or {},
    )
    with limited_to(jobs):
        planned = find_plan(question)
        answer, winner = with_words(plan_facts(planned)), planned.winner
    return answer.with_runs(None, None if winner is None else winner.replace(**failures).to_yaml())


def explain_model(model: str, *, context: int | None = None) -> "ModelAnswer":
    """Return a model's sizes, and the cards that hold it with a request of the context. Raises SimserveError."""
    from simserve.scenario.model_sizes import model_sizes

    return model_sizes(model, context)


def _without_failures(scenario: "Scenario", most: int | None, *, is_split: bool) -> tuple["Scenario", dict[str, Any]]:
    """Return the scenario to size fleets with, and what failures change in it; most: spares for them, if any."""
    if most is None:
        return scenario, {}
    if is_split:
        raise SimserveError("--spare: auto is of a single pool, got --split; leave that out, or give a number")
    cluster, key = scenario.to_dict()["cluster"], "cluster.pools.0.autoscaler"
    failures = {"cluster.failures": cluster.get("failures"), key: cluster["pools"][0].get("autoscaler")}
    return scenario.replace(**{"cluster.failures": None, "cluster.pools.0.spares": None}), failures


def _ask(most: int, fleet: "Scenario", n_left: int, **given: Any) -> "ResilienceAnswer":
    """Return what failures cost a fleet of a plan, with the spares that it may get."""
    return resilience(fleet, spare=f"0..{min(most, n_left)}", **given)
