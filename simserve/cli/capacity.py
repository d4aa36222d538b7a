"""`simserve capacity`: the highest load at which the SLO still holds; or the fewest replicas, or the best split."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.options import (
    AllowPlugin,
    AsJson,
    Assignments,
    BudgetRuns,
    By,
    Confidence,
    Goal,
    Jobs,
    ScenarioFile,
    Seed,
    effort_of,
    loaded,
)
from simserve.metrics.goal import CONFIDENCE, GOAL_FRAC, LOOKS

if TYPE_CHECKING:
    from simserve.cli.terminal import ProgressBar
    from simserve.study.capacity.capacity_result import CapacityResult
    from simserve.study.capacity.question import CapacityQuestion

NO = 1

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
Folder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the answer, its runs and a page. Default: none."),
]


def capacity(
    scenario: ScenarioFile,
    goal: Goal = None,
    precision: Precision = 0.03,
    concurrency: Concurrency = False,
    replicas: Replicas = None,
    ratio: Ratio = None,
    gpus: Gpus = None,
    out: Folder = None,
    assignments: Assignments = None,
    seed: Seed = None,
    by: By = None,
    confidence: Confidence = CONFIDENCE,
    budget_runs: BudgetRuns = LOOKS[-1],
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    as_json: AsJson = False,
) -> None:
    """Find the p99 goodput: the highest rate at which 99% of requests meet the SLO; or clients, replicas, a split."""
    from simserve.cli import terminal
    from simserve.report.capacity.page import tell
    from simserve.study.capacity.question import CapacityQuestion
    from simserve.tables.folder import CAPACITY, check_folder

    effort = effort_of(budget_runs, confidence, by)
    question = CapacityQuestion(loaded(scenario, assignments, seed, allow_plugin), goal or GOAL_FRAC, precision, effort)
    if out is not None:
        check_folder(out, CAPACITY)
    with terminal.progress_bar() as bar:
        result = _ask(question, {"--concurrency": concurrency, "--replicas": replicas, "--ratio": ratio}, gpus, bar)
    answer = result.answer
    if out is not None:
        _write(out, result, question)
    terminal.answer(tell(answer), answer.facts(), terminal.place_of(out) if out else "", as_json=as_json)
    if answer.answer is None and answer.state != "every load":
        raise typer.Exit(NO)


def _ask(
    question: "CapacityQuestion",
    requested: Mapping[str, bool | str | None],
    gpus: int | None,
    bar: "ProgressBar | None",
) -> "CapacityResult":
    """Answer the one question that the options ask. Raises SimserveError for two at once."""
    from simserve.errors import SimserveError

    given = [option for option, value in requested.items() if value]
    if len(given) > 1:
        raise SimserveError(f"{', '.join(given)}: ask one thing at a time, got {len(given)}; leave out the others")
    if gpus is not None and given != ["--ratio"]:
        raise SimserveError(f"--gpus: says how many GPUs --ratio splits, got {gpus} without it; add --ratio")
    if given == ["--ratio"] and question.effort.by == "total":
        remedy = "leave it out, and ask for the capacity of the best split"
        raise SimserveError(f"--by: must not be total with --ratio, which compares splits by noise; {remedy}")
    text = (lambda rate, n: bar.show(f"{rate:.3g} requests/s: {n} runs")) if bar else None
    if not given:
        from simserve.study.capacity.rate import study_rate

        return study_rate(question, text)
    if given == ["--concurrency"]:
        from simserve.study.capacity.concurrency import study_concurrency

        return study_concurrency(question, text)
    pools = str(requested[given[0]])
    if given == ["--ratio"]:
        from simserve.study.capacity.ratio import study_ratio

        return study_ratio(question, pools, gpus, text)
    from simserve.study.capacity.fleet_size import study_fleet_size

    return study_fleet_size(question, pools, (lambda n: bar.show(f"{n} replicas of {pools}")) if bar else None)


def _write(directory: Path, result: "CapacityResult", question: "CapacityQuestion") -> None:
    """The folder, whole or not at all."""
    from simserve.report.capacity.page import tell
    from simserve.report.html import page
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text
    from simserve.tables.folder import CAPACITY

    texts = {
        "capacity.json": json_text(result.answer.facts()),
        "scenario.yaml": question.scenario.to_yaml(),
        "report.html": page(tell(result.answer)),
    }
    write_study(directory, CAPACITY, texts, result.rows)
