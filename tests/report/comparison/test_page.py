"""The page of `simserve compare`: who has more goodput, a mark for each measure, and no name as markup."""

from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.comparison import ComparisonAnswer
from simserve.study.intervals import CONFIDENCE
from tests.report.capacity.test_rate_page import HOSTILE, body
from tests.report.figures import figures
from tests.report.pages import render
from tests.report.test_browser import BROWSER, opened


def measure(key: str, a: float, b: float, headline: str, half: float | None = 0.0, unit: str = "s") -> dict[str, Any]:
    ends = {"low": None, "high": None} if half is None else {"low": b - a - half, "high": b - a + half}
    label = key.replace("_s.", " ")
    text = {"key": key, "label": label, "unit": unit, "a": a, "b": b, "difference": b - a, "verdict": headline}
    return text | ends | {"change_frac": (b - a) / a if a else None}


def compared(*measures: dict[str, Any], **changes: Any) -> ComparisonAnswer:
    result = {
        "version": "1",
        "a": "old",
        "b": "new",
        "confidence": CONFIDENCE,
        "how": "2 pairs of runs",
        "warnings": [],
    }
    return ComparisonAnswer.model_validate(result | {"measures": list(measures)} | changes, strict=True)


GOODPUT = measure("goodput.per_s", 10.0, 12.5, "better", 1.0, "per_s")
TTFT = measure("ttft_s.p99", 0.2, 0.3, "worse", 0.04)
TPOT = measure("tpot_s.p99", 0.010, 0.009, "unclear", 0.002)
SAME = measure("e2e_s.p99", 3.0, 3.0, "same")
ATTAINMENT = measure("slo_attainment.frac", 0.99, 0.9067, "worse", 0.01, "frac")
TOKENS = measure("output_tokens_per_s", 123_456.0, 12_345.0, "worse", 100.0, "per_s")
SIDE = {"goodput_per_s": 10.0, "holds_every_load": None, "last_per_s": 11.0, "fails_first": "ttft_s"}


def by_load() -> ComparisonAnswer:
    """Return an answer with a decision by load, and all measures that tiles show."""
    decision = {"verdict": "better", "goal_frac": 0.99, "more_frac": 0.25, "low_frac": 0.2, "high_frac": 0.3}
    decision |= {"n_seeds": 32, "a": SIDE, "b": SIDE | {"goodput_per_s": 12.5}}
    return compared(GOODPUT, ATTAINMENT, TTFT, TPOT, SAME, TOKENS, decision=decision)


def test_the_decision_is_the_first_of_six_tiles() -> None:
    tiles = body(render(by_load())).split('<div class="tile">')[1:]
    assert [tile.split("</dt>")[0].removeprefix("<dt>") for tile in tiles] == [
        "p99 goodput",
        "slo_attainment.frac",
        "goodput.per_s",
        "ttft p99",
        "tpot p99",
        "e2e p99",
    ]


def test_who_has_more_goodput_is_the_headline() -> None:
    read = body(render(compared(TTFT, GOODPUT)))
    assert 'class="met"' in read
    assert "new has 25% more goodput</h1>" in read
    worse = body(render(compared(measure("goodput.per_s", 10.0, 9.0, "worse", 0.5, "per_s"))))
    assert "new has 10% less goodput</h1>" in worse


@pytest.mark.parametrize(
    ("measures", "title"),
    [
        ((TTFT, SAME), "new is worse at 1 of 2 measures"),
        ((TPOT, SAME), "Statistically tied"),
        ((SAME,), "No change: new equals old"),
        ((measure("ttft_s.p99", 0.2, 0.3, "unclear", None),), "new against old: one run each"),
    ],
)
def test_without_a_difference_in_goodput_the_measures_are_counted(measures: Any, title: str) -> None:
    assert f"{title}</h1>" in body(render(compared(*measures)))


def test_better_is_to_the_right_and_has_a_mark_that_is_not_color_alone() -> None:
    (dots,) = figures(render(compared(GOODPUT, TTFT, TPOT, SAME)))["change"]["data"]
    assert dots["x"] == pytest.approx([0.25, -0.5, 0.1, 0.0])  # a latency that rises by half is half worse
    assert dots["marker"]["symbol"] == ["triangle-right", "triangle-left", "circle-open", "line-ns-open"]
    # a tenth, two tenths and two tenths of A on either side
    assert dots["error_x"]["array"] == pytest.approx([0.1, 0.2, 0.2, 0.0])
    assert dots["error_x"]["arrayminus"] == pytest.approx([0.1, 0.2, 0.2, 0.0])


def test_a_change_that_would_hide_all_others_is_drawn_at_the_edge_and_told_in_full() -> None:
    page = render(compared(TPOT, measure("ttft_s.p99", 0.1, 1.0, "worse", 0.1)))
    (dots,) = figures(page)["change"]["data"]
    assert dots["x"] == pytest.approx([0.1, -1.0])
    assert "+900.0%" in body(page)


def test_what_else_differs_and_what_cannot_be_told_is_said() -> None:
    page = compared(measure("ttft_s.p99", 0.2, 0.3, "unclear", None), warnings=["the two differ in their slo"])
    read = body(render(page))
    assert "The two differ in their slo." in read
    assert "One run each has no interval" in read
    assert "Both sides had the same load" in body(render(compared(GOODPUT)))


def test_no_name_becomes_markup() -> None:
    page = render(compared(GOODPUT, TTFT | {"label": HOSTILE}, a=HOSTILE, b=HOSTILE, warnings=[HOSTILE]))
    assert "<img" not in body(page)
    assert page.count("<script") == render(compared(GOODPUT, TTFT)).count("<script")


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("color", [0, 1])
def test_the_browser_draws_it_and_complains_of_nothing(tmp_path: Path, color: int) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(compared(GOODPUT, TTFT, TPOT, SAME)), encoding="utf-8")
    flags = ("--window-size=520,3000", f"--blink-settings=preferredColorScheme={color}")
    dom, console = opened(page, tmp_path / "profile", *flags)
    assert console == ""
    assert 'data-drawn="1"' in dom
    assert dom.split('id="change"')[1].count('class="point"') == 4
