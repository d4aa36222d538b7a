"""The workbook as a file: what is text, what is a number, what is computed, and what a reader sees at once."""

import io
import math
import re
import zipfile
from dataclasses import replace

import pandas as pd
import pytest
from openpyxl import load_workbook

from simserve.report.spreadsheet.exported import sheets_of
from simserve.report.spreadsheet.sheets import Cell, Chart, ChartSeries, Sheet, SheetColumn, SheetGroup
from simserve.report.spreadsheet.workbook import FIRST_ROW, HEAD_ROW, workbook
from tests.report.answers_by_hand import (
    capacity_answer,
    check_answer,
    comparison_answer,
    plan_answer,
    replicas_answer,
    run_answer,
    sweep_answer,
)
from tests.report.spreadsheets import SHEETS, formulas, named, values

EVERYTHING = (
    run_answer(),
    capacity_answer(),
    replicas_answer(),
    check_answer(),
    comparison_answer(),
    plan_answer(),
    sweep_answer(),
)


@pytest.fixture(scope="module")
def everything() -> bytes:
    return workbook(sheets_of(EVERYTHING))


def sheet(*rows: tuple[Cell | str | float | None, ...]) -> Sheet:
    columns = (SheetColumn("What", "text"), SheetColumn("Amount", "rate", "/s"), SheetColumn("Twice", "rate"))
    return Sheet("Amounts", "Title", "Note", "SheetGroup", columns, (SheetGroup("g", rows),))


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|'/c calc'!A1", "007", "1e5", "http://a.b", "TRUE"]
)
def test_text_stays_text_whatever_it_looks_like(text: str) -> None:
    content = workbook([sheet((text, 1.0, 2.0))])
    page = load_workbook(io.BytesIO(content))["Amounts"]
    cell = page.cell(FIRST_ROW + 1, 2)
    assert (cell.value, cell.data_type, cell.hyperlink) == (text, "s", None)
    assert not formulas(content)
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert "<f>" not in file.read("xl/worksheets/sheet1.xml").decode()


def test_a_formula_names_cells_by_the_heads_of_their_columns() -> None:
    content = workbook(
        [sheet(("a", 1.0, Cell(2.0, formula="=2*[Amount]")), ("b", 3.0, Cell(9.0, formula="=[Amount]*2+[^Amount]*3")))]
    )
    assert list(formulas(content).values()) == ["=2*C4", "=C5*2+C4*3"]
    assert values(content)["Amounts", "D5"] == 9.0


def test_a_number_that_is_none_is_an_empty_cell() -> None:
    result = values(workbook([sheet(("a", None, math.nan), ("b", math.inf, 1.0))]))
    assert [result.get(("Amounts", place)) for place in ("C4", "D4", "C5", "D5")] == [None, None, None, 1.0]


def test_an_input_has_a_name_a_color_and_limits() -> None:
    content = workbook([sheet(("a", Cell(1.0, name="amount", limits=(0.0, 5.0)), None))])
    page = load_workbook(io.BytesIO(content))["Amounts"]
    assert named(content) == {"amount": ("Amounts", "$C$4")}
    assert page["C4"].fill.fgColor.rgb == "FFFFF4CC"
    (rule,) = page.data_validations.dataValidation
    assert (str(rule.sqref), rule.type, rule.formula1, rule.formula2) == ("C4", "decimal", "0.0", "5.0")


def test_the_same_sheets_give_the_same_bytes() -> None:
    assert workbook(sheets_of([run_answer()])) == workbook(sheets_of([run_answer()]))


def test_every_sheet_has_a_legal_name_frozen_heads_with_units_and_columns_that_fit(everything: bytes) -> None:
    book = load_workbook(io.BytesIO(everything), data_only=True)
    assert tuple(book.sheetnames) == SHEETS
    for page in book:
        assert len(page.title) <= 31 and not re.search(r"[\[\]:*?/\\]", page.title)
        assert page.freeze_panes == f"B{HEAD_ROW + 2}"
        heads = [cell.value for cell in page[HEAD_ROW + 1]]
        assert all(heads) and len(set(heads)) == len(heads)
        for place, column in enumerate(page.iter_cols(min_row=HEAD_ROW + 2), start=1):
            width = page.column_dimensions[column[0].column_letter].width
            numbers = [cell.value for cell in column if isinstance(cell.value, float | int)]
            assert width >= max((len(f"{number:,.2f}") for number in numbers), default=0), (
                page.title,
                heads[place - 1],
            )
            assert width >= max(map(len, str(heads[place - 1]).split()))


def test_pandas_reads_a_sheet_from_its_third_row_with_numbers_where_formulas_are(everything: bytes) -> None:
    growth = pd.read_excel(io.BytesIO(everything), sheet_name="Growth", header=2)
    assert growth["Month"].tolist() == list(range(13))
    assert growth["Cost a month (USD)"].dtype.kind in "if"
    assert growth["Cost a month (USD)"].iloc[0] == 21_900  # the plan's


def test_wide_tables_are_printed_over_several_pages_and_the_first_columns_on_each(everything: bytes) -> None:
    book = load_workbook(io.BytesIO(everything))
    assert [book[name].page_setup.fitToWidth or 1 for name in ("Summary", "Fleet options")] == [1, 2]
    assert book["Fleet options"].print_title_cols == "$A:$B"
    assert book["Fleet options"].print_title_rows == "$3:$3"


def test_no_number_is_written_as_text(everything: bytes) -> None:
    number = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?%?", re.IGNORECASE)
    texts = {place: value for place, value in values(everything).items() if isinstance(value, str)}
    sentence = {place for place, text in texts.items() if number.fullmatch(text)}
    assert {texts[place] for place in sentence} <= {"0123", "0123abcd"}


def test_no_cell_shows_an_error_and_no_formula_is_volatile(everything: bytes) -> None:
    assert not [value for value in values(everything).values() if isinstance(value, str) and value.startswith("#")]
    volatile = re.compile(r"\b(NOW|TODAY|RAND|RANDBETWEEN|OFFSET|INDIRECT|CELL|INFO)\(")
    result = formulas(everything)
    assert len(result) > 100
    assert not [text for text in result.values() if volatile.search(text)]


def test_every_name_in_a_formula_is_defined(everything: bytes) -> None:
    words = {word for text in formulas(everything).values() for word in re.findall(r"[a-z][a-z_0-9]{3,}", text)}
    assert words <= set(named(everything))


def test_charts_are_native_and_point_at_cells_that_hold_numbers(everything: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(everything)) as file:
        charts = [file.read(name).decode() for name in file.namelist() if name.startswith("xl/charts/chart")]
    result = values(everything)
    assert len(charts) >= 8
    for chart in charts:
        for sheet_name, first, last in re.findall(
            r"<c:(?:val|yVal)><c:numRef><c:f>'?([^'!]+)'?!\$([A-Z]+\$\d+):\$([A-Z]+\$\d+)", chart
        ):
            letters, rows = first.split("$")[0], range(int(first.split("$")[1]), int(last.split("$")[1]) + 1)
            cells = [result.get((sheet_name, f"{letters}{row}")) for row in rows]
            assert any(isinstance(cell, float | int) for cell in cells), (sheet_name, first, last)


def test_a_chart_beside_a_long_table_and_below_a_short_one() -> None:
    chart = Chart("Amounts", "line", 0, "Amount", (ChartSeries("Twice"),), "twice")
    for n, is_below in ((3, True), (60, False)):
        rows = tuple(("a", float(i), 2.0 * i) for i in range(n))
        page = sheet(*rows)
        content = workbook([Sheet(**{**vars(page), "charts": (chart,)})])
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            drawing = file.read("xl/drawings/drawing1.xml").decode()
        row = int(re.findall(r"<xdr:row>(\d+)</xdr:row>", drawing)[0])
        assert (row > FIRST_ROW + n - 1) == is_below


def test_a_chart_title_is_text_whatever_it_looks_like() -> None:
    rows = SheetGroup("g", (("a", 1.0, 2.0), ("b", 3.0, 4.0)))
    chart = Chart("Use: chat!A1", "bars", 0, "What", (ChartSeries("Amount"),), "share")
    content = workbook([replace(sheet(), groups=(rows,), charts=(chart,))])
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        title = re.search("<c:title>.*?</c:title>", file.read("xl/charts/chart1.xml").decode(), re.S)
    assert title is not None
    assert "<c:f>" not in title[0]
    assert "<a:t>Use: chat!\u2060A1</a:t>" in title[0]
