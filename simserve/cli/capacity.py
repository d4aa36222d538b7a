"""`simserve capacity`: the highest load at which the SLO still holds; or the fewest replicas, or the best split."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.run import AsJson, Assignments, Goal, ScenarioFile, Seed
from simserve.metrics.goal import GOAL_FRAC

if TYPE_CHECKING:
    from simserve.cli.terminal import ProgressBar
    from simserve.study.capacity.capacity_result import Found
    from simserve.study.capacity.question import Question

NO = 1


def capacity(
    scenario: ScenarioFile,
    goal: Goal = None,
    precision: Annotated[
        float,
        typer.Option("--precision", min=0.001, max=0.5, help="Half the interval's width, as a share of the answer."),
    ] = 0.03,
    concurrency: Annotated[
        bool, typer.Option("--concurrency", help="Ask how many clients a closed loop may have, instead.")
    ] = False,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas", metavar="POOL", help="Ask how many replicas of that pool the load needs as it is, instead."
        ),
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option(
            "--ratio",
            metavar="PREFILL:DECODE",
            help="Ask how to split GPUs between these two pools, named in that order, instead.",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=2, help="For --ratio: how many to split; left out: those of the two.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the answer, its runs and a page there; left out: nowhere."),
    ] = None,
    assignments: Assignments = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Find the p99 goodput: the highest rate at which 99 % of requests meet the SLO; or clients, replicas, a split."""
    from simserve import load_scenario
    from simserve.cli import terminal
    from simserve.study.capacity.question import Question
    from simserve.tables.folder import check_folder
    from simserve.tables.kinds import CAPACITY

    question = Question(load_scenario(scenario, overrides=assignments or (), seed=seed), goal or GOAL_FRAC, precision)
    if out is not None:
        check_folder(out, CAPACITY)
    with terminal.progress_bar() as bar:
        found = _ask(question, {"--concurrency": concurrency, "--replicas": replicas, "--ratio": ratio}, gpus, bar)
    if out is not None:
        _write(out, found, question)
    if as_json:
        terminal.result_json(found.facts)
    else:
        terminal.result(_told(found.facts, out))
    terminal.warnings(found.facts["warnings"])
    if found.facts["answer"] is None and found.facts.get("state") != "every load":
        raise typer.Exit(NO)


def _ask(
    question: "Question", asked: Mapping[str, bool | str | None], gpus: int | None, bar: "ProgressBar | None"
) -> "Found":
    """Which of the questions it is. Raises SimserveError for two at once."""
    from simserve.errors import SimserveError

    given = [option for option, value in asked.items() if value]
    if len(given) > 1:
        raise SimserveError(f"{', '.join(given)}: ask one thing at a time, got {len(given)}; leave out the others")
    if gpus is not None and given != ["--ratio"]:
        raise SimserveError(f"--gpus: says how many GPUs --ratio splits, got {gpus} without it; add --ratio")
    told = (lambda rate, n: bar.show(f"{rate:.3g} requests/s: {n} runs")) if bar else None
    if not given:
        from simserve.study.capacity.rate_study import study_rate

        return study_rate(question, told)
    if given == ["--concurrency"]:
        from simserve.study.capacity.concurrency import study_concurrency

        return study_concurrency(question, told)
    pools = str(asked[given[0]])
    if given == ["--ratio"]:
        from simserve.study.capacity.ratio import study_ratio

        return study_ratio(question, pools, gpus, told)
    from simserve.study.capacity.fleet_size import study_fleet_size

    return study_fleet_size(question, pools, (lambda n: bar.show(f"{n} replicas of {pools}")) if bar else None)


def _told(found: dict[str, Any], out: Path | None) -> str:
    """The answer, what lies around it, what was tried, and where the files are."""
    from simserve.cli import terminal
    from simserve.report.capacity.words import paragraphs, table_rows

    where = [] if out is None else [f"{out / 'report.html'} (all files: {out}/)"]
    return "\n\n".join([*paragraphs(found), terminal.table(table_rows(found)), *where])


def _write(directory: Path, found: "Found", question: "Question") -> None:
    """The folder, whole or not at all."""
    from simserve.report.capacity.page import render
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text, plain
    from simserve.tables.kinds import CAPACITY

    texts = {
        "capacity.json": json_text(found.facts),
        "scenario.yaml": question.scenario.to_yaml(),
        "report.html": render(plain(found.facts)),
    }
    write_study(directory, CAPACITY, texts, found.rows)
