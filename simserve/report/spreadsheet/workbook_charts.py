"""Native charts of a workbook, below a short table or beside a long one."""

import re
from typing import Any

from simserve.report.spreadsheet.sheets import Chart, ChartSeries, Sheet

COLORS = ("#2F6DB5", "#C8571B", "#3A8A5F", "#7A5AA6", "#8A6D3B", "#4A4A46")
"""Colors that differ in every color vision, and in gray."""

LIMIT = "#B3261E"

SIZE = {"width": 640, "height": 320}

SHORT_ROWS = 40
"""Rows of a table above which charts stand beside it rather than below."""

ROWS_A_CHART = 18


def place_charts(book: Any, page: Any, sheet: Sheet, first_row: int) -> None:
    """Draw all charts of a sheet, with values from that row on."""
    is_below = sheet.n_rows <= SHORT_ROWS
    for number, chart in enumerate(sheet.charts):
        drawn = _drawn(book, sheet, chart, first_row)
        if is_below:
            row, column = first_row + sheet.n_rows + 1 + number // 2 * ROWS_A_CHART, 0
            page.insert_chart(row, column, drawn, {"x_offset": number % 2 * (SIZE["width"] + 20)})
        else:
            page.insert_chart(first_row + number * ROWS_A_CHART, len(sheet.columns) + 2, drawn)


def _drawn(book: Any, sheet: Sheet, chart: Chart, first_row: int) -> Any:
    kinds = {
        "line": {"type": "scatter", "subtype": "straight"},
        "points": {"type": "scatter", "subtype": "marker_only"},
        "bars": {"type": "column"},
    }
    drawn = book.add_chart(kinds[chart.kind])
    for number, series in enumerate(chart.series):
        drawn.add_series(
            {
                "name": [sheet.name, first_row - 1, sheet.place(series.column)],
                "categories": _range(sheet, chart, chart.across, first_row),
                "values": _range(sheet, chart, series.column, first_row),
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
    drawn.set_title({"name": _as_text(chart.title), "name_font": {"size": 13, "bold": True}, "overlay": False})
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


def _as_text(title: str) -> str:
    """Return a title that xlsxwriter does not take for the reference of a cell (`chat!A1`), looking the same."""
    return re.sub(r"!(?=\$?[A-Z])", "!\u2060", title)  # word joiner, which has no width


def _range(sheet: Sheet, chart: Chart, head: str, first_row: int) -> list[Any]:
    """Return the cells of a column in the chart's group."""
    start = first_row + sheet.first_row(chart.group)
    column = sheet.place(head)
    return [sheet.name, start, column, start + len(sheet.groups[chart.group].rows) - 1, column]
