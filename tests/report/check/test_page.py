"""The page of `simserve check`: the decision first, each thing said once, no name as markup, room on a phone."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.check import CheckAnswer
from tests.golden_answers.page_sentences import Page
from tests.report.capacity.test_rate_page import HOSTILE, body
from tests.report.check.test_words import part, result
from tests.report.driver import CHROMEDRIVER, Driver
from tests.report.pages import render_check as render
from tests.report.test_browser import BROWSER

COMMAND = ("simserve", "check", "chat burst.yaml", "--set", "a=$b", "--baseline", "base.json")
AT_REF = ("simserve", "check", "chat.yaml", "--against", "main")
SIX = [
    {"key": f"cluster.pools.0.scheduler.max_num_batched_tokens_{n}", "baseline": n, "candidate": None} for n in range(6)
]
FAR = {"nominal_per_s": 14.4, "drawn_per_s": 12.9, "off_frac": -0.104}
NEAR = {"nominal_per_s": 13.0, "drawn_per_s": 12.9, "off_frac": -0.008}


def without_goodput(**changes: Any) -> CheckAnswer:
    return result(loss=None, candidate={"goodput_per_s": None, "holds_every_load": False}, **changes)


ANSWERS = {
    "lost": result(changes=SIX, load=NEAR),
    "unclear": result(state="unclear", passes=True, load=FAR, warnings=["the seeds drew 12.9 req/s of a nominal 14.4"]),
    "same": result(state="same", passes=True, changes=[]),
    "within tolerance": result(state="within tolerance", passes=True),
    "better": result(state="better", passes=True, loss={"frac": -0.03, "low_frac": -0.04, "high_frac": -0.02}),
    "unchanged": result(state="unchanged", passes=True, changes=[]),
    "none": without_goodput(),
}


def texts(page: str) -> dict[str, str]:
    """Return the texts of a page by place, with plain spaces."""
    return {place: text.replace("\u00a0", " ") for place, text in Page(page).texts.items()}


def tiles(page: str) -> dict[str, list[str]]:
    parts = [text.split(" | ") for place, text in texts(page).items() if ".tile." in place]
    return {label: lines for label, *lines in parts}


def test_the_answer_is_one_sentence_below_the_decision() -> None:
    read = texts(render(result(), COMMAND))
    assert read["page.header.h1.1"] == "✕ | Regression"
    assert read["page.header.p.2"] == (
        "p99 goodput fell 6.2% (95% CI 5.1–7.3%), above the 2% tolerance: 12.1 req/s against 12.9."
    )
    assert read["page.header.p.4"] == (
        "p99 goodput is the highest rate at which 99% of requests meet TTFT ≤ 500 ms and TPOT ≤ 50 ms; "
        "at most 2% of it may be lost. Baseline: base.json, same 32 seeds."
    )


def test_decision_change_bound_and_looks_are_tiles() -> None:
    assert tiles(render(result(n_seeds=64), COMMAND)) == {
        "Decision": ["Fails", "tolerance 2%, exit code 1"],
        "p99 goodput": ["-6.2%", "12.9 → 12.1 req/s", "95% CI -7.3% to -5.1%"],
        "All SLOs met at 12.5 req/s": ["97.0%", "was 99.3% (-2.3 points)"],
        "Detectable loss": ["4.3%", "or more"],
        "False alarms, at most": ["0.1%", "of changes within the tolerance"],
        "Looks": ["2", "after 32 and 64 seeds a side"],
    }


def test_measures_and_changes_of_the_scenario_have_a_row_each() -> None:
    read = texts(render(ANSWERS["lost"], COMMAND))
    assert read["page.measures.table.1.2"] == "p99 goodput, req/s | 12.9 | 12.1 | -6.2%"
    assert read["page.measures.table.1.6"] == "mean queueing | 24.0 ms | 31.0 ms | +29%"
    assert "The seeds drew 12.9 req/s of a nominal 13.0." in read["page.measures.p.1"]
    assert read["page.changes.dt.6"] == SIX[5]["key"]
    assert read["page.changes.dd.6"] == "5 → nothing"
    assert 'id="changes"' not in render(result(), COMMAND)  # the one change stands in a sentence


@pytest.mark.parametrize(
    ("state", "title", "mark"),
    [
        ("lost", "Regression", "missed"),
        ("unclear", "Pass, but not significant", "edge"),
        ("same", "Statistically tied", "none"),
        ("within tolerance", "Loss within the tolerance", "met"),
        ("better", "Improvement", "met"),
        ("unchanged", "No change", "none"),
        ("none", "Regression", "missed"),
    ],
)
def test_each_state_has_a_title_and_a_mark(state: str, title: str, mark: str) -> None:
    read = body(render(ANSWERS[state], COMMAND))
    assert f"{title}</h1>" in read
    assert f'<header class="{mark}">' in read


@pytest.mark.parametrize("state", ANSWERS)
def test_no_sentence_is_said_twice_or_longer_than_thirty_words(state: str) -> None:
    read = texts(render(ANSWERS[state], COMMAND))
    sentences = Counter(
        sentence
        for place, text in read.items()
        if not re.search("table|title|nav", place)
        for sentence in re.split(r"(?<=[.:]) (?=[A-Zp])", text)
        if len(sentence.split()) > 3
    )
    assert [sentence for sentence, n in sentences.items() if n > 1] == []
    assert max(len(sentence.split()) for sentence in sentences) <= 30


def test_a_side_without_p99_goodput_shows_no_number() -> None:
    page = render(ANSWERS["none"], COMMAND)
    assert texts(page)["page.header.p.2"] == "No rate meets the SLO any more."
    assert tiles(page)["p99 goodput"] == ["–", "was 12.9 req/s"]
    assert tiles(page)["Detectable loss"] == ["–", "or more"]


def test_a_drawn_load_far_from_the_nominal_one_is_a_caution_only() -> None:
    page = body(render(ANSWERS["unclear"], COMMAND))
    assert page.count("of a nominal") == 1
    assert "<li>The seeds drew 12.9 req/s of a nominal 14.4.</li>" in page
    assert "<li>Only a loss of 4.3% or more is sure to be detected: make the runs longer to detect less.</li>" in page


def test_an_early_pass_says_what_it_rests_on() -> None:
    assert "The pass rests on 32 seeds" in body(render(ANSWERS["same"], COMMAND))
    assert "rests on" not in body(render(result(state="same", passes=True, n_seeds=64), COMMAND))
    assert "Both sides have the same load, SLO and goal." in body(render(result(), COMMAND))


@pytest.mark.parametrize(
    ("state", "command", "expected"),
    [
        ("lost", COMMAND, "simserve check 'chat burst.yaml' --set 'a=$b' --baseline base.json --update"),
        ("better", COMMAND, "simserve check 'chat burst.yaml' --set 'a=$b' --baseline base.json --update"),
        ("same", COMMAND, "simserve check 'chat burst.yaml' --set 'a=$b' --baseline base.json"),
        ("unclear", COMMAND, "simserve check 'chat burst.yaml' --set 'a=$b' --baseline base.json"),
        *((state, AT_REF, "simserve check chat.yaml --against main") for state in ("lost", "better", "unclear")),
    ],
)
def test_the_next_command_is_as_a_shell_takes_it(state: str, command: tuple[str, ...], expected: str) -> None:
    read = texts(render(ANSWERS[state], command))
    assert read["page.next.pre.1"].replace(" | ", " ") == expected
    assert ("(--update)" in read["page.next.p.1"]) == (state == "unclear" and command is COMMAND)


def test_a_baseline_recorded_again_keeps_its_goal() -> None:
    page = body(render(result(goal_frac=0.9), COMMAND))
    assert "<span>--goal</span> 0.9 <span>--update</span></pre>" in page
    assert page.count("p90 goodput") > 1
    assert "--goal</span>" not in body(render(result(), COMMAND))
    assert body(render(result(goal_frac=0.9), (*COMMAND, "--goal", "0.9"))).count("--goal") == 1


def test_no_name_becomes_markup() -> None:
    change = {"key": HOSTILE, "baseline": HOSTILE, "candidate": {HOSTILE: 1}}
    sides = {"name": HOSTILE, "simserve": HOSTILE, "goodput_per_s": 12.9, "fails_first": "tpot_s"}
    for changes in ([change], [change, change]):
        page = render(
            result(
                scenario={"name": HOSTILE, "digest": HOSTILE, "seed": 0},
                slo_classes=[HOSTILE],
                baseline=sides,
                candidate={"simserve": HOSTILE},
                changes=changes,
                parts=[part("queue_s", HOSTILE, "s", 0.1, 0.2)],
                warnings=[HOSTILE],
            ),
            (*COMMAND, HOSTILE, f"--{HOSTILE}"),
        )
        assert "<img" not in page
        assert page.count("<script") == 1  # it has no charts


@pytest.fixture(scope="module")
def chromium() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.mark.skipif(not (BROWSER and CHROMEDRIVER), reason="no chromium with chromedriver on this machine")
@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("state", ["lost", "unclear", "none"])
def test_nothing_overflows_or_scrolls(state: str, width: int, chromium: Driver, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(ANSWERS[state], COMMAND), encoding="utf-8")
    chromium.resize(width)
    chromium.open(file)
    assert chromium.script("return document.documentElement.scrollWidth") == width
    wide = """return [...document.querySelectorAll(".scroll, .tile, .value, pre, .said div")]
        .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"""
    assert chromium.script(wide) == []
    assert chromium.console() == []
