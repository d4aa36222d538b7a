"""`simserve autoscale`: a load under several autoscaling policies; an interrupted study resumes."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.api.options import BUDGET_RUNS
from simserve.cli.options import (
    AllowPlugin,
    AsJson,
    Assignments,
    BudgetRuns,
    By,
    Confidence,
    Goal,
    Jobs,
    Opens,
    Place,
    Quiet,
    ScenarioFile,
    Seed,
    loaded,
)
from simserve.metrics.goal import CONFIDENCE

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAMES",
        help="Policies: names, manifests, `own`, `fixed:4`, or a mapping as in a scenario. Repeatable.",
    ),
]

Pool = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Pool to scale. Default: the first.")]


def autoscale(
    scenario: ScenarioFile,
    policy: Policies = None,
    pool: Pool = None,
    max_replicas: Annotated[
        int | None, typer.Option("--max-replicas", min=1, help="Most replicas of policies given by name.")
    ] = None,
    replications: Annotated[
        int, typer.Option("--replications", min=1, max=1000, help="Runs of each policy, on the same seeds.")
    ] = 8,
    goal: Goal = None,
    out: Place = None,
    assignments: Assignments = None,
    seed: Seed = None,
    by: By = "noise",
    confidence: Confidence = CONFIDENCE,
    budget_runs: BudgetRuns = BUDGET_RUNS,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Compare autoscaling policies: what each costs, whether it meets the SLO, and whether it oscillates."""
    from simserve.api import fleets
    from simserve.cli import terminal
    from simserve.report.autoscale import tell
    from simserve.report.html import page
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text
    from simserve.tables.folder import AUTOSCALE, check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
    check_folder(folder := out or Path("reports") / f"{simulated.name}-autoscale", AUTOSCALE)
    with terminal.progress_bar():
        answer = fleets.autoscale(
            simulated,
            policies=policy or fleets.POLICIES,
            pool=pool,
            max_replicas=max_replicas,
            replications=replications,
            goal=goal,
            by=by,
            confidence=confidence,
            budget_runs=budget_runs,
            out=folder,
        )
    texts = {"autoscale.json": json_text(answer.facts()), "report.html": page(tell(answer))}
    write_study(folder, AUTOSCALE, texts, answer.rows)
    terminal.answer(tell(answer), answer.facts(), folder, as_json=as_json)
