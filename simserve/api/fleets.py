"""Questions about fleets that change: autoscale and resilience."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.api.options import BUDGET_RUNS, By, Goal, effort_of, goal_of, journal_of, with_seed, within
from simserve.errors import SimserveError
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.autoscale import AutoscaleAnswer
    from simserve.metrics.answers.resilience import ResilienceAnswer
    from simserve.scenario.loader import AnyScenario
    from simserve.study.autoscale import AutoscaleQuestion

POLICIES = ("hpa", "keda", "wva")


def autoscale(
    scenario: "AnyScenario",
    *,
    policies: Sequence[Any] | None = None,
    signals: bool = False,
    recorded: str | Path | None = None,
    columns: str | None = None,
    silent_s: float | None = None,
    pool: str | None = None,
    max_replicas: int | None = None,
    replications: int | None = None,
    goal: Goal = None,
    by: By = None,
    confidence: float = CONFIDENCE,
    budget_runs: int | None = None,
    seed: int | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    **changes: object,
) -> "AutoscaleAnswer":
    """Run a load under several autoscaling policies of one pool, on the same seeds. Raises SimserveError.

    `policies`: names such as hpa, `own` for that of the scenario, `fixed` or `fixed:4` for replicas that stay, the path
    of a manifest, or an autoscaler as a scenario has it. `signals`: rank the metrics that could scale the pool, each
    under one bare rule. `recorded`: a file of signals to feed the policies instead of a simulation, with `columns` by
    our names and `silent_s` from joining to a first sample. `replications` and draws of costs: what 40 runs allow,
    `signals` by noise alone; `budget_runs`: seeds of a policy on the edge. `out` keeps finished runs, so
    that the same call goes on.
    """
    from simserve.scenario.loader import template_from
    from simserve.study.autoscale import AutoscaleQuestion
    from simserve.study.scaling_signals import ranked, replayed, signal_question

    if signals and (policies or recorded):
        raise SimserveError("--signals: has policies of its own, got others; leave out --policy and --recorded")
    if recorded is None and (columns is not None or silent_s is not None):
        raise SimserveError("--map, --silent-s: are of recorded signals, got none; give --recorded FILE, too")
    template = template_from(scenario, with_seed(changes, seed))
    effort = effort_of(budget_runs or BUDGET_RUNS, confidence, by or ("noise" if signals else None))
    if replications is None and budget_runs is None:
        effort = replace(effort, most_runs=0)  # no more than what 40 runs allow
    wanted, goal_frac = (pool, max_replicas), goal_of(goal)
    if signals:
        of_signals, n_fixed = signal_question(template, wanted, replications, goal_frac, effort)
        return ranked(_answered(of_signals, jobs, out), n_fixed)
    question = AutoscaleQuestion.of(template, policies or POLICIES, wanted, replications, goal_frac, effort)
    if recorded is not None:
        return replayed(question, Path(recorded), columns, silent_s and within("--silent-s", silent_s, (0, 86_400)))
    return _answered(question, jobs, out)


def _answered(question: "AutoscaleQuestion", jobs: int | None, out: Path | None) -> "AutoscaleAnswer":
    """Run what the folder lacks, and return the answer."""
    from simserve.metrics.answers.sweep_runs import read_run
    from simserve.study.autoscale import autoscale_facts
    from simserve.study.processes import in_processes
    from simserve.study.sweep.sweep import check_any, run_sweep
    from simserve.tables.folder import AUTOSCALE

    with journal_of(AUTOSCALE, read_run, jobs, out) as journal:
        swept = run_sweep(question.sweep, journal, in_processes)
    check_any(swept)
    return autoscale_facts(question, swept)


def resilience(
    scenario: "AnyScenario",
    *,
    spare: int | str = "0..2",
    kinds: Sequence[str] = (),
    pool: str | None = None,
    replications: int | None = None,
    goal: Goal = None,
    seed: int | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    **changes: object,
) -> "ResilienceAnswer":
    """Return what failures of one pool cost, and the fewest spares with which its goal holds. Raises SimserveError.

    `spare`: numbers of spares, as `0..2`; `kinds`: failures to expect, such as process, instead of the scenario's.
    `out` keeps finished runs, so that the same call goes on.
    """
    from simserve.metrics.answers.sweep_runs import read_run
    from simserve.scenario.loader import template_from
    from simserve.study.failures import ResilienceQuestion
    from simserve.study.processes import in_processes
    from simserve.study.resilience import ResilienceStudy
    from simserve.tables.folder import RESILIENCE

    template = template_from(scenario, with_seed(changes, seed))
    question = ResilienceQuestion(template, pool, str(spare), [*kinds], replications, goal_of(goal))
    with journal_of(RESILIENCE, read_run, jobs, out) as journal:
        return ResilienceStudy(question, journal, in_processes).answer()
