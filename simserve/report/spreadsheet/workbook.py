"""Workbook: sheets as one xlsx file, with live formulas, and native charts below a short table or beside a long one."""

import io
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import xlsxwriter
from xlsxwriter.utility import xl_rowcol_to_cell

from simserve.report.spreadsheet import workbook_look
from simserve.report.spreadsheet.sheets import Cell, Chart, ChartSeries, Form, Sheet, cell_of

HEAD_ROW = 2
"""Row of the column titles; the title and the note stand above."""

FIRST_ROW = HEAD_ROW + 1

MADE_AT = datetime(1980, 1, 1, tzinfo=UTC)
"""Creation time in the file, as in its zip members: the same sheets always give the same bytes."""

COLORS = ("#2F6DB5", "#C8571B", "#3A8A5F", "#7A5AA6", "#8A6D3B", "#4A4A46")
"""Colors that differ in every color vision, and in gray."""

LIMIT = "#B3261E"

SIZE = {"width": 640, "height": 320}

SHORT_ROWS = 40
"""Rows of a table above which charts stand beside it rather than below."""

ROWS_A_CHART = 18

LONGEST_TEXT = 32_767
"""Characters that a cell holds, in Excel and in LibreOffice."""


def workbook(sheets: Sequence[Sheet]) -> bytes:
    """Return the file. Text is never taken for a formula, a number or a link, whatever it begins with."""
    file = io.BytesIO()
    book = xlsxwriter.Workbook(file, {"in_memory": True})
    book.set_properties({"title": sheets[0].title, "created": MADE_AT.replace(tzinfo=None), "comments": "simserve"})
    look = workbook_look.Look(book)
    pages = [book.add_worksheet(sheet.name) for sheet in sheets]
    for sheet, page in zip(sheets, pages, strict=True):
        _Page(book, page, sheet, look).fill()
    book.close()
    return file.getvalue()


class _Page:
    """One sheet on its way into the file."""

    def __init__(self, book: Any, page: Any, sheet: Sheet, look: workbook_look.Look) -> None:
        self._book = book
        self._page = page
        self._sheet = sheet
        self._look = look
        self._widths = workbook_look.widths(sheet)

    def fill(self) -> None:
        """Write titles, rows and charts."""
        self._set_up()
        self._head()
        row = FIRST_ROW
        for group in self._sheet.groups:
            for place, values in enumerate(group.rows):
                self._page.set_row(row, workbook_look.row_height(values, self._widths))
                self._text(row, 0, group.title, self._look.group(is_first=place == 0))
                for column, value in enumerate(values, start=1):
                    self._cell((row, column), cell_of(value), is_first=place == 0)
                row += 1
        for name, (place, head) in self._sheet.named.items():
            start, column = FIRST_ROW + self._sheet.first_row(place), self._sheet.place(head)
            ends = [(start, column), (start + len(self._sheet.groups[place].rows) - 1, column)]
            cells = ":".join(xl_rowcol_to_cell(*end, True, True) for end in ends)
            self._book.define_name(name, f"='{self._sheet.name}'!{cells}")
        _place_charts(self._book, self._page, self._sheet)

    def _set_up(self) -> None:
        page = self._page
        page.hide_gridlines(2)
        page.freeze_panes(FIRST_ROW, 1)
        page.set_landscape()
        page.set_paper(9)  # A4
        page.set_margins(0.4, 0.4, 0.5, 0.6)
        page.fit_to_pages(workbook_look.n_pages_wide(self._widths), 0)
        page.repeat_rows(HEAD_ROW)
        page.repeat_columns(0, 1)
        page.set_footer("&L&A&RPage &P of &N")
        for column, width in enumerate(self._widths):
            page.set_column(column, column, width)

    def _head(self) -> None:
        page, sheet, last = self._page, self._sheet, len(self._sheet.columns)
        self._text(0, 0, sheet.title, self._look.title)
        page.set_row(0, 26)
        page.merge_range(1, 0, 1, last, "", self._look.note)
        self._text(1, 0, sheet.note, self._look.note)
        page.set_row(1, workbook_look.note_height(sheet, self._widths))
        page.set_row(HEAD_ROW, workbook_look.header_height(sheet, self._widths))
        for column, head in enumerate(sheet.heads):
            is_text = column == 0 or sheet.columns[column - 1].form in workbook_look.WIDTH
            self._text(HEAD_ROW, column, head, self._look.head(is_text=is_text))

    def _text(self, row: int, column: int, text: str, how: Any) -> None:
        self._page.write_string(row, column, text[:LONGEST_TEXT], how)

    def _cell(self, place: tuple[int, int], cell: Cell, *, is_first: bool) -> None:
        column: Form = self._sheet.columns[place[1] - 1].form
        how = self._look.cell(cell.form or column, column, is_first=is_first, is_input=cell.limits is not None)
        value = cell.value
        if cell.formula is not None:
            self._page.write_formula(*place, self._formula(cell.formula, place[0]), how, "" if value is None else value)
        elif isinstance(value, str):
            self._text(*place, value, how)
        elif value is None or not math.isfinite(value):
            self._page.write_blank(*place, None, how)
        else:
            self._page.write_number(*place, value, how)
        if cell.name is not None:
            self._book.define_name(cell.name, f"='{self._sheet.name}'!{xl_rowcol_to_cell(*place, True, True)}")
        if cell.limits is not None:
            self._permit(place, cell.limits)

    def _formula(self, text: str, row: int) -> str:
        """Return the formula with addresses in place of heads."""

        def address(result: re.Match[str]) -> str:
            return str(xl_rowcol_to_cell(row - len(result[1]), self._sheet.place(result[2])))

        return re.sub(r"\[(\^?)([^\]]+)\]", address, text)

    def _permit(self, place: tuple[int, int], limits: tuple[float, float]) -> None:
        """Limit an input to a range, and say so where it is typed."""
        low, high = limits
        rule = f"A number from {low:,g} to {high:,g}."
        self._page.data_validation(
            *place,
            *place,
            {
                "validate": "decimal",
                "criteria": "between",
                "minimum": low,
                "maximum": high,
                "input_title": "Input",
                "input_message": f"{rule} Everything else follows.",
                "error_title": "Out of range",
                "error_message": rule,
            },
        )


def _place_charts(book: Any, page: Any, sheet: Sheet) -> None:
    """Draw all charts of a sheet."""
    is_below = sheet.n_rows <= SHORT_ROWS
    for number, (home, chart) in enumerate([*((sheet, chart) for chart in sheet.charts), *sheet.borrowed]):
        drawn = _drawn(book, home, chart)
        if is_below:
            row, column = FIRST_ROW + sheet.n_rows + 1 + number // 2 * ROWS_A_CHART, 0
            page.insert_chart(row, column, drawn, {"x_offset": number % 2 * (SIZE["width"] + 20)})
        else:
            page.insert_chart(FIRST_ROW + number * ROWS_A_CHART, len(sheet.columns) + 2, drawn)


def _drawn(book: Any, sheet: Sheet, chart: Chart) -> Any:
    kinds = {
        "line": {"type": "scatter", "subtype": "straight"},
        "points": {"type": "scatter", "subtype": "marker_only"},
        "bars": {"type": "column"},
    }
    drawn = book.add_chart(kinds[chart.kind])
    for number, series in enumerate(chart.series):
        drawn.add_series(
            {
                "name": [sheet.name, HEAD_ROW, sheet.place(series.column)],
                "categories": _range(sheet, chart, chart.across),
                "values": _range(sheet, chart, series.column),
                **_strokes(chart, series, COLORS[number % len(COLORS)]),
            }
        )
    _axes(drawn, sheet, chart)
    return drawn


def _strokes(chart: Chart, series: ChartSeries, color: str) -> dict[str, Any]:
    """Return the style of a series."""
    if chart.kind == "bars":
        return {"fill": {"color": color}, "gap": 60}
    if chart.kind == "points":
        fill = {"fill": {"color": color}, "border": {"none": True}}
        return {"marker": {"type": "circle", "size": 7, **fill}}
    line = {"color": LIMIT, "width": 1.75, "dash_type": "dash"} if series.is_limit else {"color": color, "width": 1.75}
    return {"line": line, "marker": {"type": "none"}}


def _axes(drawn: Any, sheet: Sheet, chart: Chart) -> None:
    quiet = {"line": {"color": "#E3E3DE", "width": 0.75}}
    words = {"bold": False, "size": 10, "color": "#4A4A46"}
    across = sheet.heads[sheet.place(chart.across)]
    # With a word joiner, which has no width, xlsxwriter takes no title for the reference of a cell (`chat!A1`).
    title = re.sub(r"!(?=\$?[A-Z])", "!\u2060", chart.title)
    drawn.set_title({"name": title, "name_font": {"size": 13, "bold": True}, "overlay": False})
    drawn.set_x_axis({"name": across, "name_font": words, "label_position": "low", "line": {"color": "#8A8A84"}})
    y_axis: dict[str, Any] = {"name": chart.y_title, "name_font": words, "major_gridlines": {"visible": True, **quiet}}
    y_axis["num_format"] = "0%" if chart.y_title == "share" else "#,##0.###" if chart.is_log else "#,##0"
    if chart.is_log:
        y_axis |= {"log_base": 10, "crossing": "min"}
    if chart.most is not None:
        y_axis["max"] = chart.most
    drawn.set_y_axis(y_axis)
    drawn.set_legend({"none": True} if len(chart.series) == 1 else {"position": "bottom"})
    drawn.set_size(SIZE)
    drawn.show_blanks_as("gap")


def _range(sheet: Sheet, chart: Chart, head: str) -> list[Any]:
    """Return the cells of a column in the chart's group."""
    start = FIRST_ROW + sheet.first_row(chart.group)
    column = sheet.place(head)
    return [sheet.name, start, column, start + len(sheet.groups[chart.group].rows) - 1, column]
