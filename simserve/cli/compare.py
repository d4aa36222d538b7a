"""`simserve compare`: which of two servers carries more load, and by how much each measure differs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.api import comparisons
from simserve.cli.options import AllowPlugin, AsJson, By, Confidence, Jobs, Opens, Out, Quiet
from simserve.metrics.goal import CONFIDENCE

if TYPE_CHECKING:
    from simserve.metrics.answers.comparison import ComparisonAnswer

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
    out: Out = None,
    by: By = None,
    confidence: Confidence = CONFIDENCE,
    jobs: Jobs = None,
    allow_plugin: AllowPlugin = None,
    quiet: Quiet = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> None:
    """Decide which of two scenarios carries more load, and compare all measures; of results, measures only."""
    from simserve.allowed_modules import allow_modules
    from simserve.cli import terminal
    from simserve.report.comparison.page import tell
    from simserve.tables.folder import COMPARISON, check_folder

    allow_modules(allow_plugin or (), a.parent, b.parent)
    if out is not None:
        check_folder(out, COMPARISON)
    with terminal.progress_bar():
        answer = comparisons.compare(a, b, replications=replications, by=by, confidence=confidence)
    if out is not None:
        _write(out, answer)
    terminal.answer(tell(answer), answer.facts(), out, as_json=as_json)


def _write(directory: Path, answer: "ComparisonAnswer") -> None:
    """Write the folder, whole or not at all."""
    from simserve.report.comparison.page import tell
    from simserve.report.html import page
    from simserve.study.study_folder import write_study
    from simserve.tables.files import json_text
    from simserve.tables.folder import COMPARISON

    texts = {"comparison.json": json_text(answer.facts()), "report.html": page(tell(answer))}
    write_study(directory, COMPARISON, texts)
