"""The pages of `simserve capacity`: the answer first, its curves, what binds, what was tried, and no name as markup."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from simserve import load_scenario
from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.study.capacity import concurrency, rate
from simserve.study.capacity.boundary import SearchAxis
from simserve.study.capacity.fleet_size import fleet_size_answer, search
from simserve.study.capacity.question import CapacityQuestion
from tests.cli.scenarios import write_scenario
from tests.report.figures import figures
from tests.report.pages import paragraphs, render
from tests.report.test_browser import BROWSER, opened
from tests.study.served import Missed, runs_at

HOSTILE = "</script><img src=x onerror=alert(1)>"
MISSED: Missed = {"ttft_s": lambda load: 0.01 * (load / 2) ** 8, "tpot_s": lambda load: 0.01 * load**8}


def question(folder: Path, goal_frac: float = 0.99) -> CapacityQuestion:
    return CapacityQuestion(load_scenario(write_scenario(folder)), goal_frac, 0.03)


def by_rate(folder: Path, missed: Missed = MISSED, **how: Any) -> CapacityAnswer:
    return rate.study(question(folder), runs_at(missed, **how)).answer


def by_concurrency(folder: Path) -> CapacityAnswer:
    missed: Missed = {"ttft_s": lambda n: 0.0 if n <= 20 else 0.02}
    return concurrency.study(question(folder), runs_at(missed), SearchAxis(4, 1, 500, is_whole=True)).answer


def by_replicas(folder: Path) -> CapacityAnswer:
    runs = runs_at({"ttft_s": lambda n: 0.02 if n < 3 else 0.0})
    return fleet_size_answer(search(question(folder), 0, runs))


def changed(answer: CapacityAnswer, *changes: tuple[str, Any]) -> CapacityAnswer:
    """Return the answer with other values at dotted paths."""
    facts = answer.facts()
    for path, value in changes:
        *parents, last = path.split(".")
        place = facts
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[last] = value
    schema: TypeAdapter[CapacityAnswer] = TypeAdapter(CapacityAnswer)
    return schema.validate_python(facts)


def body(page: str) -> str:
    return page[page.index("<main>") : page.index("</main>")].replace("\u00a0", " ").replace("\u2060", "")


def test_the_answer_stands_first_with_its_interval_and_what_it_comes_to(tmp_path: Path) -> None:
    read = body(render(by_rate(tmp_path)))
    assert "9.99 req/s on 1 GPU</h1>" in read  # (1 + 2**-8)**(-1/8), times ten, is 9.995
    assert "The p99 goodput: the highest rate at which 99% of requests have TTFT ≤ 500 ms and TPOT ≤ 50 ms" in read
    places = [read.index(part) for part in ("</h1>", "Count on", "Per GPU", "Per dollar", 'id="curves"', 'id="trust"')]
    assert places == sorted(places)
    assert "<td>2 times the capacity</td>" in read


def test_the_slo_the_answer_and_the_knee_are_drawn_into_the_curve_of_each_latency(tmp_path: Path) -> None:
    answer = by_rate(tmp_path)
    facts, ttft = answer.facts(), figures(render(answer))["ttft_s"]
    p50, p99, knee = ttft["data"]
    assert p99["x"] == pytest.approx([point["offered_per_s"] for point in facts["curve"]], rel=1e-4)
    assert p99["y"] == p50["y"] == pytest.approx([point["ttft_s"]["p99"] for point in facts["curve"]], rel=1e-4)
    assert knee["x"] == pytest.approx([facts["knees"]["ttft_s"]["offered_per_s"]], rel=1e-4)
    uprights = [shape["x0"] for shape in ttft["layout"]["shapes"] if shape["type"] == "line" and "x0" in shape]
    assert facts["answer"]["offered_per_s"]["value"] in uprights
    assert 0.5 in [shape["y0"] for shape in ttft["layout"]["shapes"]]


def test_the_goal_is_drawn_into_the_attainment_and_crossed_at_the_answer(tmp_path: Path) -> None:
    answer = by_rate(tmp_path)
    drawn = figures(render(answer))["attainment"]
    (line,) = drawn["data"]
    at = answer.facts()["answer"]["offered_per_s"]["value"]
    assert all((y >= 0.99) == (x <= at) for x, y in zip(line["x"], line["y"], strict=True))
    assert 0.99 in [shape["y0"] for shape in drawn["layout"]["shapes"]]


def test_loads_at_which_the_queue_only_grows_have_open_marks(tmp_path: Path) -> None:
    drawn = figures(render(by_rate(tmp_path, saturates_at=1.05)))["ttft_s"]["data"][1]
    symbols = dict(zip(drawn["x"], drawn["marker"]["symbol"], strict=True))
    assert {symbol for x, symbol in symbols.items() if x < 10.4} == {"circle"}
    assert {symbol for x, symbol in symbols.items() if x > 10.6} == {"circle-open"}


def test_where_no_load_holds_the_page_says_which_slo_fails_and_by_how_much(tmp_path: Path) -> None:
    read = body(render(by_rate(tmp_path, {"ttft_s": lambda load: 0.4, "tpot_s": lambda load: 0.0})))
    assert "Does not hold even at 0.010 req/s</h1>" in read
    assert "there 60.0% of requests meet TTFT ≤ 500 ms" in read


def test_where_every_load_holds_the_page_says_where_the_search_stopped(tmp_path: Path) -> None:
    read = body(render(by_rate(tmp_path, {"ttft_s": lambda load: 0.0})))
    assert "Holds at every load up to 10,240 req/s</h1>" in read


def test_clients_are_told_whole(tmp_path: Path) -> None:
    read = body(render(by_concurrency(tmp_path)))
    assert "20 clients at once on 1 GPU</h1>" in read
    assert "The highest concurrency at which 99% of requests have" in read


def test_a_fleet_has_its_page_too(tmp_path: Path) -> None:
    answer = by_replicas(tmp_path)
    read = body(render(answer))
    assert "3 replicas of serve, 3 GPUs in all</h1>" in read
    assert figures(render(answer))["attainment"]["data"][0]["x"] == [1, 2, 3, 4]


def test_no_name_becomes_markup(tmp_path: Path) -> None:
    answer = by_rate(tmp_path)
    hostile = {"slo": None, "slo_class": HOSTILE}
    alone = answer.facts()["alone"]
    names = [(f"pools.0.{key}", HOSTILE) for key in ("name", "model")]
    more = ("alone", [*alone, alone[0] | hostile])
    page = render(changed(answer, ("scenario.name", HOSTILE), *names, ("warnings", [HOSTILE]), more))
    assert "<img" not in page.split("</style>")[1].split("<script>")[0]
    assert page.count("<script") == render(by_rate(tmp_path)).count("<script")


def test_what_is_unsure_is_said(tmp_path: Path) -> None:
    doubts = {"n_enough": False, "n_requests": 320, "is_precise": False}
    answer = changed(by_rate(tmp_path), *((f"answer.{key}", value) for key, value in doubts.items()))
    read = body(render(answer))
    assert "The answer rests on 320 requests, and fewer than ten of them may miss: it needs 1,000" in read
    assert 'class="few"' in read
    assert "p99 of 320 requests is a guess; it takes 1,000" in paragraphs(answer)[0]


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize(
    ("made", "names"),
    [
        (by_rate, ("ttft_s", "tpot_s", "attainment")),
        (by_concurrency, ("ttft_s", "tpot_s", "attainment")),
        (by_replicas, ("attainment",)),
    ],
)
def test_the_browser_draws_every_chart_and_complains_of_nothing(
    tmp_path: Path, made: Callable[[Path], CapacityAnswer], names: tuple[str, ...]
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(made(tmp_path)), encoding="utf-8")
    assert page.stat().st_size < 6e6
    dom, console = opened(page, tmp_path / "profile", "--window-size=520,5000")
    assert console == ""
    assert f'data-drawn="{len(names)}"' in dom
    for name in names:
        assert dom.split(f'id="{name}"')[1].split('class="card"')[0].count('class="js-line"') >= 1
