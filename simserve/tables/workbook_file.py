"""Workbook file: checks the path of an .xlsx file."""

from pathlib import Path

from simserve.errors import OutputError
from simserve.tables.kinds import KINDS


def check_workbook_file(path: Path) -> None:
    """Raise OutputError if no program would open the file, or if it would lie inside a result."""
    if path.suffix != ".xlsx":
        raise OutputError(f"{path}: must end in .xlsx, got {path.name}; spreadsheet programs require it")
    if path.is_dir():
        raise OutputError(f"{path}: must be a file, got a folder; choose another --xlsx")
    if not path.parent.is_dir():
        raise OutputError(
            f"{path}: must be in a folder, got no folder {path.parent}; make it, or choose another --xlsx"
        )
    names = {entry.name for entry in path.parent.iterdir()}
    kind = next(
        (kind for kind in KINDS if kind.required_files <= names <= kind.files and path.name not in kind.files), None
    )
    if kind is not None:  # the command would refuse to write there again
        rule = f"must not lie among the files of simserve {kind.name}, got {path.parent}"
        raise OutputError(f"{path}: {rule}; choose another --xlsx")
