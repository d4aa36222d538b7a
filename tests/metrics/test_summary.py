"""summary.json: every number worked by hand on a small run, and what it says about trust."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.goodput import reasons, served
from simserve.metrics.results import Results
from simserve.metrics.window import Window
from simserve.tables.columns import Categorical
from simserve.tables.facts import PoolFacts
from tests.metrics.stories import STATUS, Life, S, Teller, pool_facts, run_facts, tables


def three_requests() -> tuple[list[Life], Teller]:
    """Arrivals at 0, 2 and 4 s; one answer of three tokens, one of two after a preemption, one refusal."""
    lives = [
        Life(0, 3, prompt_tokens=100),
        Life(2 * S, 2, prompt_tokens=50),
        Life(4 * S, 7, prompt_tokens=9, status="rejected"),
    ]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, prefill_tokens=100, joins=(0,))
    teller.row(1 * S)
    teller.start(1)
    teller.row(1 * S, prefill_tokens=50, joins=(1,))  # the third token of request 0, the first of request 1
    teller.preempt(1)
    teller.row(2 * S, prefill_tokens=51, joins=(1,))
    return lives, teller


def summarized(**changes: Any) -> dict[str, Any]:
    lives, teller = three_requests()
    run = tables(lives, [teller])
    return Results.from_run(run, run_facts(run, **changes), "").summary


def steady(
    n: int = 1200, status: str = "finished", pools: tuple[PoolFacts, ...] = (), **changes: Any
) -> dict[str, Any]:
    """n requests a second apart, each answered with one token within 0.1 s."""
    lives = [Life(i * S, 1) for i in range(n)]
    teller = Teller(lives)
    for i in range(n):
        teller.pause(i * S - teller.now_ps)
        teller.start(i)
        teller.row(S // 10, prefill_tokens=10, joins=(i,))
    for life in lives[:5]:
        life.status = status
    run = tables(lives, [teller])
    return Results.from_run(run, run_facts(run, pools=pools, **changes), "").summary


def test_counts_and_rates_are_those_worked_by_hand() -> None:
    result = summarized(end_s=5.0)
    ends = {"start_s": 0.0, "end_s": 4.0, "duration_s": 4.0, "ends_with": "last arrival"}
    assert result["window"] == ends | {"settled": None}
    assert result["requests"] == {
        "offered": 3,
        "arrived": 3,
        "finished": 2,
        "rejected": 1,
        "timed_out": 0,
        "failed": 0,
        "unfinished": 0,
        "reasons": {"too long": 1},
    }
    assert result["offered_per_s"] == 0.75
    assert result["requests_per_s"] == 0.5
    assert result["served_per_s"] == 0.25  # the second finishes at 5 s, past the window
    assert result["input_tokens_per_s"] == 37.5
    assert result["output_tokens_per_s"] == 1.25
    assert result["total_tokens_per_s"] == 38.75
    assert result["preemptions"] == {"n": 1, "requests": 1, "requests_frac": 1 / 3, "recomputed_tokens": 7}
    assert result["gpu_seconds"] == 5.0
    assert result["busy_frac"] == 1.0


def test_latencies_are_those_worked_by_hand() -> None:
    result = summarized()
    assert (result["ttft_s"]["n"], result["ttft_s"]["p50"], result["ttft_s"]["max"]) == (2, 1.0, 1.0)
    assert (result["tpot_s"]["mean"], result["tpot_s"]["max"]) == (1.5, 2.0)
    assert (result["itl_s"]["n"], result["itl_s"]["mean"]) == (3, pytest.approx(4 / 3))
    assert result["e2e_s"]["p50"] == 3.0
    assert result["queue_s"]["max"] == 0.0
    assert set(result["itl_s"]) == {"n", "mean", "std", "p50", "p90", "p95", "p99", "p99.9", "max", "intervals"}


def test_attainment_and_goodput_are_those_worked_by_hand() -> None:
    result = summarized(slo={"ttft_s": 1.0, "tpot_s": 1.5})
    attained = result["slo_attainment"]
    assert (attained["frac"], attained["of_admitted_frac"], attained["n_met"]) == (1 / 3, 0.5, 1)
    assert attained["low_frac"] is None  # too few for an interval
    assert attained["by_slo"] == {"ttft_s": 2 / 3, "tpot_s": 1 / 3}
    tokens = {"output_tokens_per_s": 0.75, "total_tokens_per_s": 25.75}  # of the first: 3 of the answer, 100 before
    assert result["goodput"] == pytest.approx({"per_s": 0.25, "per_gpu_s": 0.25, "per_usd": 250.0} | tokens)


def test_without_slo_there_is_neither_attainment_nor_goodput() -> None:
    result = summarized()
    assert (result["slo"], result["slo_attainment"], result["goodput"]) == ({}, None, None)


def test_kv_is_that_of_all_replicas_and_the_peak_that_of_the_fullest() -> None:
    pools = (pool_facts("a", 2, n_blocks=100), pool_facts("b", 1, n_blocks=200, block_size=32))
    result = summarized(pools=pools, peak_kv_blocks=(10, 90, 100))
    use = {"blocks": 400, "tokens": 200 * 16 + 200 * 32, "peak_blocks": 100, "peak_frac": 0.9}
    assert result["kv"] == use | {"reservation": None}


def test_the_run_is_identified() -> None:
    result = summarized()
    assert (result["schema"], result["name"], result["seed"], result["digest"]) == (
        "simserve/1",
        "story",
        0,
        "0123456789ab",
    )
    assert (result["simulated_s"], result["wall_s"]) == (5.0, 0.25)
    assert "work" not in result["pools"][0]


def test_a_long_run_on_firm_ground_has_nothing_to_warn_of() -> None:
    result = steady(slo={"ttft_s": 1.0})
    assert result["warnings"] == []
    assert result["trust"] == {
        "calibrated": True,
        "kv_verified": True,
        "kv_limit_is_a_guess": False,
        "n_requests": 1200,
        "n_enough_for_p99": True,
        "n_enough_for_p999": False,
        "saturated": False,
        "steady": "steady",
        "n_worth": 1200.0,  # nobody ever finds anybody there
        "backlog_by_thirds": [pytest.approx(0.1, abs=0.001)] * 3,
        "free_frac": 1.0,
        "interval_too_narrow": False,
    }


def test_fewer_than_a_thousand_requests_are_too_few_for_a_p99() -> None:
    result = steady(999)
    assert result["trust"]["n_enough_for_p99"] is False
    assert result["warnings"] == ["p99 of 999 requests is a guess; it needs at least 1,000"]


def test_all_alike_has_an_interval_of_no_width_where_enough_finished() -> None:
    result = steady()["ttft_s"]["intervals"]
    assert result["mean"] == [pytest.approx(0.1), pytest.approx(0.1)]
    assert result["p99"] == [pytest.approx(0.1), pytest.approx(0.1)]
    assert result["p99.9"] is None
    assert steady(999)["ttft_s"]["intervals"]["p99"] is None


def test_the_mean_gap_has_an_interval_and_percentiles_of_gaps_have_none() -> None:
    lives = [Life(i * 10 * S, 3) for i in range(100)]
    teller = Teller(lives)
    for i in range(100):
        teller.pause(i * 10 * S - teller.now_ps)
        teller.start(i)
        teller.row(S, prefill_tokens=10, joins=(i,))
        teller.row(S * (1 + i % 2))
        teller.row(S * (1 + i % 2))
    run = tables(lives, [teller])
    result = Results.from_run(run, run_facts(run), "").summary["itl_s"]
    low, high = result["intervals"]["mean"]
    assert result["mean"] == pytest.approx(1.5)
    assert 1.4 < low < 1.5 < high < 1.6
    assert result["intervals"]["p99"] is None


def test_estimated_kv_that_was_nearly_used_up_is_warned_of() -> None:
    for peak, is_guess in ((90, False), (91, True)):
        pools = (pool_facts(kv_verified=False),)
        result = steady(pools=pools, peak_kv_blocks=(peak,))
        assert result["trust"]["kv_limit_is_a_guess"] is is_guess
        assert any("num_gpu_blocks" in warning for warning in result["warnings"]) is is_guess
    verified = steady(peak_kv_blocks=(100,))
    assert verified["trust"]["kv_limit_is_a_guess"] is False


def test_misses_are_said_to_be_left_out_of_latencies() -> None:
    result = steady(status="unfinished")
    assert result["ttft_s"]["n"] == 1195
    assert any(warning.startswith("latencies are those of the 1,195 requests") for warning in result["warnings"])


def test_the_engines_own_warnings_and_notes_are_kept() -> None:
    result = steady(warnings=("costs are uncalibrated",), notes=("3 rows were sorted",))
    assert (result["warnings"], result["notes"]) == (["costs are uncalibrated"], ["3 rows were sorted"])


def test_a_warm_up_that_leaves_nothing_is_said_so_and_gives_nulls() -> None:
    result = summarized(measure={"warmup_s": 99.0}, slo={"ttft_s": 1.0})
    assert result["requests"]["arrived"] == 0
    assert (result["requests_per_s"], result["mfu"], result["ttft_s"]["p50"]) == (None, None, None)
    assert (result["slo_attainment"]["frac"], result["goodput"]["per_s"]) == (None, None)
    assert result["warnings"] == [
        "no request arrived in the measured window; shorten measure.warmup_s or offer more requests"
    ]


def test_all_at_once_divides_by_the_time_to_the_last_answer_and_says_so() -> None:
    lives = [Life(0, 1), Life(0, 1)]
    teller = Teller(lives)
    teller.start(0, 1)
    teller.row(4 * S, joins=(0, 1))
    run = tables(lives, [teller])
    result = Results.from_run(run, run_facts(run), "").summary
    assert result["window"]["ends_with"] == "last finish"
    assert result["requests_per_s"] == 0.5
    assert any("sent at one instant" in warning for warning in result["warnings"])


def test_a_backlog_that_only_grows_is_saturation() -> None:
    lives = [Life(i * S // 2, 1) for i in range(300)]
    teller = Teller(lives)
    for i in range(300):
        teller.start(i)
        teller.row(1 * S, joins=(i,))
    run = tables(lives, [teller])
    result = Results.from_run(run, run_facts(run), "").summary
    assert result["trust"]["saturated"] is True
    assert result["served_per_s"] == pytest.approx(1.0, abs=0.01)
    assert result["offered_per_s"] == pytest.approx(2.0, abs=0.01)
    assert any("backlog grew" in warning for warning in result["warnings"])


def test_no_number_is_nan() -> None:
    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [number for member in value.values() for number in numbers(member)]
        return [value] if isinstance(value, float) else []

    for result in (summarized(), summarized(measure={"warmup_s": 99.0}), steady(slo={"itl_s": 0.1})):
        assert np.isfinite(numbers(result)).all()


def test_what_arrived_in_the_warm_up_is_in_no_rate_but_is_served() -> None:
    result = summarized(measure={"warmup_s": 1.0})  # request 0 came before and finishes at 3 s
    assert result["window"]["duration_s"] == 3.0
    assert result["offered_per_s"] == pytest.approx(2 / 3)
    assert result["requests_per_s"] == pytest.approx(1 / 3)
    assert result["input_tokens_per_s"] == pytest.approx(50 / 3)
    assert result["output_tokens_per_s"] == pytest.approx(2 / 3)
    assert result["served_per_s"] == pytest.approx(1 / 3)
    assert result["ttft_s"]["n"] == 1


def test_only_the_three_most_frequent_reasons_are_named() -> None:
    codes = np.repeat(np.arange(6, dtype=np.int32), [9, 1, 3, 2, 4, 7])
    status = Categorical(np.array([2] * 20 + [1] * 6, np.int32), STATUS)  # who finished has no reason
    requests = {"status": status, "status_reason": Categorical(codes, ("", "a", "b", "c", "d", "e"))}
    has = np.ones(26, np.bool_)
    assert reasons(requests, Window(0.0, 1.0, 1.0, "last arrival", has)) == {"d": 4, "b": 3, "c": 2}
    has[:15] = False  # four of d and one of e are left
    assert reasons(requests, Window(0.0, 1.0, 1.0, "last arrival", has)) == {"d": 4, "e": 1}


def test_what_finishes_at_the_ends_of_the_window_is_served_within_it() -> None:
    finish_s = np.array([0.9, 1.0, 4.0, 4.1, 2.0])
    status = Categorical(np.array([1, 1, 1, 1, 2], np.int32), STATUS)
    window = Window(1.0, 3.5, 3.0, "last finish", np.zeros(5, np.bool_))
    assert served({"status": status, "finish_s": finish_s}, window).tolist() == [False, True, True, False, False]
