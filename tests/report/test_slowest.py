"""The page and the terminal name what the slowest 1% waited for, and what would help, by hand."""

import re
from typing import Any

import pytest

from simserve.metrics.time_split import PARTS as COLUMNS
from simserve.report.page import render
from simserve.report.run_view import RunView
from simserve.report.slowest import PARTS, slowest, terminal_sentence, why_slow
from tests.report.synthetic import synthetic
from tests.summaries import summary_of


def of(binds: str | None, mean: dict[str, float], of_all: dict[str, float]) -> dict[str, Any]:
    nothing = dict.fromkeys(COLUMNS, 0.0)
    return {"n": 40, "from_s": 2.0, "binds": binds, "mean": nothing | mean, "all": nothing | of_all}


def split(**slowest_by: Any) -> dict[str, Any]:
    return {"parts": list(COLUMNS), "mean": dict.fromkeys(COLUMNS, 0.0), "slowest": slowest_by}


QUEUED = of("queue_seats_s", {"queue_seats_s": 1.5, "prefill_s": 0.5}, {"queue_seats_s": 0.02, "prefill_s": 0.18})


def reader(**summary: Any) -> RunView:
    return RunView(summary_of(synthetic(200).summary | summary))


def test_every_part_has_words_in_the_order_of_a_requests_life() -> None:
    assert tuple(PARTS) == COLUMNS


def test_the_sentence_names_the_constraint_the_time_and_a_remedy() -> None:
    assert why_slow(reader(time_split=split(ttft_s=QUEUED)), "ttft_s") == (
        "The slowest 1% by TTFT (40 requests, ≥ 2.00 s) spend 1.50 of 2.00 s queueing for a slot (average: 20.0 ms). "
        "Raise max_num_seqs as far as KV and TPOT allow."
    )


def test_the_time_of_a_tpot_is_per_token_and_a_share_in_another_unit_has_its_own() -> None:
    slow = of("interference_s", {"interference_s": 0.5, "decode_s": 0.7}, {"interference_s": 0.002})
    assert why_slow(reader(time_split=split(tpot_s=slow)), "tpot_s") == (
        "The slowest 1% by TPOT (40 requests, ≥ 2.00 s) lose 500 ms of 1.20 s/token to other requests' prefills "
        "(average: 2.00 ms). Lower max_num_batched_tokens, or disaggregate prefill."
    )


@pytest.mark.parametrize(
    ("binds", "used", "remedy"),
    [
        ("prefill_s", {}, "Shorten prompts, or cache prefixes that they share."),
        ("prefill_s", {"prefix_cache": {"hit_frac": 0.4}}, "Shorten prompts."),
        ("decode_s", {"speculation": {"tokens_per_step": 1.8}}, "Use fewer slots to make steps shorter."),
        ("interference_s", {"scheduler": "chunked"}, "Lower long_prefill_token_threshold, or disaggregate prefill."),
        ("interference_s", {"role": "decode"}, "Lower max_num_batched_tokens."),
        ("recompute_s", {"host_tier": {"swaps": 0}}, ""),
    ],
)
def test_a_remedy_that_the_run_has_already_is_not_given(binds: str, used: dict[str, Any], remedy: str) -> None:
    pool = synthetic(200).summary["pools"][0]
    summary = {"pools": [pool | used]} if used.keys() & {"scheduler", "role"} else used
    text = why_slow(reader(time_split=split(tpot_s=of(binds, {binds: 1.0}, {binds: 0.1})), **summary), "tpot_s")
    assert text is not None
    assert text.partition(" (average: 100 ms).")[2].strip() == remedy


@pytest.mark.parametrize("knob", ["max_running_requests", "max_batch_size"])
def test_the_remedy_calls_knobs_as_the_scheduler_does(knob: str) -> None:
    pool = synthetic(200).summary["pools"][0] | {"slots_argument": knob}
    assert f"Raise {knob} as far" in (why_slow(reader(time_split=split(ttft_s=QUEUED), pools=[pool]), "ttft_s") or "")


@pytest.mark.parametrize("binds", COLUMNS)
@pytest.mark.parametrize("latency", ["ttft_s", "tpot_s", "e2e_s"])
def test_every_part_makes_a_whole_sentence(binds: str, latency: str) -> None:
    text = why_slow(reader(time_split=split(**{latency: of(binds, {binds: 1.0}, {binds: 0.1})})), latency)
    assert text is not None
    assert re.fullmatch(
        r"The slowest 1% by \S+ \(.*\) (spend|lose) 1\.00 of 1\.00 s.* \(average: 100 ms\)\. [A-Z][^{}]+\.", text
    )


def test_nothing_is_said_where_nothing_sets_them_apart_or_was_split() -> None:
    assert why_slow(reader(time_split=split(ttft_s=of(None, {}, {}))), "ttft_s") is None
    assert why_slow(reader(time_split=None), "ttft_s") is None
    assert why_slow(reader(time_split=split(tpot_s=None)), "tpot_s") is None
    assert slowest(reader(time_split=None)) == []


def test_the_terminal_hears_of_the_goal_that_is_missed_most_and_only_when_one_is() -> None:
    requests = {"arrived": 12_000, "finished": 12_000, "rejected": 0, "timed_out": 0, "unfinished": 0}
    slow = split(ttft_s=QUEUED, tpot_s=of("decode_s", {"decode_s": 0.1}, {"decode_s": 0.01}))

    def text(frac: float, ttft: float, tpot: float) -> str:
        attained = {"frac": frac, "low_frac": frac - 0.001, "high_frac": frac + 0.001}
        by_slo = {"ttft_s": ttft, "tpot_s": tpot}
        line = reader(requests=requests, time_split=slow, slo_attainment=attained | {"by_slo": by_slo})
        return terminal_sentence(line) or ""

    assert text(0.9, 0.9, 0.95).startswith("The slowest 1% by TTFT")
    assert text(0.9, 0.95, 0.9).startswith("The slowest 1% by TPOT")
    assert text(0.9905, 0.999, 0.9905).startswith("The slowest 1% by TPOT")  # 0.9895 to 0.9915: close to 0.99
    assert text(0.999, 0.999, 1.0) == ""


def test_the_page_draws_each_part_to_scale_and_lists_it() -> None:
    page = render(synthetic(200, time_split=split(ttft_s=QUEUED)))
    section = re.search(r'<section id="slowest">.*?</section>', page, re.S)
    assert section
    widths = re.findall(r'style="width:([\d.]+)%;opacity:[\d.]+" title="([^"]+)"', section[0])
    assert widths == [  # of 2 s, the longer of the two bars
        ("1.000", "Queue: slots: 20.0 ms"),
        ("9.000", "Prefill: 180 ms"),
        ("75.000", "Queue: slots: 1.50 s"),
        ("25.000", "Prefill: 500 ms"),
    ]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', section[0])
    assert [(name, re.findall("<td>(.*?)</td>", cells)) for name, cells in rows] == [
        ("Queue: slots", ["20.0\u00a0ms", "1.50\u00a0s"]),
        ("Prefill", ["180\u00a0ms", "500\u00a0ms"]),
        ("Total", ["200\u00a0ms", "2.00\u00a0s"]),
    ]


def test_a_page_of_a_run_whose_time_nobody_split_has_no_such_section() -> None:
    assert '<section id="slowest">' not in render(synthetic(200))


def test_the_page_says_what_would_help_once() -> None:
    page = render(synthetic(200, time_split=split(ttft_s=QUEUED, e2e_s=QUEUED)))
    sentences = re.findall(r"<li>(The slowest.*?)</li>", page)
    assert ["Raise max_num_seqs" in sentence for sentence in sentences] == [True, False]
