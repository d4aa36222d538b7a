"""`simserve init` and `simserve schema`: a starter scenario, and the JSON Schema of all scenarios."""

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli import terminal


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("scenario.yaml"),
    like: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Begin with a scenario that comes with simserve.")
    ] = None,
    lists: Annotated[bool, typer.Option("--list", help="List these scenarios, and write nothing.")] = False,
) -> None:
    """Write a commented starter scenario, or a copy of one that comes with simserve."""
    from importlib.resources import files

    from simserve.errors import OutputError
    from simserve.scenario.shipped import about, shipped, shipped_file
    from simserve.tables.files import replace_text

    if lists:
        terminal.result("\n".join(f"@{name}: {about(file)}" for name, file in shipped().items()))
        return
    source = files("simserve.cli").joinpath("starter.yaml") if like is None else shipped_file(like)
    if path.exists() and (not path.is_file() or path.stat().st_size):
        raise OutputError(f"{path}: already exists, and init never overwrites; name another file")
    replace_text(path, source.read_text(encoding="utf-8"))
    terminal.message(f"wrote {path}. Next: simserve run {path}")


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    from simserve.scenario import scenario_schema

    terminal.result_json(scenario_schema())
