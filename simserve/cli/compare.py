"""`simserve compare`: which of two servers carries more load, and by how much each measure differs."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.api import comparisons
from simserve.cli import terminal
from simserve.cli.options import AllowPlugin, AsJson, By, Confidence, Jobs, Opens, Out, Quiet
from simserve.metrics.goal import CONFIDENCE

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
