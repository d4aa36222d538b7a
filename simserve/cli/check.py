"""`simserve check` and `simserve compare`: whether a change loses p99 goodput, and which server carries more load."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.api import comparisons
from simserve.api.options import TOLERANCE
from simserve.cli import options, terminal
from simserve.metrics.goal import CONFIDENCE, GOAL_FRAC

if TYPE_CHECKING:
    from simserve.scenario import Scenario

Kept = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="Compare with this file, which --update wrote.")
]
Ref = Annotated[
    str | None, typer.Option("--against", metavar="REF", help="Compare with the scenario file at this git ref.")
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0.0, max=0.9, help="Share of p99 goodput that may be lost.")
]
Update = Annotated[bool, typer.Option("--update", help="Write the baseline instead of comparing with it.")]
Summary = Annotated[Path | None, typer.Option("--summary", metavar="FILE.md", help="Write the answer as Markdown.")]
JUnit = Annotated[Path | None, typer.Option("--junit", metavar="FILE.xml", help="Write the answer as a JUnit report.")]


def check(
    scenario: options.ScenarioFile,
    baseline: Kept = None,
    against: Ref = None,
    tolerance: Tolerance = TOLERANCE,
    update: Update = False,
    summary: Summary = None,
    junit: JUnit = None,
    out: options.Out = None,
    goal: options.Goal = None,
    assignments: options.Assignments = None,
    seed: options.Seed = None,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Fail if p99 goodput fell by significantly more than a tolerance."""
    from simserve.report.check.page import tell
    from simserve.report.check.words import junit_xml, markdown
    from simserve.study.check.against import check_reference
    from simserve.tables.files import replace_text
    from simserve.tables.folder import CHECK

    check_reference(baseline, against, update=update)
    if out is not None:
        _check_folder(out, update=update)
    candidate = options.loaded(scenario, assignments, seed, allow_plugin, is_trusted=False)
    if update and baseline is not None:
        _update(candidate, baseline, (goal, tolerance), as_json=as_json)
        return
    with terminal.progress_bar():
        answer = comparisons.check(candidate, baseline=baseline, against=against, tolerance=tolerance, goal=goal)
    if out is not None:
        compared = [("--baseline", baseline), ("--against", against), ("--tolerance", tolerance)]
        changed = [
            *(("--set", each) for each in assignments or ()),
            *(("--allow-plugin", each) for each in allow_plugin or ()),
        ]
        given = [*compared, ("--goal", goal), ("--seed", seed), *changed]
        words = [word for option in given if option[1] is not None for word in option]
        document = tell(answer, [*map(str, ("simserve", "check", scenario, *words))])
        terminal.write_study(out, CHECK, answer, document)
    for file, made in ((summary, markdown), (junit, junit_xml)):
        if file is not None:
            replace_text(file, made(answer))
    terminal.answer(tell(answer), answer.facts(), out, as_json=as_json)
    if not answer.passes:
        raise typer.Exit(options.NO)


def _check_folder(out: Path, *, update: bool) -> None:
    """Raise SimserveError unless the answer can be written there."""
    from simserve.errors import SimserveError
    from simserve.tables.folder import CHECK, check_folder

    if update:
        rule = "must not be with --update, which writes a baseline and no answer"
        raise SimserveError(f"--out: {rule}, got {out}; leave one of them out")
    check_folder(out, CHECK)


def _update(candidate: "Scenario", baseline: Path, requested: tuple[float | None, float], *, as_json: bool) -> None:
    """Measure, write, and print what was written."""
    from simserve.report.check.words import baseline_sentence
    from simserve.study.check.baseline import check_place, write_baseline
    from simserve.study.check.measured import gate_warnings, well_measured
    from simserve.study.check.side import GateSide

    goal, tolerance = requested
    check_place(baseline)
    with terminal.progress_bar():
        match = well_measured(GateSide(candidate, goal or GOAL_FRAC), tolerance)
    write_baseline(baseline, match)
    if as_json:
        terminal.result_json(match.model_dump(by_alias=True))
    else:
        terminal.result(baseline_sentence(match, str(baseline)))
    terminal.warnings(gate_warnings(match, goal or GOAL_FRAC, tolerance))


SIDE = "A scenario, a folder of results, or the JSON of `vllm bench serve`."


def compare(
    a: Annotated[Path, typer.Argument(help=SIDE, show_default=False)],
    b: Annotated[Path, typer.Argument(help="What A is compared with, of the same kind.", show_default=False)],
    replications: Annotated[
        int | None,
        typer.Option(
            "--replications",
            min=2,
            max=1000,
            help="Runs of each scenario at its own load [default: 10]. The decision uses 32 unless this is set.",
            show_default=False,
        ),
    ] = None,
    out: options.Out = None,
    by: options.By = None,
    confidence: options.Confidence = CONFIDENCE,
    jobs: options.Jobs = None,
    allow_plugin: options.AllowPlugin = None,
    quiet: options.Quiet = False,
    opens: options.Opens = False,
    as_json: options.AsJson = False,
) -> None:
    """Decide which of two scenarios carries more load, and compare all measures; of results, measures only."""
    from simserve.allowed_modules import allow_modules
    from simserve.report.comparison.page import tell
    from simserve.tables.folder import COMPARISON, check_folder

    allow_modules(allow_plugin or (), a.parent, b.parent)
    if out is not None:
        check_folder(out, COMPARISON)
    with terminal.progress_bar():
        answer = comparisons.compare(a, b, replications=replications, by=by, confidence=confidence)
    document = tell(answer)
    if out is not None:
        terminal.write_study(out, COMPARISON, answer, document)
    terminal.answer(document, answer.facts(), out, as_json=as_json)
