"""Sheets: tables of numbers for spreadsheets, a workbook or CSV files; and the text of the latter."""

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from simserve.metrics.answers import struct

Value = str | float | int | None
"""None, and a float that is not finite, are empty cells."""

Form = Literal["text", "count", "rate", "number", "ms", "share", "usd", "dollars", "whole", "tall"]
"""Format of a value. usd has cents, dollars none; whole is a number without decimals; tall is text that wraps."""


@dataclass(frozen=True)
class Cell:
    """A value that is more than its column says."""

    value: Value
    form: Form | None = None
    """Format; None: the column's."""
    formula: str | None = None
    """Formula behind `value`: names, `[GPUs]` for this row's cell under that head, `[^GPUs]` for the one above it."""
    name: str | None = None
    """Name in formulas."""
    limits: tuple[float, float] | None = None
    """Range of an input; None: it is no input."""


Row = Sequence[Value | Cell]
Cells = dict[str, Value | Cell]
"""A row by the heads of its columns."""

BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in spreadsheets, even in a text file."""


@dataclass(frozen=True)
class SheetColumn:
    """One column and its title."""

    head: str
    form: Form
    unit: str = ""

    @property
    def title(self) -> str:
        """Return the head with its unit, as it is written."""
        return f"{self.head} ({self.unit})" if self.unit else self.head


@dataclass(frozen=True)
class SheetGroup:
    """Rows that belong together; their title stands in the first column of each."""

    title: str
    rows: Sequence[Row]


Table = tuple[tuple[SheetColumn, ...], tuple[SheetGroup, ...]]


@dataclass(frozen=True)
class ChartSeries:
    """One line, or one set of bars."""

    column: str
    """Head of the column that it shows."""
    is_limit: bool = False
    """A straight line to stay on one side of."""


@dataclass(frozen=True)
class Chart:
    """A picture of one group."""

    title: str
    kind: Literal["line", "points", "bars"]
    group: int
    across: str
    """The head of the column along the bottom."""
    series: tuple[ChartSeries, ...]
    y_title: str
    is_log: bool = False
    most: float | None = None
    """The top of the axis; None: as the values ask for."""


@dataclass(frozen=True)
class Sheet:
    """One table, with what to know of it above and its charts beside or below.

    Invariant: every row has a value for each column.
    """

    name: str
    """A legal name of a sheet; in lower case, the name of its CSV file."""
    title: str
    note: str
    group_head: str
    """Head of the column with the groups' titles."""
    columns: tuple[SheetColumn, ...]
    groups: tuple[SheetGroup, ...]
    charts: tuple[Chart, ...] = ()
    borrowed: tuple[tuple["Sheet", Chart], ...] = ()
    """Charts of other sheets that it shows too."""
    named: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
    """Names in formulas of columns, by the group and head of each."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Return the titles of all columns, that of the groups first."""
        return (self.group_head, *(column.title for column in self.columns))

    @property
    def n_rows(self) -> int:
        """Return the number of rows below the titles."""
        return sum(len(group.rows) for group in self.groups)

    def place(self, head: str) -> int:
        """Return the index of the column with that head; 0 is the groups'."""
        return 1 + [column.head for column in self.columns].index(head)

    def first_row(self, group: int) -> int:
        """Return the first row of a group, counted from 0 below the titles."""
        return sum(len(each.rows) for each in self.groups[:group])


def cell_of(value: Value | Cell) -> Cell:
    """Return the value as a Cell."""
    return value if isinstance(value, Cell) else Cell(value)


def form_and_unit(reads: str) -> tuple[Form, str]:
    """Return what `rate requests/s` says of a value."""
    form, _, unit = reads.partition(" ")
    return cast(Form, form), unit


def ms(value_s: object) -> float | None:
    """Return seconds as milliseconds."""
    return value_s * 1e3 if isinstance(value_s, float | int) else None


FORMS: Mapping[struct.Form, Form] = {
    "sentence": "tall",
    "flag": "text",
    "amount": "rate",
    "seconds": "ms",
    "ratio": "rate",
}
"""Format of a field of an answer, where it has another name than the field's own form."""


def columns_of(answer: type[struct.Struct]) -> dict[str, SheetColumn]:
    """Return the columns of the fields that have a title, by field; `Cost a month (USD)` names a unit."""
    columns = {}
    for name, field in answer.model_fields.items():
        column = struct.column_of(answer, name)
        if column is not None and field.title is not None:
            head, _, unit = field.title.partition(" (")
            form = FORMS.get(column.form, cast(Form, column.form))
            form = "dollars" if form == "whole" and column.unit == "USD" else form
            columns[name] = SheetColumn(head, form, unit.removesuffix(")"))
    return columns


def cells_of(row: struct.Struct) -> Cells:
    """Return the values of the fields that have a title, by the heads of their columns."""
    return {column.head: _cell(getattr(row, name), column.form) for name, column in columns_of(type(row)).items()}


def _cell(value: Value, form: Form) -> Value:
    """Return a value of an answer as a column of that form shows it."""
    if value is True or value is False:
        return "yes" if value else "no"
    return ms(value) if form == "ms" else value


def tabulated(
    columns: Sequence[SheetColumn], groups: Sequence[tuple[str, Sequence[Mapping[str, Value | Cell]]]]
) -> Table:
    """Return groups of rows, given by head, without columns that no row fills."""
    rows = [row for _, group in groups for row in group]
    kept = tuple(column for column in columns if any(cell_of(row.get(column.head)).value is not None for row in rows))
    return kept, tuple(
        SheetGroup(title, [tuple(row.get(column.head) for column in kept) for row in group]) for title, group in groups
    )


def csv_files(sheets: Sequence[Sheet]) -> dict[str, str]:
    """Return the text of each file by its name, `time_series.csv` of the sheet `Time series`."""
    return {f"{sheet.name.lower().replace(' ', '_')}.csv": _text(sheet) for sheet in sheets}


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
