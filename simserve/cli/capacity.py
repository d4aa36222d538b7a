"""`simserve capacity`: the highest load at which the SLO still holds; or the fewest replicas, or the best split."""

from typing import Annotated

import typer

from simserve.api import answers
from simserve.api.options import BUDGET_RUNS, PRECISION
from simserve.cli import options, terminal
from simserve.metrics.goal import CONFIDENCE

Precision = Annotated[
    float, typer.Option("--precision", min=0.001, max=0.5, help="Half-width of the 95% CI as a share of the answer.")
]
Concurrency = Annotated[bool, typer.Option("--concurrency", help="Find the most clients of a closed loop instead.")]
Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas", metavar="POOL", help="Find how many replicas of this pool the scenario's load needs instead."
    ),
]
Ratio = Annotated[
    str | None,
    typer.Option(
        "--ratio", metavar="PREFILL:DECODE", help="Find the best split of GPUs between these two pools instead."
    ),
]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=2, help="With --ratio: GPUs to split. Default: those of both pools.")
]


def capacity(
    scenario: options.ScenarioFile,
    goal: options.Goal = None,
    precision: Precision = PRECISION,
    concurrency: Concurrency = False,
    replicas: Replicas = None,
    ratio: Ratio = None,
    gpus: Gpus = None,
    out: options.Out = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    by: options.By = None,
    confidence: options.Confidence = CONFIDENCE,
    budget_runs: options.BudgetRuns = BUDGET_RUNS,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Find the p99 goodput: the highest rate at which 99% of requests meet the SLO; or clients, replicas, a split."""
    from simserve.report.capacity.page import tell
    from simserve.tables.folder import CAPACITY, check_folder

    simulated = options.loaded(scenario, assignments, seed, allow_plugin)
    if out is not None:
        check_folder(out, CAPACITY)
    with terminal.progress_bar():
        answer = answers.capacity(
            simulated,
            goal=goal,
            precision=precision,
            concurrency=concurrency,
            replicas=replicas,
            ratio=ratio,
            gpus=gpus,
            by=by,
            confidence=confidence,
            budget_runs=budget_runs,
        )
    document = tell(answer)
    if out is not None:
        terminal.write_study(out, CAPACITY, answer, document, {"scenario.yaml": answer.scenario_yaml or ""})
    terminal.answer(document, answer.facts(), out, as_json=as_json)
    if answer.answer is None and answer.state != "every load":
        raise typer.Exit(options.NO)
