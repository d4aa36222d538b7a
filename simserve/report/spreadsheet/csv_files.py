"""CSV: a file a sheet, the heads with their units in its first line, numbers in full."""

import csv
import io
import math
from collections.abc import Sequence

from simserve.report.spreadsheet.sheets import Cell, Form, Sheet, cell_of

BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in spreadsheets, even in a text file."""


def csv_files(sheets: Sequence[Sheet]) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {file_name(sheet.name): _text(sheet) for sheet in sheets}


def file_name(sheet_name: str) -> str:
    """Return `time_series.csv` of the sheet `Time series`."""
    return f"{sheet_name.lower().replace(' ', '_')}.csv"


def _text(sheet: Sheet) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(sheet.heads)
    forms = [column.form for column in sheet.columns]
    for group in sheet.groups:
        for row in group.rows:
            cells = (_written(cell_of(value), form) for value, form in zip(row, forms, strict=True))
            writer.writerow([_written(Cell(group.title), "text"), *cells])
    return file.getvalue()


def _written(cell: Cell, form: Form) -> str:
    """Return a formula as its value, and text that a spreadsheet would compute behind an apostrophe."""
    value = cell.value
    if isinstance(value, str):
        return f"'{value}" if value.startswith(BEGINNINGS) else value
    if value is None or not math.isfinite(value):
        return ""
    return str(int(value)) if (cell.form or form) == "count" and value == int(value) else repr(value)
