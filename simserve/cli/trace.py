"""`simserve trace`: look at, convert, make and fit traces."""

import typer

app = typer.Typer(help="Look at, convert, generate and fit traces.", no_args_is_help=True, rich_markup_mode=None)


@app.command("info")
def info() -> None:
    """x"""


@app.command("convert")
def convert() -> None:
    """x"""
