"""`simserve check`: whether a change loses p99 goodput, as a gate for CI."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.run import AsJson, Assignments, Goal, ScenarioFile, Seed
from simserve.metrics.goal import GOAL_FRAC

if TYPE_CHECKING:
    from simserve.cli.terminal import ProgressBar
    from simserve.scenario import Scenario
    from simserve.study.check.side import Told

NO = 1

Kept = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="Hold it against this file, which --update wrote.")
]
Ref = Annotated[str | None, typer.Option("--against", metavar="REF", help="Or against the file at another git ref.")]
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0.0, max=0.9, help="The share of p99 goodput that may be lost.")
]
Update = Annotated[bool, typer.Option("--update", help="Write the baseline instead of holding against it.")]
Summary = Annotated[
    Path | None, typer.Option("--summary", metavar="FILE.md", help="Write the answer in Markdown, too.")
]
JUnit = Annotated[Path | None, typer.Option("--junit", metavar="FILE.xml", help="And as a test report.")]


def check(
    scenario: ScenarioFile,
    baseline: Kept = None,
    against: Ref = None,
    tolerance: Tolerance = 0.02,
    update: Update = False,
    summary: Summary = None,
    junit: JUnit = None,
    goal: Goal = None,
    assignments: Assignments = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Fail where p99 goodput is lost, by more than a tolerance and beyond chance."""
    from simserve import load_scenario
    from simserve.errors import SimserveError

    if (baseline is None) == (against is None) or (update and baseline is None):
        rule = "must have one of --baseline FILE, to be written with --update, and --against REF"
        raise SimserveError(
            f"check: {rule}, got {'both' if baseline and against else 'no file'}; `check --help` has all"
        )
    loaded = load_scenario(scenario, overrides=assignments or (), seed=seed)
    if update and baseline is not None:
        _update(loaded, baseline, (goal, tolerance), as_json=as_json)
        return
    found = _found(loaded, (scenario, baseline, against), (goal, tolerance))
    _tell(found, (summary, junit), as_json=as_json)
    if not found["passes"]:
        raise typer.Exit(NO)


def _found(
    loaded: "Scenario", places: tuple[Path, Path | None, str | None], asked: tuple[float | None, float]
) -> dict[str, Any]:
    """What came of it. Places are those of the scenario, its baseline and its git ref; asked, goal and tolerance."""
    from simserve.cli import terminal
    from simserve.study.check.against import against_file, against_ref
    from simserve.study.check.check import check as check_sides
    from simserve.study.check.facts import check_facts
    from simserve.study.check.side import Side

    (scenario, baseline, ref), (goal, tolerance) = places, asked
    with terminal.progress_bar() as bar:
        told = _told(bar)
        if baseline is not None:
            against = against_file(baseline, loaded, goal)
        else:
            against = against_ref((scenario, str(ref)), loaded, goal, told)
        return check_facts(check_sides(against, Side(loaded, against.goal_frac, told), tolerance))


def _update(loaded: "Scenario", baseline: Path, asked: tuple[float | None, float], *, as_json: bool) -> None:
    """Measure, write, and say what was written."""
    from simserve.cli import terminal
    from simserve.report.check import baseline_sentence
    from simserve.study.check.baseline import check_place, write_baseline
    from simserve.study.check.measured import doubts, well_measured
    from simserve.study.check.side import Side

    goal, tolerance = asked
    check_place(baseline)
    with terminal.progress_bar() as bar:
        found = well_measured(Side(loaded, goal or GOAL_FRAC, _told(bar)), tolerance)
    write_baseline(baseline, found)
    if as_json:
        terminal.result_json(found.model_dump(by_alias=True))
    else:
        terminal.result(baseline_sentence(found.model_dump(), str(baseline)))
    terminal.warnings(doubts(found, goal or GOAL_FRAC, tolerance))


def _tell(found: dict[str, Any], files: tuple[Path | None, Path | None], *, as_json: bool) -> None:
    """On the terminal, and in a summary and a test report where they are wanted."""
    from simserve.cli import terminal
    from simserve.report.check import markdown, sentence, table_rows
    from simserve.report.junit import junit_xml
    from simserve.tables.files import plain, replace_text

    found = plain(found)
    for file, made in zip(files, (markdown, junit_xml), strict=True):
        if file is not None:
            replace_text(file, made(found))
    if as_json:
        terminal.result_json(found)
    else:
        terminal.result(f"{sentence(found)}\n\n{terminal.table(table_rows(found))}")


def _told(bar: "ProgressBar | None") -> "Told | None":
    return (lambda scale, n: bar.show(f"{scale:.3g} times the load: {n} runs")) if bar else None
