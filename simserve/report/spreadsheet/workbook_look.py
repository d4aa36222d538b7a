"""The look of a workbook: fonts, fills, number formats, and how wide columns and high rows must be."""

import math
from collections.abc import Sequence
from typing import Any

from simserve.report.spreadsheet.sheets import Form, Row, Sheet, cell_of

INK, QUIET, LINE = "#1B1B1A", "#6B6B66", "#D5D5CF"
HEAD_FILL, INPUT_FILL, INPUT_INK = "#22303C", "#FFF4CC", "#0B3D91"
FONT, SIZE = "Arial", 10
"""A font of every Excel, which LibreOffice replaces by one of the same widths."""

NUMBERS: dict[Form, str] = {
    "text": "General",
    "tall": "General",
    "count": "#,##0",
    "rate": "#,##0.00",
    "number": "General",
    "ms": "#,##0.0",
    "share": "0.00%",
    "usd": "$#,##0.00",
    "dollars": "$#,##0",
    "whole": "#,##0",
}

WIDTH = {"tall": 76.0, "text": 44.0}
"""Maximum characters of a text column."""

NUMBER_WIDTH = 18.0
LEAST_WIDTH = 9.0

CHARACTERS = 1.12
"""Characters per unit of width, which is that of a zero."""

PAGE_WIDTH = 230.0
"""Characters across a page that are still large enough."""

LINE_HEIGHT = 13.5
"""Height of a line of text in points."""


class Look:
    """The formats of one workbook, each made once."""

    def __init__(self, book: Any) -> None:
        self._book = book
        self._made: dict[tuple[tuple[str, Any], ...], Any] = {}
        self.title = self._format(bold=True, font_size=16, valign="vcenter")
        self.note = self._format(font_color=QUIET, text_wrap=True, valign="top")

    def head(self, *, is_text: bool) -> Any:
        """Return the format of the column titles."""
        align = {"align": "left", "indent": 1} if is_text else {"align": "right"}
        return self._format(
            bold=True, font_color="#FFFFFF", bg_color=HEAD_FILL, text_wrap=True, valign="bottom", **align
        )

    def group(self, *, is_first: bool) -> Any:
        """Return the format of the first column: the title stands out where a group begins."""
        ink = INK if is_first else QUIET
        return self._format(bold=is_first, font_color=ink, valign="top", align="left", indent=1, **_rule(is_first))

    def cell(self, form: Form, column: Form, *, is_first: bool, is_input: bool) -> Any:
        """Return the format of a value in a column of that form: numbers among text stand to the left."""
        how: dict[str, Any] = {"num_format": NUMBERS[form], "valign": "top", **_rule(is_first)}
        if column in WIDTH:
            how |= {"text_wrap": True, "align": "left", "indent": 1}
        if is_input:
            how |= {"bg_color": INPUT_FILL, "font_color": INPUT_INK, "border": 1, "border_color": LINE}
        return self._format(**how)

    def _format(self, **how: Any) -> Any:
        key = tuple(sorted(how.items()))
        if key not in self._made:
            self._made[key] = self._book.add_format({"font_name": FONT, "font_size": SIZE, "font_color": INK} | how)
        return self._made[key]


def widths(sheet: Sheet) -> list[float]:
    """Return the width of each column in characters: its longest value, and room for the words of its head."""
    result = [
        _fits(max(map(len, (*(group.title for group in sheet.groups), sheet.group_head)), default=0), WIDTH["text"])
    ]
    for place, column in enumerate(sheet.columns):
        words = max(map(len, column.title.split()))
        values = [_length(cell_of(row[place]).value) for group in sheet.groups for row in group.rows]
        most = WIDTH.get(column.form, NUMBER_WIDTH)
        result.append(_fits(max([words, *values]), most))
    return result


def n_pages_wide(result: Sequence[float]) -> int:
    """Return the number of pages across on which columns of those widths can be read."""
    return max(1, math.ceil(sum(result) / PAGE_WIDTH))


def header_height(sheet: Sheet, result: Sequence[float]) -> float:
    """Return the height of the wrapped titles in points."""
    return LINE_HEIGHT * max(_n_lines(head, width) for head, width in zip(sheet.heads, result, strict=True)) + 3


def row_height(row: Row, result: Sequence[float]) -> float:
    """Return the height of a row in points: text wraps, and LibreOffice leaves rows as high as the file says."""
    texts = [(str(cell_of(value).value), width) for value, width in zip(row, result[1:], strict=True)]
    return LINE_HEIGHT * max((_n_lines(text, width) for text, width in texts), default=1) + 1.5


def note_height(sheet: Sheet, result: Sequence[float]) -> float:
    """Return the height of the note in points, wrapped over the width of the table."""
    return LINE_HEIGHT * _n_lines(sheet.note, sum(result)) + 6


def _rule(is_first: bool) -> dict[str, Any]:
    """The line above a group."""
    return {"top": 1, "top_color": LINE} if is_first else {}


def _fits(length: int, most: float) -> float:
    return min(max(length + 2.0, LEAST_WIDTH), most)


def _length(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, float | int) and math.isfinite(value):
        return len(f"{value:,.2f}")
    return 0


def _n_lines(text: str, width: float) -> int:
    """Return the lines that words take in a column, broken between them."""
    width = CHARACTERS * (width - 1.5)
    lines, used = 1, 0.0
    for word in text.split():
        if used and used + 1 + len(word) > width:
            lines, used = lines + 1, 0.0
        used += len(word) + (1 if used else 0)
    return lines
