"""`simserve report`: the page of an earlier run, made again from its tables."""

from pathlib import Path
from typing import Annotated

import typer


def report(directory: Annotated[Path, typer.Argument(metavar="DIR", help="What an earlier run wrote.")]) -> None:
    """Make the page of an earlier run again."""
    from simserve import load_results
    from simserve.cli import terminal
    from simserve.report.page import render
    from simserve.tables.files import replace_text

    page = directory / "report.html"
    replace_text(page, render(load_results(directory)))
    terminal.result(str(page))
