"""The frame of every study's page: the answer first, nothing from outside taken for markup; and its text."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simserve.report.document import Chapter, Document, Paragraph, Row, Table, Tile
from simserve.report.html import page, words
from simserve.report.tell import tell
from simserve.report.text import document_text, table_text, wrapped
from tests.report.capacity import test_rate_page as capacity
from tests.report.comparison import test_page as comparison
from tests.report.plan import test_words as plan
from tests.report.sweep import test_words as sweep
from tests.report.synthetic import synthetic

ASKED = Document("capacity", "chat <burst>", "met", "13.4 requests/s", "The highest rate at which 99% hold.")
LOADS = Chapter("loads", "Loads", [Paragraph("each")])
WIDE = [("", "p50", "p90", "p99", "SLO"), *((name, *["1,234 ms"] * 3, "500 ms") for name in ("TTFT", "TPOT"))]


def test_the_answer_stands_before_the_parts_and_what_it_comes_from_after_them() -> None:
    html = page(replace(ASKED, parts=[LOADS], made={"seeds": 8, "scenario": None}))
    places = [html.index(part) for part in ("<h1>", "13.4 requests/s</h1>", "The highest", 'id="loads"', "seeds 8")]
    assert places == sorted(places)
    assert "None" not in html


def test_names_from_a_scenario_are_not_markup() -> None:
    html = page(replace(ASKED, made={"scenario": "<script>"}))
    assert "chat &lt;burst&gt;" in html
    assert "<burst>" not in html
    assert "<script>" not in html.split("<footer>")[1].split("</footer>")[0]


def test_columns_of_text_begin_at_the_left_on_the_page_and_flags_do_on_the_terminal() -> None:
    rows = [Row("--tp", ("qwen", "2", "–")), Row("--max-num-seqs", ("–", "128", "–"))]
    table = Table(("flag", "key", "n", "none"), rows)
    assert words(table) == [1]
    html = page(replace(ASKED, parts=[Chapter("flags", "Flags", [table])]))
    assert re.findall('<t[hd][^>]*class="word"[^>]*>([^<]*)<', html) == ["key", "qwen", "\u2060–\u2060"]
    assert table_text([table.heads, *([row.name, *row.cells] for row in rows)]).splitlines()[1].startswith("  --tp ")


@pytest.mark.parametrize("tiles", [(), (Tile("Per GPU", "6.7/s", ["of 2"]),)])
def test_tiles_are_there_if_there_are_any(tiles: tuple[Tile, ...]) -> None:
    assert ('<dl class="tiles">' in page(replace(ASKED, tiles=tiles))) == bool(tiles)


def test_prose_is_wrapped_to_the_terminal_and_no_number_is_parted_from_its_unit() -> None:
    text = "p99 TTFT is 235 ms, within its limit of 500 ms at 14.4 req/s, with P 97% and r 0.55 of 8 runs."
    for width in range(20, 60):
        lines = wrapped(text, width).splitlines()
        assert max(map(len, lines)) <= width
        assert " ".join(lines) == text
        assert not [line for line in lines if line.startswith(("ms", "req/s", "97%"))]
    assert wrapped(text, None) == text
    assert wrapped("  best: " + "words " * 20, 40).splitlines()[1].startswith("  words")


def test_a_table_leaves_out_columns_by_priority_until_it_fits_and_says_which() -> None:
    whole = table_text(WIDE)
    assert table_text(WIDE, width=max(map(len, whole.splitlines()))) == whole
    narrow = table_text(WIDE, width=30, dropped=["p90", "p50"])
    assert max(map(len, narrow.splitlines())) <= 30
    assert narrow.splitlines()[0].split() == ["p99", "SLO"]
    assert " ".join(narrow.split()).endswith("2 columns left out for want of width: p50 and p90.")
    assert table_text(WIDE, width=20).splitlines()[0].split() == ["p50"]


def test_a_document_on_a_terminal_is_its_paragraphs_and_tables_and_nothing_for_what_is_empty() -> None:
    brief = ("Meets the SLO.", "", Table(("load", "r"), [Row("14.4", ["0.55"])]), Table((), [Row("Hits", ["40%"])]))
    text = document_text(replace(ASKED, brief=brief))
    assert text == "Meets the SLO.\n\n  load     r\n  14.4  0.55\n\n  Hits  40%"


@pytest.mark.parametrize(
    ("document", "kept"),
    [
        (
            lambda _: tell(sweep.facts(sweep.point(0), sweep.point(1, goodput=9.0, usd=8.0))),
            {"point", "$/h", "r", "SLO"},
        ),
        (lambda _: tell(plan.whole()), {"option", "GPUs", "a month", "attained"}),
        (lambda _: tell(comparison.by_load()), {"A", "B", "change"}),
        (lambda folder: tell(capacity.by_rate(folder)), {"req/s", "attained", "runs"}),
        (lambda _: tell(synthetic(200)), {"p50", "p99", "SLO"}),
    ],
)
def test_at_eighty_columns_what_decides_stays(
    document: Callable[[Path], Document], kept: set[str], tmp_path: Path
) -> None:
    told = document(tmp_path)
    lines = document_text(told, 80).splitlines()
    assert max(map(len, lines)) <= 80
    heads = next(line for line in lines if line.startswith("  ") and all(name in line for name in kept))
    assert kept <= set(re.split(r"\s{2,}", heads.strip())) | set(heads.split())
