"""A sweep in words and on a page: the best points first, every point there, and no name that becomes markup."""

from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.sweep import SweepAnswer
from simserve.report.sweep.words import sentence, short_names, table_rows
from tests.report.figures import figures
from tests.report.pages import render
from tests.report.test_browser import BROWSER, opened

TENSOR = "cluster.pools.0.parallel.tensor"
HOSTILE = "</script><img src=x onerror=alert(1)>"


OFF = {"kind": "requests", "nominal_per_s": 10.0, "drawn_per_s": 9.0, "off_frac": -0.1}
"""A tenth below."""

NEAR = {"kind": "requests", "nominal_per_s": 10.0, "drawn_per_s": 9.8, "off_frac": -0.02}


def answer(attained_frac: float, half: float = 0.002, n_runs: int = 8) -> dict[str, Any]:
    ends = {"low_frac": attained_frac - half, "high_frac": attained_frac + half}
    known = {"goal_frac": 0.99, "confidence": 0.95, "n_requests": 1000, "basis": "replications", "by_slo": {}}
    unknown = dict.fromkeys(("slo_class", "load_off_frac", "queue"))
    return (
        known
        | unknown
        | {
            "decision": "met",
            "attained_frac": attained_frac,
            **ends,
            "n_runs": n_runs,
            "is_far_below": False,
        }
    )


def point(number: int, **changes: Any) -> dict[str, Any]:
    """A point that was run; `goodput`, `usd`, `ttft_s`, `tpot_s` and `attained` of its measures, or other keys."""
    of = {"goodput": 8.0, "usd": 4.0, "ttft_s": 0.25, "tpot_s": 0.03, "attained": 0.995}
    of |= {key: changes.pop(key) for key in list(changes) if key in of}
    values = {
        "goodput.per_s": of["goodput"],
        "goodput.per_usd": of["goodput"] * 3600 / of["usd"],
        "slo_attainment.frac": of["attained"],
        "ttft_s.p99": of["ttft_s"],
        "tpot_s.p99": of["tpot_s"],
        "served_per_s": 9.0,
        "output_tokens_per_s": 1800.0,
    }
    result = {
        "point": number,
        "values": {"gpu": "h100-sxm", TENSOR: number + 1},
        "status": "finished",
        "reason": None,
        "n_seeds": 1,
        "fleet": {"n_gpus": 1, "usd_per_hour": of["usd"], "kw": 0.7},
        "saturated": False,
        "decision": "met",
        "meets_goal": True,
        "answer": answer(of["attained"]),
        "load": OFF,
        "shared_load": OFF,
        "measures": {key: {"value": value, "low": None, "high": None} for key, value in values.items()},
    }
    return result | changes


def failed(number: int, reason: str = "tensor: must divide 32 heads") -> dict[str, Any]:
    bare = {"status": "failed", "reason": reason, "n_seeds": 0, "fleet": None, "saturated": None}
    nothing = dict.fromkeys(("meets_goal", "decision", "answer", "load", "shared_load", "measures"))
    return point(number, **bare, **nothing)


def facts(*points: dict[str, Any], **changes: Any) -> SweepAnswer:
    best = {"point": 0, "not_told_apart": None}
    result = {
        "version": "0.1.0",
        "scenario": {"name": "chat", "seed": 0},
        "keys": ["gpu", TENSOR],
        "seeds": [0],
        "goal_frac": 0.99,
        "slo": {"ttft_s": 0.5},
        "slo_classes": [],
        "fronts": {"cost_goodput": [0], "ttft_tpot": [0]},
        "best": {"per_usd": best, "goodput": best, "cheapest": {"point": 0}},
        "tied": [],
        "points": list(points),
    }
    return SweepAnswer.model_validate(result | changes, strict=True)


def body(page: str) -> str:
    """What is read, without scripts."""
    return page[page.index("<main>") : page.index("</main>")].replace("\u00a0", " ")


def test_the_sentence_says_what_to_take_how_sure_that_is_and_what_else_is_best() -> None:
    best = {"per_usd": {"point": 0, "not_told_apart": [2]}, "goodput": {"point": 1, "not_told_apart": []}}
    result = facts(
        point(0), point(1, goodput=9.0, usd=8.0), point(2), best=best | {"cheapest": {"point": 0}}, seeds=[0, 1]
    )
    assert sentence(result) == (
        "Cheapest that meets the SLO: point 0 (gpu h100-sxm, tensor 1) for 4.00 dollars an hour. 99.5% of requests "
        "(95% CI 99.3–99.7%, 8 seeds) have TTFT ≤ 500 ms at the nominal 10.0 req/s; the goal is 99%. Most goodput per "
        "dollar: point 0 (gpu h100-sxm, tensor 1), 7,200 requests (statistically tied with 1 other). Most goodput: "
        "point 1 (gpu h100-sxm, tensor 2), 9.00 req/s. 2 seeds drew 9.00 req/s on average, 10.0% below the nominal "
        "10.0 req/s. 3 of 3 points are as far off. Goodput and latencies are those of the drawn load, SLO decisions "
        "those of the nominal one. 3 points of chat, 2 seeds each."
    )


def test_an_edge_that_is_cheaper_is_named_beside_the_sure_point_and_has_no_tick() -> None:
    edge = point(1, usd=2.0, decision="edge", meets_goal=False, answer=answer(0.991))
    result = facts(point(0), edge, tied=[1])
    assert "Cheapest that surely meets the SLO: point 0 (gpu h100-sxm, tensor 1) for 4.00 dollars an hour." in sentence(
        result
    )
    assert (
        "Point 1 (gpu h100-sxm, tensor 2) costs 2.00 dollars an hour and is statistically tied with the goal: 99.1% of "
        "requests (95% CI 98.9–99.3%, 8 seeds) have TTFT ≤ 500 ms." in sentence(result)
    )
    page = render(result)
    assert (
        "<title>chat: Cheapest that surely meets the SLO: gpu h100-sxm, tensor 1; tied: gpu h100-sxm, tensor 2" in page
    )
    assert '<header class="met">' in page
    alone = facts(
        edge | {"point": 0},
        tied=[0],
        best={"per_usd": {"point": 0, "not_told_apart": None}, "goodput": None, "cheapest": None},
    )
    assert '<header class="edge">' in render(alone)
    assert sentence(alone).startswith(
        "No point surely meets the SLO: 99% of requests must have TTFT ≤ 500 ms. Point 0 "
    )


def test_a_point_that_misses_the_slo_is_never_recommended() -> None:
    missed = point(1, goodput=9.0, decision="missed", meets_goal=False, answer=answer(0.5))
    best = {"per_usd": {"point": 1, "not_told_apart": None}, "goodput": {"point": 1, "not_told_apart": None}}
    result = facts(point(0), missed, best=best | {"cheapest": {"point": 0}})
    assert (
        "Most goodput per dollar: point 1 (gpu h100-sxm, tensor 2), 8,100 requests, but it misses the SLO."
        in sentence(result)
    )
    assert "misses: 50.0% within the SLO" in body(render(result))


def test_what_the_error_of_the_costs_keeps_from_meeting_the_slo_is_said_with_its_probability() -> None:
    sure = {"word": "meets", "probability": 0.983, "r": 0.7, "n_draws": 8}
    unsure = {"word": "likely_meets", "probability": 0.81, "r": 0.9, "edge_by": "cost", "n_draws": 8}
    edge = point(1, usd=2.0, goodput=9.0, decision="edge", meets_goal=False, judged=unsure)
    best = {"per_usd": {"point": 1}, "goodput": {"point": 1}, "cheapest": {"point": 0}}
    result = facts(point(0, judged=sure), edge, best=best, tied=[1])
    assert (
        "the goal is 99%. With the error of the costs P is >97% (r 0.70). Point 1 (gpu h100-sxm, tensor 2) costs 2.00 "
        "dollars an hour. With the error of the costs P is 81% (r 0.90). A log of your server decides: simserve "
        "calibrate. Most goodput per dollar: point 1 (gpu h100-sxm, tensor 2), 16,200 requests, but it likely meets "
        "the SLO." in sentence(result)
    )
    assert [row[8:12] for row in table_rows(result)[1:]] == [
        ("0.90", "81%", "likely meets", "8"),
        ("0.70", ">97%", "meets", "8"),
    ]
    by_noise = facts(point(0, judged=sure | {"n_draws": 0}))
    assert "error of the costs" not in sentence(by_noise)


def test_the_drawn_load_is_told_only_where_it_is_far_off_the_nominal_one() -> None:
    assert "drew" not in sentence(facts(point(0, shared_load=NEAR)))
    assert "1 seed drew 9.00 req/s, 10.0% below the nominal 10.0 req/s." in sentence(facts(point(0)))


def test_it_says_what_is_not_ranked_and_what_to_do_next() -> None:
    text = sentence(facts(point(0, n_seeds=8), point(1, saturated=True), failed(2), failed(3)))
    assert "Not ranked: 1 point is saturated and 2 points failed." in text
    assert text.endswith(
        "4 points of chat, 1 seed each, up to 8 where the SLO is near its edge. "
        "Next: --replications 8 ranks goodput and latencies over 8 seeds."
    )


def test_where_no_point_meets_the_slo_it_says_so() -> None:
    best = {"per_usd": {"point": 0, "not_told_apart": None}, "goodput": {"point": 0, "not_told_apart": None}}
    missed = point(0, decision="missed", answer=answer(0.4))
    result = facts(missed, best=best | {"cheapest": None}, slo=None)
    assert sentence(result).startswith(
        "No point meets the SLO: 99% of requests must meet their SLO. Closest is point 0 (gpu h100-sxm, tensor 1): "
        "40.0% of requests (95% CI 39.8–40.2%, 8 seeds) do at the nominal 10.0 req/s."
    )
    assert "No point meets the SLO" in render(result)
    assert '<header class="missed">' in render(result)


def test_without_an_slo_there_is_still_a_table_and_the_front_of_latencies() -> None:
    bare = [point(number, goodput=float("nan"), decision=None, answer=None) for number in (0, 1)]
    result = facts(*bare, best=dict.fromkeys(("per_usd", "goodput", "cheapest")), slo={})
    assert table_rows(result)[0][4:7] == ("req/s", "tokens out/s", "state")
    assert table_rows(result)[1][4:7] == ("9.00", "1,800", "–")
    assert "Without an slo there is no goodput to rank points by." in sentence(result)
    assert list(figures(render(result))) == ["latency"]
    assert "give the scenario an slo" in body(render(result))
    assert "Asked" not in body(render(result))


def test_the_table_has_the_most_for_its_price_first_and_what_does_not_count_last() -> None:
    grown = point(1, goodput=99.0, saturated=True, decision="missed")
    best = {"per_usd": {"point": 3}, "goodput": {"point": 3}, "cheapest": {"point": 2}}
    result = facts(failed(0), grown, point(2, goodput=5.0), point(3, goodput=6.0, decision="edge"), best=best)
    rows = table_rows(result)
    slo = ("attained", "95% CI", "r", "P", "SLO", "seeds")
    assert rows[0] == ("point", "gpu", "tensor", "$/h", "goodput, req/s", "requests/$", *slo, "p99 TTFT", "p99 TPOT")
    assert [row[0] for row in rows[1:]] == ["3", "2", "1", "0"]
    slo = ("99.5%", "99.3–99.7%", "–", "–", "edge", "8")
    assert rows[1] == ("3", "h100-sxm", "4", "4.00", "6.00", "5,400", *slo, "250 ms", "30.0 ms")
    assert [row[6:11] for row in rows[3:]] == [("saturated", *"–––", "misses"), ("failed", *"––––")]


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["gpu", TENSOR], ["gpu", "tensor"]),
        (["cluster.pools.0.replicas", "cluster.pools.1.replicas"], ["0.replicas", "1.replicas"]),
        (["gpu", "cluster.pools.0.gpu"], ["gpu", "0.gpu"]),
    ],
)
def test_keys_are_as_long_as_it_takes_to_tell_them_apart(keys: list[str], short: list[str]) -> None:
    assert short_names(keys) == short


def test_the_charts_have_every_point_and_the_front_with_its_numbers() -> None:
    points = [point(0), point(1, goodput=9.0, usd=8.0), point(2, goodput=7.0, usd=8.0, saturated=True), failed(3)]
    page = render(facts(*points, fronts={"cost_goodput": [0, 1], "ttft_tpot": [0]}))
    cost = figures(page)["cost"]["data"]
    assert (cost[0]["mode"], cost[0]["x"], cost[0]["y"]) == ("lines", [4.0, 8.0], [8.0, 9.0])
    saturated, front = cost[1:]
    assert (saturated["x"], saturated["y"]) == ([8.0], [7.0])
    assert front["text"] == ["0", "1"]
    assert front["hovertext"][1].startswith(
        "<b>1: gpu h100-sxm, tensor 2</b><br>8.00 dollars an hour<br>goodput 9.00/s"
    )


def test_failed_points_with_one_reason_stand_together() -> None:
    line = body(render(facts(point(0), failed(1), failed(2), failed(3, "too large"))))
    assert "<li><strong>Points 1 and 2</strong>: tensor: must divide 32 heads</li>" in line
    assert "<li><strong>Point 3</strong> (gpu h100-sxm, tensor 4): too large</li>" in line


def test_the_intervals_of_seeds_are_drawn_and_do_not_go_below_nothing() -> None:
    one = point(0)
    one["measures"]["goodput.per_s"] |= {"low": -1.0, "high": 10.0}
    front = figures(render(facts(one, point(1))))["cost"]["data"][-1]
    assert (front["error_y"]["array"], front["error_y"]["arrayminus"]) == ([2.0], [8.0])


def test_names_and_values_are_not_markup() -> None:
    hostile = point(0, values={"gpu": HOSTILE, TENSOR: [HOSTILE]})
    page = render(facts(hostile, failed(1, HOSTILE), scenario={"name": HOSTILE, "seed": 0}))
    assert "<img" not in page.replace(page[page.index("<script>") : page.rindex("</script>")], "")
    assert all("<img" not in text for text in figures(page)["cost"]["data"][-1]["hovertext"])


def test_the_region_within_the_slo_is_shaded_where_both_p99s_are_drawn() -> None:
    page = render(facts(point(0), point(1, ttft_s=2.0, tpot_s=0.09), slo={"ttft_s": 0.5, "tpot_s": 0.05}))
    (box,) = figures(page)["latency"]["layout"]["shapes"]
    assert (box["x1"], box["y1"]) == (0.5, 0.05)
    assert box["x0"] < 0.25 and box["y0"] < 0.03  # of the better point, which is within
    assert "Shaded: both p99s within the SLO (TTFT ≤ 500 ms and TPOT ≤ 50 ms)." in body(page)
    of_classes = render(facts(point(0), slo_classes=["chat"]))
    assert "shapes" not in figures(of_classes)["latency"]["layout"]
    assert "Shaded" not in body(of_classes)


def test_the_captions_count_the_points_that_are_not_drawn() -> None:
    page = body(render(facts(point(0), failed(1), failed(2))))
    assert page.count("2 points without a measured value are not drawn.") == 2
    assert "without a measured value" not in body(render(facts(point(0))))
    many = body(render(facts(*map(point, range(13)), fronts={"cost_goodput": list(range(13)), "ttft_tpot": [0]})))
    assert many.count("The front has 13 points, too many for numbers beside them") == 1


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize(
    "flags",
    [
        ("--window-size=1280,3000", "--blink-settings=preferredColorScheme=1"),
        ("--window-size=500,5000", "--blink-settings=preferredColorScheme=0"),
    ],
    ids=["light and wide", "dark and narrow"],
)
def test_the_browser_draws_both_fronts_and_complains_of_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    page = tmp_path / "report.html"
    points = [point(0), point(1, goodput=9.0, usd=8.0, ttft_s=2.0), point(2, saturated=True), failed(3)]
    page.write_text(render(facts(*points, fronts={"cost_goodput": [0, 1], "ttft_tpot": [0, 1]})), encoding="utf-8")
    assert page.stat().st_size < 2_200_000
    dom, console = opened(page, tmp_path / "profile", *flags)
    assert console == ""
    assert 'data-drawn="2"' in dom
    for name in ("cost", "latency"):
        assert dom.split(f'id="{name}"')[1].split('class="card"')[0].count('class="js-line"') >= 1
