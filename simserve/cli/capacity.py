"""`simserve capacity`: the highest load at which the SLO still holds; or the fewest replicas, or the best split."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.api import answers
from simserve.api.options import BUDGET_RUNS, PRECISION
from simserve.cli.options import (
    NO,
    AllowPlugin,
    AsJson,
    Assignments,
    BudgetRuns,
    By,
    Confidence,
    Goal,
    Jobs,
    Opens,
    Out,
    Quiet,
    ScenarioFile,
    Seed,
    loaded,
)
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.capacity import CapacityAnswer

Precision = Annotated[
    float,
    typer.Option("--precision", min=0.001, max=0.5, help="Half-width of the 95% CI as a share of the answer."),
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
        "--ratio",
        metavar="PREFILL:DECODE",
        help="Find the best split of GPUs between these two pools instead.",
    ),
]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=2, help="With --ratio: GPUs to split. Default: those of both pools.")
]


def capacity(
    scenario: ScenarioFile,
    goal: Goal = None,
    precision: Precision = PRECISION,
    concurrency: Concurrency = False,
    replicas: Replicas = None,
    ratio: Ratio = None,
    gpus: Gpus = None,
    out: Out = None,
    assignments: Assignments = None,
    seed: Seed = None,
    by: By = None,
    confidence: Confidence = CONFIDENCE,
    budget_runs: BudgetRuns = BUDGET_RUNS,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Find the p99 goodput: the highest rate at which 99% of requests meet the SLO; or clients, replicas, a split."""
    from simserve.cli import terminal
    from simserve.report.capacity.page import tell
    from simserve.tables.folder import CAPACITY, check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
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
    if out is not None:
        _write(out, answer)
    terminal.answer(tell(answer), answer.facts(), out, as_json=as_json)
    if answer.answer is None and answer.state != "every load":
        raise typer.Exit(NO)


def _write(directory: Path, answer: "CapacityAnswer") -> None:
    """The folder, whole or not at all."""
    from simserve.report.capacity.page import tell
    from simserve.report.html import page
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text
    from simserve.tables.folder import CAPACITY

    texts = {
        "capacity.json": json_text(answer.facts()),
        "scenario.yaml": answer.scenario_yaml or "",
        "report.html": page(tell(answer)),
    }
    write_study(directory, CAPACITY, texts, answer.rows)
