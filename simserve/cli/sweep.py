"""`simserve sweep`: a scenario at many points, on all cores or a cluster; an interrupted sweep resumes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.api.options import BUDGET_RUNS, effort_of
from simserve.cli import options, terminal
from simserve.metrics.goal import CONFIDENCE, GOAL_FRAC

if TYPE_CHECKING:
    from simserve.metrics.answers.sweep_runs import SweepRun
    from simserve.study.processes import Runner
    from simserve.study.sweep.question import SweepQuestion
    from simserve.tables.journal import Journal


def sweep(
    scenario: options.ScenarioFile,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="KEY=VALUES", help="Values to try: gpu=h100-sxm,h200-sxm or KEY=1..8. Repeatable."
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option("--points", metavar="FILE", help="A CSV, parquet or YAML of points; its columns are keys."),
    ] = None,
    replications: Annotated[
        int,
        typer.Option("--replications", min=1, max=1000, help="Runs of each point; all points share the same seeds."),
    ] = 1,
    goal: options.Goal = None,
    out: options.Place = None,
    dask: Annotated[
        str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on that Dask cluster: tcp://host:port.")
    ] = None,
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
    """Run a scenario at many points: every combination of some values, or those of a file."""
    from simserve.allowed_modules import allow_modules
    from simserve.scenario.template import Template
    from simserve.study.sweep.points import parse_axis
    from simserve.study.sweep.question import SweepQuestion, read_points

    allow_modules(allow_plugin or (), scenario.parent)
    effort = effort_of(budget_runs, confidence, by)
    axes = [parse_axis(text) for text in vary or ()]
    listed = [] if points is None else read_points(points)
    template = Template.of(scenario, assignments or (), seed)
    question = SweepQuestion.of(template, axes, listed, replications, goal or GOAL_FRAC, effort)
    _answer(question, out or Path("reports") / f"{question.first.name}-sweep", dask, as_json=as_json)


def _answer(question: "SweepQuestion", directory: Path, dask: str | None, *, as_json: bool) -> None:
    """Run what is missing, write the answer and print it."""
    from simserve.metrics.answers.sweep_runs import read_run
    from simserve.report.sweep.page import tell
    from simserve.study.sweep.facts import sweep_facts
    from simserve.study.sweep.sweep import check_any, n_foreign, run_sweep
    from simserve.tables.folder import SWEEP, check_folder
    from simserve.tables.journal import open_journal

    check_folder(directory, SWEEP)
    with _runner(dask) as run, open_journal(directory, SWEEP, read_run) as journal:
        if n_others := n_foreign(question, journal):
            terminal.message(
                f"{directory} also holds {n_others} finished runs of other points, another scenario or another version "
                "of simserve; they are kept, but are not in this answer"
            )
        if n := journal.n_unread:
            runs, they, are = (f"{n} runs", "they", "are") if n > 1 else ("1 run", "it", "is")
            terminal.message(
                f"{directory} also holds {runs} in the form of another version of simserve; {they} {are} not in this "
                f"answer, and {are} run again where {they} {are} needed"
            )
        with _resume_hint(question, journal, directory), terminal.progress_bar():
            swept = run_sweep(question, journal, run)
        check_any(swept)
        with _resume_hint(question, journal, directory):
            answer = sweep_facts(swept)
            document = tell(answer)
            terminal.write_study(directory, SWEEP, answer, document)
    terminal.answer(document, answer.facts(), directory, as_json=as_json)


@contextmanager
def _runner(dask: str | None) -> Iterator["Runner"]:
    """Yield the runner: local processes or a Dask cluster."""
    if dask is None:
        from simserve.study.processes import in_processes

        yield in_processes
        return
    from simserve.study.dask_cluster import dask_cluster

    with dask_cluster(dask) as cluster:
        yield cluster.run


@contextmanager
def _resume_hint(question: "SweepQuestion", journal: "Journal[SweepRun]", directory: Path) -> Iterator[None]:
    """Print what is kept if the block fails."""
    from simserve.study.sweep.sweep import n_left, n_runs
    from simserve.tables.folder import SWEEP, is_older_answer

    try:
        yield
    except BaseException:
        if n_kept := n_runs(question) - n_left(question, journal):
            older = ", beside the answer of an earlier sweep" if is_older_answer(directory, SWEEP) else ""
            terminal.message(
                f"{n_kept} of {n_runs(question)} runs are kept in {directory}{older}; rerun the same command to resume"
            )
        raise
