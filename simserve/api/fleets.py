"""Questions about fleets that change: autoscale."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from simserve.api.options import BUDGET_RUNS, By, Goal, effort_of, goal_of, with_seed
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.autoscale import AutoscaleAnswer
    from simserve.scenario.loader import AnyScenario

POLICIES = ("hpa", "keda", "wva")


def autoscale(
    scenario: "AnyScenario",
    *,
    policies: Sequence[Any] = POLICIES,
    pool: str | None = None,
    max_replicas: int | None = None,
    replications: int = 8,
    goal: Goal = None,
    by: By = "noise",
    confidence: float = CONFIDENCE,
    budget_runs: int = BUDGET_RUNS,
    seed: int | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    **changes: object,
) -> "AutoscaleAnswer":
    """Run a load under several autoscaling policies of one pool, on the same seeds. Raises SimserveError.

    `policies`: names such as hpa, `own` for that of the scenario, `fixed` or `fixed:4` for replicas that stay, the path
    of a manifest, or an autoscaler as a scenario has it. `out` keeps finished runs, so that the same call goes on.
    """
    from simserve.metrics.answers.sweep_runs import read_run
    from simserve.scenario.loader import template_from
    from simserve.study.autoscale import AutoscaleQuestion, autoscale_facts
    from simserve.study.processes import in_processes, limited_to
    from simserve.study.sweep.sweep import check_any, run_sweep
    from simserve.tables.folder import AUTOSCALE
    from simserve.tables.journal import open_journal

    template, effort = template_from(scenario, with_seed(changes, seed)), effort_of(budget_runs, confidence, by)
    question = AutoscaleQuestion.of(template, policies, (pool, max_replicas), replications, goal_of(goal), effort)
    with ExitStack() as stack:
        stack.enter_context(limited_to(jobs))
        folder = out or Path(stack.enter_context(TemporaryDirectory()))
        journal = stack.enter_context(open_journal(folder, AUTOSCALE, read_run))
        swept = run_sweep(question.sweep, journal, in_processes)
    check_any(swept)
    return autoscale_facts(question, swept)
