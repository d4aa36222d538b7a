"""CSV: a file a sheet, the heads with their units in its first line, numbers in full."""

import csv
import io
import math
from collections.abc import Sequence

from simserve.report.sheets import Cell, Sheet, cell_of

BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets take for the beginning of a formula, even in a text file."""


def csv_files(sheets: Sequence[Sheet]) -> dict[str, str]:
    """The text of each file by its name."""
    return {file_name(sheet.name): _text(sheet) for sheet in sheets}


def file_name(sheet_name: str) -> str:
    """`time_series.csv` of the sheet `Time series`."""
    return f"{sheet_name.lower().replace(' ', '_')}.csv"


def _text(sheet: Sheet) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(sheet.heads)
    for group in sheet.groups:
        writer.writerows(
            [_written(Cell(group.title)), *(_written(cell_of(value)) for value in row)] for row in group.rows
        )
    return file.getvalue()


def _written(cell: Cell) -> str:
    """A formula as its value; text that a spreadsheet would compute, behind an apostrophe."""
    value = cell.value
    if isinstance(value, str):
        return f"'{value}" if value.startswith(BEGINNINGS) else value
    return repr(value) if value is not None and math.isfinite(value) else ""
