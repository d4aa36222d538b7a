"""`simserve run`: simulate one scenario, write its files, and print the answer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    if as_json:
        terminal.result_json(results.summary)
    elif not quiet:
        terminal.result(_answer(results.summary, directory, timeline, has_page=not no_report))
    if not quiet:
        terminal.warnings([*results.summary["notes"], *results.summary["warnings"]])
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


def _answer(summary: dict[str, Any], directory: Path, timeline: Path | None, *, has_page: bool) -> str:
    """Return the headline, the tables, and where the files are."""
    from simserve.cli import terminal
    from simserve.report.groups import group_tables
    from simserve.report.headline import headline
    from simserve.report.mechanisms import asked_for
    from simserve.report.percentiles import how_sure, prediction, terminal_table
    from simserve.report.slowest import terminal_sentence
    from simserve.report.summary_reader import SummaryReader

    where = terminal.place_of(directory) if has_page else f"{directory}/"
    if timeline is not None:
        where += f"\n{timeline} (open it in ui.perfetto.dev)"
    reader = SummaryReader(summary)
    latencies = (terminal.table(terminal_table(summary)), how_sure(reader))
    tables = [terminal.table(rows) for rows in group_tables(summary)]
    progress = terminal.table(asked_for(reader))
    parts = (headline(summary), terminal_sentence(reader), *latencies, *tables, progress, prediction(summary), where)
    return "\n\n".join(part for part in parts if part)
