"""`simserve run`: simulate one scenario, write its files, and print the answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simserve.cli import trace_file
from simserve.cli.options import (
    AllowPlugin,
    AsJson,
    Assignments,
    BudgetRuns,
    Confidence,
    Jobs,
    ScenarioFile,
    Seed,
    effort_of,
    loaded,
)
from simserve.metrics.goal import CONFIDENCE, LOOKS

if TYPE_CHECKING:
    from simserve.cli.terminal import ProgressBar
    from simserve.metrics.results import Results
    from simserve.scenario import Scenario
    from simserve.study.precision import Wanted

Steps = Annotated[
    Literal["stretch", "full", "none"],
    typer.Option(
        "--steps", help="Rows of steps.parquet: one per run of similar steps, one per step, or no file (and no spans)."
    ),
]
Replications = Annotated[
    int | None, typer.Option("--replications", metavar="R", help="Number of seeds; all figures get intervals.")
]
Precision = Annotated[
    float | None,
    typer.Option(
        "--precision", metavar="SHARE", help="Add seeds until the 95% CI half-width is this fraction of the mean."
    ),
]


def run(
    scenario: ScenarioFile,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Default: reports/<name>.")] = None,
    assignments: Assignments = None,
    seed: Seed = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Leave out report.html.")] = False,
    steps: Steps = "stretch",
    timeline: trace_file.Timeline = None,
    timeline_requests: trace_file.TimelineRequests = trace_file.SLOWEST_20,
    replications: Replications = None,
    precision: Precision = None,
    of: Annotated[
        str | None, typer.Option("--of", metavar="MEASURE", help="Metric for --precision [default: ttft_s.p99].")
    ] = None,
    budget_runs: BudgetRuns = LOOKS[-1],
    confidence: Confidence = CONFIDENCE,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Simulate a scenario: write tables, summary and page."""
    from simserve.cli import terminal
    from simserve.report.run_head import run_head
    from simserve.report.summary_reader import SummaryReader
    from simserve.study.uncertainty import run_with_replays
    from simserve.tables.folder import check_folder

    simulated = loaded(scenario, assignments, seed, allow_plugin)
    directory = out or Path("reports") / simulated.name
    check_folder(directory)
    traces = trace_file.wanted(timeline, timeline_requests, directory)
    effort = effort_of(budget_runs, confidence)
    wanted = _wanted(simulated, replications, precision, of)
    with terminal.progress_bar(is_wanted=not quiet) as bar:
        on_replay = (lambda n, of: bar.show(f"replays: {n} of {of} runs")) if bar else None
        results = run_with_replays(simulated, bar.draw if bar else None, on_replay, directory, effort)
        if wanted is not None:
            _replicate(simulated, results, wanted, bar)
        if bar:
            bar.show("writing the results")
        drawn = [each.draw(results) for each in traces]
        results.write(directory, steps=steps, report=None if no_report else _render)
        for each in drawn:
            each.write()
    document = run_head(SummaryReader(results.summary))
    where = _place(directory, timeline, has_page=not no_report)
    terminal.answer(document, results.summary, where, as_json=as_json, quiet=quiet)
    if not quiet:
        terminal.warnings(text for each in drawn for text in each.left_out)


def _wanted(scenario: "Scenario", n: int | None, precision: float | None, of: str | None) -> "Wanted | None":
    """Return the replications of the options; None without. Raises SimserveError."""
    if (n, precision, of) == (None, None, None):
        return None
    from simserve.study.deterministic_load import check_not_deterministic
    from simserve.study.precision import wanted_runs

    wanted = wanted_runs(n, precision, of)
    check_not_deterministic(scenario, *(("--replications", n) if precision is None else ("--precision", precision)))
    return wanted


def _replicate(scenario: "Scenario", results: "Results", wanted: "Wanted", bar: "ProgressBar | None") -> None:
    from simserve.study.precision import add_replications

    progress = (lambda n, of: bar.show(f"replication {n} of {of} more")) if bar else None
    add_replications(scenario, results, wanted, progress)


def _render(results: "Results") -> str:
    from simserve.report.page import render

    return render(results)


def _place(directory: Path, timeline: Path | None, *, has_page: bool) -> str:
    """Return where the files are."""
    from simserve.cli import terminal

    where = terminal.place_of(directory) if has_page else f"{directory}/"
    return where if timeline is None else f"{where}\n{timeline} (open it in ui.perfetto.dev)"
