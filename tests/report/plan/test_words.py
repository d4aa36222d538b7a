"""A plan in words: what to take and why, why the others lose, from facts written by hand; and its page in a browser."""

import re
from pathlib import Path
from typing import Any

import pytest

from simserve.metrics.answers.plan import PlanAnswer
from simserve.report.plan.reasons import below
from simserve.report.plan.words import grown, option_cells, reasons, scaled, sentence, with_words
from tests.report.pages import render
from tests.report.test_browser import BROWSER, opened


def option(name: str, **changes: Any) -> dict[str, Any]:
    """An option that holds: three replicas at 4 dollars."""
    gpu, _, tensor = name.partition(" TP ")
    own = {"option": name, "gpu": gpu, "tensor": int(tensor), "how": "together", "state": "holds", "calibrated": True}
    sizes = {"needed_replicas": 3, "replicas": 3, "prefill_replicas": None, "decode_replicas": None, "gpus": 3}
    money = {"usd_per_gpu_hour": 4.0, "usd_per_hour": 12.0, "usd_per_month": 8760.0}
    money |= {"usd_per_month_low": 8760.0, "usd_per_month_high": 8760.0}
    per = {"usd_per_m_output_tokens": 0.55, "usd_per_m_tokens": 0.11, "usd_per_m_good_tokens": 0.56}
    per |= {"usd_per_m_good_tokens_low": 0.55, "usd_per_m_good_tokens_high": 0.57}
    energy = {"kwh_per_month": 1200.0, "kwh_per_month_at_tdp": 1533.0, "busy_frac": 0.78}
    met = {"attained_frac": 0.9932, "attained_low_frac": 0.9911, "attained_high_frac": 0.9953, "n_seeds": 8}
    fewer = {"fewer_attained_frac": 0.95, "fewer_saturated": False, "fails_first": "tpot_s", "fails_first_frac": 0.96}
    more = {
        "rank": 1,
        "decision": "met",
        "close_call": False,
        "offered_per_s": 13.1,
        "outgrown_month": None,
        "alone_attained_frac": 1.0,
    }
    return own | sizes | money | per | energy | met | fewer | more | changes


def facts(*options: dict[str, Any], spare: int = 0, growth_frac: float = 0.0, **changes: Any) -> PlanAnswer:
    assumed: dict[str, Any] = {
        "spare_replicas": spare,
        "growth_frac": growth_frac,
        "months": 12,
        "hours_per_month": 730.0,
        "max_gpus": 64,
    }
    assumed |= {"n_seeds": 8, "usd_per_gpu_hour": {"h100-sxm": 4.0}, "given_prices": [], "energy": "full power"}
    result = {
        "schema": "simserve/1",
        "version": "0",
        "scenario": {"name": "chat", "digest": "abc", "seed": 0},
        "goal_frac": 0.99,
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
        "slo_classes": {},
        "state": "found" if any(row["state"] == "holds" for row in options) else "none",
        "demand": {"kind": "arrivals", "mean_per_s": 13.1, "sized_for_per_s": 13.1, "mean_load_frac": 1.0}
        | {"load": {"kind": "requests", "nominal_per_s": 13.1, "drawn_per_s": 12.8, "off_frac": 12.8 / 13.1 - 1}},
        "assumed": assumed,
        "options": list(options),
        "growth": None,
        "autoscaling": None,
        "warnings": [],
    }
    return PlanAnswer.model_validate(result | changes, strict=True)


H100 = option("h100-sxm TP 1")
DEARER = {"usd_per_month": 12_088.8, "usd_per_month_low": 12_088.8, "usd_per_month_high": 12_088.8}
L40S = option("l40s TP 2", rank=2, gpus=18, replicas=9, needed_replicas=8, **DEARER)
EDGE = {"tied_replicas": 2, "tied_attained_frac": 0.991, "tied_low_frac": 0.987, "tied_high_frac": 0.994}
EDGE |= {"tied_n_seeds": 128, "usd_per_month_low": 5840.0}
"""Two replicas that more seeds did not decide."""

TOO_SLOW = option("l40s TP 1", rank=None, state="too slow") | {
    "alone_attained_frac": 0.968,
    "alone_slo": "ttft_s",
    "alone_slo_frac": 0.968,
    "alone_prompt_tokens": 8000,
    "alone_took_s": 0.9,
    "alone_refused_frac": 0.0,
    "attained_frac": None,
}
REFUSED = option("l40s TP 3", rank=None, state="refused", calibrated=None, attained_frac=None) | {
    "refused_because": {"rule": "must divide the model's 32 attention heads", "value": "3", "remedy": "try 1 or 2"},
    "alone_attained_frac": None,
}
TOO_MANY = option("h100-sxm TP 2", rank=None, state="too many", decision="missed", attained_frac=0.91, saturated=False)


def test_the_sentence_says_what_to_take_what_it_does_and_how_the_next_compares() -> None:
    assert sentence(facts(H100, L40S)) == (
        "Take 3 × h100-sxm (3 replicas of TP 1) for $8,760 a month. 99.3% of requests (95% CI 99.1–99.5%, "
        "8 seeds) have TTFT ≤ 500 ms and TPOT ≤ 50 ms at the nominal 13.1 req/s. That is $4.00 per GPU-hour, $0.56 per "
        "million output tokens of requests that met the SLO. Runner-up: l40s TP 2 is 38% more expensive with 18 GPUs. "
        "8 seeds drew 12.8 req/s on average, 2.3% below the nominal 13.1 req/s."
    )


def test_it_says_so_where_costs_are_uncalibrated_or_chance_decides_or_replicas_may_be_down() -> None:
    progress = facts(H100 | {"calibrated": False}, L40S | EDGE, spare=1)
    text = sentence(progress)
    assert "at the nominal 13.1 req/s, even with 1 replica down." in text
    tie = "Statistically tied with l40s TP 2: 2 replicas ($5,840) may also meet the SLO (99.1%, 95% CI 98.7–99.4%)."
    assert f"{tie} Rerun with a longer load to decide." in text
    assert text.endswith("Step costs of h100-sxm are uncalibrated: measure one before you buy.")
    assert option_cells(progress.options[0], None)[0] == "h100-sxm TP 1 *"
    assert reasons(with_words(progress))[-1].startswith("* step costs are uncalibrated")


def test_a_smaller_fleet_on_the_edge_is_named_beside_the_sure_one_and_costs_the_tick_nothing() -> None:
    progress = with_words(facts(H100 | EDGE))
    assert (
        "Statistically tied with a smaller fleet: 2 replicas ($5,840) may also meet the SLO (99.1%, 95% CI "
        "98.7–99.4%). Rerun with a longer load to decide." in progress.sentence
    )
    assert '<header class="met">' in render(progress)


def test_every_option_has_its_reason() -> None:
    progress = with_words(facts(H100, L40S, TOO_MANY, TOO_SLOW, REFUSED))
    assert [row.reason for row in progress.options] == [
        "the cheapest that surely meets the SLO; with 2 replicas only 95.0% meet the SLO (TPOT ≤ 50 ms fails first: "
        "96.0%)",
        "38% more expensive: needs 18 GPUs (9 replicas, 1 of them spare); with 7 replicas up only 95.0% meet the SLO "
        "(TPOT ≤ 50 ms fails first: 96.0%)",
        "needs more than 64 GPUs: with them only 91.0% meet the SLO, 8.00 points short "
        "(TPOT ≤ 50 ms fails first: 96.0%)",
        "cannot meet TTFT ≤ 500 ms at any number of replicas: on an idle replica 96.8% of requests do, 2.20 points "
        "short; a prompt of 8,000 tokens takes 900 ms",
        "cannot run: must divide the model's 32 attention heads, got 3 (try 1 or 2)",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"usd_per_month": 26_280.0}, "costs 3 times as much: needs"),
        (
            {"usd_per_month": 8760.0, "usd_per_m_good_tokens": 0.616},
            "costs the same a month, 10% more for a million good",
        ),
        ({"usd_per_month": 8760.0}, "costs the same: needs"),
        ({"fewer_attained_frac": None}, "one replica is the fewest"),
        ({"fewer_saturated": True}, "with 7 replicas up the load is saturated"),
        (
            EDGE,
            "with 7 replicas up the SLO is on the edge; statistically tied with the goal: 2 replicas for $5,840 (99.1%",
        ),
    ],
)
def test_losers_differ(changes: dict[str, Any], text: str) -> None:
    assert text in with_words(facts(H100, L40S | changes)).options[1].reason


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (TOO_SLOW | {"alone_refused_frac": 0.1}, "refuses 10.0% of requests at any number of replicas"),
        (TOO_MANY | {"attained_frac": None}, "needs more than 64 GPUs even for the smallest fleet"),
        (
            TOO_MANY | {"decision": "edge", "attained_frac": 0.991},
            "needs more than 64 GPUs to be sure: with them 99.1% meet the SLO, 95% CI 99.1–99.5%",
        ),
        (TOO_MANY | {"saturated": True}, "needs more than 64 GPUs: with them the load is saturated"),
    ],
)
def test_what_does_not_hold_differs(changes: dict[str, Any], text: str) -> None:
    assert with_words(facts(H100, changes)).options[1].reason.startswith(text)


def test_where_nothing_holds_the_nearest_is_named_with_what_it_lacks() -> None:
    text = sentence(facts(TOO_MANY, TOO_SLOW, REFUSED))
    assert text.startswith(
        "No option surely meets the SLO: 99% of requests must have TTFT ≤ 500 ms and TPOT ≤ 50 ms. Closest is "
    )
    assert "Closest is l40s TP 1: it cannot meet TTFT ≤ 500 ms" in text
    assert sentence(facts(REFUSED)).endswith(
        "None can be built: l40s TP 3 cannot run: must divide the model's 32 attention heads, got 3 (try 1 or 2)."
    )


def test_a_share_that_misses_the_goal_never_reads_like_it() -> None:
    assert below(0.95, 0.99) == "95.0%"
    assert below(0.98974, 0.99) == "98.97%"
    assert below(0.989996, 0.99) == "98.9996%"


def month(number: int, gpus: int | None) -> dict[str, Any]:
    usd = None if gpus is None else gpus * 2920.0
    return {"month": number, "offered_per_s": 13.1, "replicas": gpus, "gpus": gpus, "usd_per_month": usd}


@pytest.mark.parametrize(
    ("outgrown", "end", "text"),
    [
        (1, 4, "Growing by 5.0% a month, today's fleet is too small from month 1; after 1 it takes 4 GPUs at"),
        (1, None, "today's fleet is too small from month 1; in the end it needs more GPUs than --max-gpus."),
        (None, 3, "Growing by 5.0% a month, today's fleet lasts all 1 month."),
    ],
)
def test_growth_is_told(outgrown: int | None, end: int | None, text: str) -> None:
    growth = {"outgrown_month": outgrown, "rows": [month(0, 3), month(1, end)]}
    progress = facts(H100, growth=growth, growth_frac=0.05)
    assert text in grown(progress)
    assert grown(facts(H100)) == ""


HOURS = [{"hour": hour, "peak_per_s": 13.1, "replicas": 2, "gpus": 2, "usd_per_month": 5840.0} for hour in range(24)]
BY_HOUR = {"mean_load_frac": 0.6, "saves_at_best_frac": 1 / 3, "usd_per_month_at_best": 5840.0, "rows": HOURS}


def test_what_following_the_hours_would_save_is_told_as_a_bound() -> None:
    text = scaled(facts(H100, autoscaling=BY_HOUR))
    assert "The mean demand is 60.0% of it" in text
    assert "would save 33.3% at best ($5,840 a month)" in text
    assert scaled(facts(H100)) == ""


def page_of(folder: Path, progress: PlanAnswer) -> Path:
    path = folder / "report.html"
    path.write_text(render(with_words(progress)), encoding="utf-8")
    return path


def whole() -> PlanAnswer:
    """With everything a page may have."""
    growth = {"outgrown_month": 1, "rows": [month(0, 3), month(1, 4), month(2, None)]}
    changes: dict[str, Any] = {"scenario": {"name": "chat & <b>more</b>", "digest": "abc", "seed": 0}}
    changes |= {"growth": growth, "autoscaling": BY_HOUR, "warnings": ["mind the <b>gap</b>"]}
    return facts(H100, L40S, TOO_SLOW, REFUSED, **changes)


def test_the_page_answers_first_and_takes_no_name_for_markup(tmp_path: Path) -> None:
    page = page_of(tmp_path, whole()).read_text(encoding="utf-8")
    places = [page.index(part) for part in ("Take 3 × h100-sxm: $8,760 a month", 'id="options"', 'id="reasons"')]
    assert places == sorted(places)
    assert "chat &amp; &lt;b&gt;more&lt;/b&gt;" in page
    assert "<b>more</b>" not in page
    assert "Mind the &lt;b&gt;gap&lt;/b&gt;." in page
    assert len(page.encode()) < 6e6


def test_without_a_fleet_the_page_says_why(tmp_path: Path) -> None:
    page = page_of(tmp_path, facts(TOO_SLOW, REFUSED)).read_text(encoding="utf-8")
    assert "No option surely meets the SLO" in page
    assert "a prompt of 8,000 tokens takes 900\u00a0ms" in page
    assert len(page) < 100_000  # no charts, no library


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize(
    "flags",
    [
        ("--window-size=1280,3000", "--blink-settings=preferredColorScheme=1"),
        ("--window-size=520,5000", "--blink-settings=preferredColorScheme=0"),
    ],
    ids=["light and wide", "dark and narrow"],
)
def test_the_browser_draws_every_chart_and_complains_of_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    dom, console = opened(page_of(tmp_path, whole()), tmp_path / "profile", *flags)
    assert console == ""
    assert 'data-drawn="3"' in dom
    charts = {name: dom.split(f'id="{name}"')[1].split("</section>")[0] for name in ("costs", "months", "hours")}
    assert charts["costs"].count('class="point"') == 2  # a bar for each option that holds
    for name in ("months", "hours"):
        assert 'class="js-line"' in charts[name]
    body = re.sub(r"<script.*?</script>|<style.*?</style>", "", dom, flags=re.S)
    assert not re.search(r"\$[a-z]", body)  # a color that nobody resolved


def test_two_that_surely_cost_the_same_are_not_a_matter_of_chance() -> None:
    same = {"usd_per_month_low": 8760.0, "usd_per_month_high": 8760.0, "usd_per_month": 8760.0, "close_call": True}
    progress = with_words(facts(H100, L40S | same))
    assert "tied" not in progress.sentence
    assert "tied" not in progress.options[1].reason
    assert option_cells(progress.options[1], progress.options[0])[-1] == "costs the same"
