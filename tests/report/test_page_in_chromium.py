"""Chromium draws the page, fits it to a phone and to paper, and axe-core finds no fault."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simserve.report.plan.words import with_words
from tests.lab import test_validation_page as validation
from tests.report.capacity import test_rate_page as capacity
from tests.report.comparison import test_page as comparison
from tests.report.driver import CHROMEDRIVER, Driver
from tests.report.pages import render
from tests.report.plan import test_words as plan
from tests.report.sweep import test_words as sweep
from tests.report.synthetic import synthetic
from tests.report.test_browser import BROWSER

pytestmark = pytest.mark.skipif(not (BROWSER and CHROMEDRIVER), reason="no chromium with chromedriver on this machine")

WIDTHS = """return [...document.querySelectorAll(".chart")].map(
    (chart) => [chart.clientWidth, chart.querySelector(".main-svg").getBoundingClientRect().width])"""


CUT_OFF = """return [...document.querySelectorAll(".tile > *")].filter(
    (text) => text.scrollWidth > text.clientWidth).map((text) => text.textContent)"""


STUDIES: dict[str, Callable[[Path], str]] = {
    "sweep": lambda _: render(sweep.facts(sweep.point(0), sweep.point(1, goodput=9.0, usd=8.0, ttft_s=2.0))),
    "comparison": lambda _: render(comparison.by_load()),
    "plan": lambda _: render(with_words(plan.whole())),
    "capacity": lambda folder: render(capacity.by_rate(folder)),
    "validation": lambda _: validation.page(validation.point()),
}


def printed(chromium: Driver) -> list[list[float]]:
    """The widths of charts and of their drawings when the page has the width of the paper."""
    chromium.script(
        'window.printed = []; matchMedia("print").addEventListener('
        f'"change", ({{ matches }}) => matches && window.printed.push(...(() => {{ {WIDTHS} }})()))'
    )
    chromium.devtools("Page.printToPDF")
    result: list[list[float]] = chromium.script("return window.printed")
    return result


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(synthetic(20_000, pools=("prefill", "decode"))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core: the file that AXE_CORE names, or the package from npm."""
    if given := os.environ.get("AXE_CORE"):
        return Path(given).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("no npm to get axe-core with")
    command = ["npm", "pack", "--silent", "--prefer-offline", "axe-core@4"]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=120).returncode:
        pytest.skip("npm cannot get axe-core here")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder)
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


def test_all_charts_are_drawn_and_nothing_is_logged(page: Path, chromium: Driver) -> None:
    chromium.open(page)
    assert chromium.script("return document.documentElement.dataset.drawn") == "6"
    assert chromium.console() == []


def test_a_print_from_a_wide_window_fits_every_chart_to_the_paper(page: Path, chromium: Driver) -> None:
    chromium.open(page)
    on_screen = chromium.script(WIDTHS)
    on_paper = printed(chromium)
    assert len(on_paper) == len(on_screen) == 6
    assert all(abs(drawn - room) <= 1 for room, drawn in on_paper + on_screen)
    assert max(room for room, _ in on_paper) < 900 < max(room for room, _ in on_screen)
    assert chromium.script(WIDTHS) == on_screen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 768, 390])
def test_nothing_overflows_and_axe_finds_nothing(
    page: Path, chromium: Driver, axe: str, scheme: str, width: int
) -> None:
    chromium.prefer(scheme)
    chromium.resize(width)
    chromium.open(page)
    assert chromium.script("return document.documentElement.scrollWidth") == width
    assert all(drawn <= room for room, drawn in chromium.script(WIDTHS))
    chromium.script(axe)
    found = chromium.script("return axe.run().then(({ violations }) => violations.map(({ id }) => id))")
    assert found == []
    assert chromium.console() == []


def test_a_link_of_the_contents_leads_to_its_section(page: Path, chromium: Driver) -> None:
    chromium.open(page)
    chromium.script("""document.querySelector('.contents a[href="#replicas"]').click()""")
    top = chromium.script('return document.getElementById("replicas").getBoundingClientRect().top')
    assert 0 <= top < 900


def test_a_browser_without_decompression_says_so_where_each_chart_would_be(page: Path, chromium: Driver) -> None:
    script = chromium.devtools("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    chromium.open(page)
    words = chromium.script('return [...document.querySelectorAll(".card > .empty")].map((each) => each.textContent)')
    chromium.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert len(words) == 6
    assert all("it has no DecompressionStream. Chrome 80, Firefox 113 and Safari 16.4 have" in each for each in words)


@pytest.mark.parametrize("study", ["sweep", "comparison", "plan", "capacity"])
@pytest.mark.parametrize("width", [1440, 768, 390])
def test_no_text_of_a_tile_is_cut_off(tmp_path: Path, chromium: Driver, study: str, width: int) -> None:
    page = tmp_path / "study.html"
    page.write_text(STUDIES[study](tmp_path), encoding="utf-8")
    chromium.resize(width)
    chromium.open(page)
    assert 1 <= chromium.script('return document.querySelectorAll(".tile").length') <= 6
    assert chromium.script(CUT_OFF) == []
    assert chromium.script("return document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1440, 390])
def test_decision_load_fleet_and_cost_stay_in_sight_once_the_head_is_gone(
    page: Path, chromium: Driver, width: int
) -> None:
    chromium.resize(width)
    chromium.open(page)
    kept = """return [...document.querySelectorAll(".kept > *")].filter(
        (each) => each.offsetWidth).map((each) => each.textContent)"""
    assert chromium.script(kept) == []
    chromium.script("window.scrollTo(0, 2000); return new Promise((then) => setTimeout(then, 300))")
    _, decision, *facts = chromium.script(kept)
    assert decision == chromium.script('return document.querySelector("h1").lastChild.textContent')
    assert [fact.split("\N{NO-BREAK SPACE}")[-1].split()[-1] for fact in facts] == ["req/s", "GPUs", "USD/h"]
    top, height = chromium.script(
        'const { top, height } = document.querySelector(".contents").getBoundingClientRect(); return [top, height]'
    )
    assert (top, height < 90) == (0, True)


def test_a_table_sorts_by_the_values_of_a_column_and_is_copied(tmp_path: Path, chromium: Driver) -> None:
    page = tmp_path / "capacity.html"
    page.write_text(STUDIES["capacity"](tmp_path), encoding="utf-8")
    chromium.resize(1440)
    chromium.open(page)
    column = """return [...document.querySelector("#loads table").tBodies[0].rows].map(
        (row) => parseFloat(row.cells[0].innerText))"""
    given = chromium.script(column)
    press = """const head = [...document.querySelectorAll("#loads th[scope=col]")][0];
        head.querySelector("button").click(); return head.getAttribute("aria-sort")"""
    assert [chromium.script(press), chromium.script(column)] == ["ascending", sorted(given)]
    assert [chromium.script(press), chromium.script(column)] == ["descending", sorted(given, reverse=True)]
    copied = """let text = ""; document.execCommand = () => { text = document.activeElement.value; return true };
        Object.defineProperty(navigator, "clipboard", { value: { writeText: () => Promise.reject() } });
        document.querySelector("#loads .tools button").click();
        return new Promise((then) => setTimeout(() => then(text), 200))"""
    rows = [line.split("\t") for line in chromium.script(copied).split("\n")]
    assert [float(row[0]) for row in rows[1:]] == sorted(given, reverse=True)
    assert len({len(row) for row in rows}) == 1


def test_a_table_says_that_it_scrolls_where_it_does(tmp_path: Path, chromium: Driver) -> None:
    page = tmp_path / "capacity.html"
    page.write_text(STUDIES["capacity"](tmp_path), encoding="utf-8")
    hints = """return [...document.querySelectorAll(".tools")].map(
        ({ firstChild, nextSibling }) => [!firstChild.hidden, nextSibling.scrollWidth > nextSibling.clientWidth])"""
    for width, scrolls in ((1440, False), (390, True)):
        chromium.resize(width)
        chromium.open(page)
        pairs = chromium.script(hints)
        assert all(is_said == is_true for is_said, is_true in pairs)
        assert any(is_true for _, is_true in pairs) == scrolls


@pytest.mark.parametrize("study", ["sweep", "comparison", "plan", "capacity", "validation"])
def test_a_page_of_a_study_fits_a_phone_and_paper_and_axe_finds_nothing(
    tmp_path: Path, chromium: Driver, axe: str, study: str
) -> None:
    page = tmp_path / "study.html"
    page.write_text(STUDIES[study](tmp_path), encoding="utf-8")
    chromium.prefer("light")
    chromium.resize(390)
    chromium.open(page)
    assert chromium.script("return document.documentElement.scrollWidth") == 390
    chromium.script(axe)
    found = chromium.script("return axe.run().then(({ violations }) => violations.map(({ id }) => id))")
    assert found == []
    chromium.resize(1440)
    on_paper = printed(chromium)
    assert len(on_paper) >= 1
    assert all(abs(drawn - room) <= 1 and room < 900 for room, drawn in on_paper)
