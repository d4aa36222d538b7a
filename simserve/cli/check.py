"""`simserve check`: whether a change loses p99 goodput, as a gate for CI."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.api import comparisons
from simserve.api.options import TOLERANCE
from simserve.cli.options import (
    NO,
    AllowPlugin,
    AsJson,
    Assignments,
    Goal,
    Jobs,
    Opens,
    Out,
    Quiet,
    ScenarioFile,
    Seed,
    loaded,
)
from simserve.metrics.goal import GOAL_FRAC

if TYPE_CHECKING:
    from simserve.metrics.answers.check import CheckAnswer
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
    scenario: ScenarioFile,
    baseline: Kept = None,
    against: Ref = None,
    tolerance: Tolerance = TOLERANCE,
    update: Update = False,
    summary: Summary = None,
    junit: JUnit = None,
    out: Out = None,
    goal: Goal = None,
    assignments: Assignments = None,
    seed: Seed = None,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Fail if p99 goodput fell by significantly more than a tolerance."""
    from simserve.cli import terminal
    from simserve.study.check.against import check_reference

    check_reference(baseline, against, update=update)
    if out is not None:
        _check_folder(out, update=update)
    candidate = loaded(scenario, assignments, seed, allow_plugin, is_trusted=False)
    if update and baseline is not None:
        _update(candidate, baseline, (goal, tolerance), as_json=as_json)
        return
    with terminal.progress_bar():
        answer = comparisons.check(
            candidate,
            baseline=baseline,
            against=against,
            tolerance=tolerance,
            goal=goal,
        )
    if out is not None:
        compared = [("--baseline", baseline), ("--against", against), ("--tolerance", tolerance)]
        changed = [
            *(("--set", each) for each in assignments or ()),
            *(("--allow-plugin", each) for each in allow_plugin or ()),
        ]
        _write(out, answer, scenario, [*compared, ("--goal", goal), ("--seed", seed), *changed])
    _tell(answer, (summary, junit), out, as_json=as_json)
    if not answer.passes:
        raise typer.Exit(NO)


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
    from simserve.cli import terminal
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


def _write(out: Path, answer: "CheckAnswer", scenario: Path, options: list[tuple[str, object]]) -> None:
    """Write the folder, whole or not at all; `options` are those of the command by name, None where not given."""
    from simserve.report.check.page import tell
    from simserve.report.html import page
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text
    from simserve.tables.folder import CHECK

    words = [word for option in options if option[1] is not None for word in option]
    document = tell(answer, [*map(str, ("simserve", "check", scenario, *words))])
    write_study(out, CHECK, {"check.json": json_text(answer.facts()), "report.html": page(document)})


def _tell(answer: "CheckAnswer", files: tuple[Path | None, Path | None], out: Path | None, *, as_json: bool) -> None:
    """Print the answer, and write a summary and a test report if requested."""
    from simserve.cli import terminal
    from simserve.report.check.page import tell
    from simserve.report.check.words import junit_xml, markdown
    from simserve.tables.files import replace_text

    for file, made in zip(files, (markdown, junit_xml), strict=True):
        if file is not None:
            replace_text(file, made(answer))
    terminal.answer(tell(answer), answer.facts(), out, as_json=as_json)
