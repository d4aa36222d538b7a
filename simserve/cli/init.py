"""`simserve init`: write a starter scenario."""

from pathlib import Path
from typing import Annotated

import typer


def init(path: Annotated[Path, typer.Argument(help="File to write.")] = Path("scenario.yaml")) -> None:
    """Write a commented starter scenario."""
    from importlib.resources import files

    from simserve.cli import terminal
    from simserve.errors import OutputError

    starter = files("simserve.cli").joinpath("starter.yaml").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(starter)
    except FileExistsError:
        raise OutputError(f"{path}: already exists, and init never overwrites; name another file") from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    terminal.message(f"wrote {path}. Next: simserve run {path}")
