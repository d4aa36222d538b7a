"""`simserve init` and `simserve schema`: a starter scenario, and the JSON Schema of all scenarios."""

from pathlib import Path
from typing import Annotated

import typer


def init(path: Annotated[Path, typer.Argument(help="File to write.")] = Path("scenario.yaml")) -> None:
    """Write a commented starter scenario."""
    from importlib.resources import files

    from simserve.cli import terminal
    from simserve.errors import OutputError
    from simserve.tables.files import replace_text

    starter = files("simserve.cli").joinpath("starter.yaml").read_text(encoding="utf-8")
    if path.exists() and (not path.is_file() or path.stat().st_size):
        raise OutputError(f"{path}: already exists, and init never overwrites; name another file")
    replace_text(path, starter)
    terminal.message(f"wrote {path}. Next: simserve run {path}")


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    from simserve.cli import terminal
    from simserve.scenario import scenario_schema

    terminal.result_json(scenario_schema())
