"""`simserve run`: simulate one scenario, write its files, and print the answer."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simserve.api import answers
from simserve.api.options import BUDGET_RUNS
from simserve.cli import options, terminal, trace_file
from simserve.metrics.goal import CONFIDENCE

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
    typer.Option("--precision", help="Add seeds until the 95% CI half-width is this fraction of the mean."),
]

Measure = Annotated[
    str | None, typer.Option("--of", metavar="MEASURE", help="Metric for --precision [default: ttft_s.p99].")
]


def run(
    scenario: options.ScenarioFile,
    out: options.Place = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Leave out report.html.")] = False,
    steps: Steps = "stretch",
    timeline: trace_file.Timeline = None,
    timeline_requests: trace_file.TimelineRequests = trace_file.SLOWEST_20,
    replications: Replications = None,
    precision: Precision = None,
    of: Measure = None,
    budget_runs: options.BudgetRuns = BUDGET_RUNS,
    confidence: options.Confidence = CONFIDENCE,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a scenario: write tables, summary and page."""
    from simserve.report.page import render
    from simserve.report.run_head import run_head
    from simserve.report.run_view import RunView
    from simserve.report.trace.trace import trace
    from simserve.tables.folder import check_folder

    simulated = options.loaded(scenario, assignments, seed, allow_plugin)
    check_folder(directory := out or Path("reports") / simulated.name)
    traces = trace_file.wanted(timeline, timeline_requests, directory)
    with terminal.progress_bar() as bar:
        results = answers.run(
            simulated,
            replications=replications,
            precision=precision,
            of=of,
            budget_runs=budget_runs,
            confidence=confidence,
            out=directory,
        )
        bar.show("writing the results")
        drawn = {file: trace(results, chosen) for file, chosen in traces.items()}
        results.write(directory, steps=steps, report=None if no_report else render)
        trace_file.write(drawn)
    more = [f"{directory}/"] if no_report else []
    more += [] if timeline is None else [f"{timeline} (open it in ui.perfetto.dev)"]
    folder, document = None if no_report else directory, run_head(RunView(results.figures))
    terminal.answer(document, results.summary, folder, as_json=as_json, more=more)
    terminal.warnings(each.cut for each in drawn.values() if each.cut)
