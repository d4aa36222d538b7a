"""The headline says decision, number, cause and next step."""

import subprocess
import sys
from typing import Any

import pytest

from simserve.metrics.answer import queue_over
from simserve.metrics.figures import Summary
from simserve.metrics.summary_schema import Queue
from simserve.report.cautions import cautions
from simserve.report.headline import headline
from simserve.report.percentiles import how_sure, terminal_table
from simserve.report.run_view import RunView
from tests.report.synthetic import synthetic
from tests.summaries import summary_of


def summary(**keys: Any) -> Summary:
    return summary_of(synthetic(200).summary | keys)


def attained(frac: float, low: float, high: float, **met_by_slo: float) -> dict[str, Any]:
    return {"frac": frac, "low_frac": low, "high_frac": high, "by_slo": met_by_slo}


def latency_rows(summary: Summary) -> list[tuple[str, ...]]:
    """The table of the terminal, with its heads."""
    table = terminal_table(RunView(summary))
    return [tuple(table.heads), *((row.name, *row.cells) for row in table.rows)]


def percentiles(p50: float, p99: float) -> dict[str, float]:
    return {"p50": p50, "p90": p50, "p95": p99, "p99": p99, "p99.9": p99}


REQUESTS = {"arrived": 12_000, "finished": 12_000, "rejected": 0, "timed_out": 0, "unfinished": 0}


MEETS = {
    "word": "meets",
    "probability": 0.9999,
    "probability_by_noise": 1.0,
    "r": 0.701,
    "r_noise": [0.66, 0.75],
    "r_total": [0.54, 0.9],
    "r_by_limit": {"ttft_s": 0.7, "tpot_s": 0.4},
    "first_limit": "ttft_s",
    "slo_class": None,
    "edge_by": None,
    "break_even": 1.4286,
    "goal": 0.99,
    "attained_frac": 0.996,
    "n_missed": 48,
    "n_requests": 12_000,
    "n_runs": 8,
    "n_draws": 8,
    "why": "",
}


def decided(word: str, **changes: Any) -> str:
    decision = MEETS | {"word": word} | changes
    return headline(summary(requests=REQUESTS, goodput={"per_s": 19.52, "per_gpu_s": 9.76}, decision=decision))


def test_a_met_slo_says_by_how_much_what_fails_first_and_when() -> None:
    assert decided("meets") == (
        "Meets the SLO: the p99 of latency/limit is 0.70 (95% CI 0.66–0.75; with cost error 0.54–0.90), P >97%. "
        "TTFT fails first, at 1.43 times the simulated. 99.6% of 12,000 requests in 8 runs meet TTFT ≤ 500 ms and "
        "TPOT ≤ 50 ms. Goodput is 19.5 req/s on 2 GPUs."
    )


def test_rare_misses_are_counted_rather_than_given_as_a_share_of_nearly_all() -> None:
    text = decided("meets", n_missed=2, n_requests=100_000, n_runs=1, n_draws=0)
    assert "(95% CI 0.66–0.75), P" in text
    assert "Of 100,000 requests, 2 in 100,000 miss TTFT ≤ 500 ms and TPOT ≤ 50 ms." in text
    assert "Of 12,000 requests in 8 runs, none misses TTFT" in decided("meets", n_missed=0)
    assert "Of 1,000,000 requests in 8 runs, 1 misses TTFT" in decided("meets", n_missed=1, n_requests=10**6)


def test_what_no_run_can_decide_asks_for_a_log_and_names_the_break_even() -> None:
    text = decided("likely_meets", probability=0.75, edge_by="cost", break_even=1.8)
    assert text.startswith("Likely meets the SLO: the p99 of latency/limit is 0.70 (")
    assert ", P 75%. " in text
    assert text.endswith(
        ". Cost error decides: the SLO holds while your server's TTFT is at most 1.8 times the simulated. "
        "Calibrate with a log: simserve calibrate --logs LOG --scenario SCENARIO --out DIR."
    )


def test_cost_error_decides_even_where_no_single_limit_has_a_break_even() -> None:
    text = decided("edge", probability=0.5, edge_by="cost", break_even=None)
    assert text.endswith(
        ". Cost error decides. Calibrate with a log: simserve calibrate --logs LOG --scenario SCENARIO --out DIR."
    )


def test_an_edge_says_what_decides_it_and_asks_for_capacity_only_where_the_estimate_misses() -> None:
    noise = "Sampling noise decides after 8 runs: raise --budget-runs, or make the run longer."
    assert decided("edge", probability=0.6, edge_by="noise").endswith(noise)
    few = "Few independent bursts decide: make the run longer, or add capacity."
    assert decided("likely_misses", edge_by="load", r=1.1, n_runs=1).endswith(few)


def test_latencies_beyond_sixteen_times_a_limit_are_not_told_apart() -> None:
    text = decided("misses", probability=0.0, r=16.0, r_noise=[16.0, 16.0], r_total=[16.0, 16.0])
    assert text.startswith("Misses the SLO: the p99 of latency/limit is above 16, P <3%. ")
    assert "is 12.00 (95% CI 9.00–>16;" in decided("misses", r=12.0, r_noise=[9.0, 16.0])


def test_a_summary_of_an_earlier_version_still_has_its_word_and_its_interval() -> None:
    text = headline(summary(requests=REQUESTS, slo_attainment=attained(0.996, 0.994, 0.998)))
    assert text.startswith("Meets the SLO: The goal is 99%. 99.6% (95% CI 99.4–99.8%) of 12,000 requests meet TTFT")


def test_whole_answers_are_blamed_for_a_late_first_token() -> None:
    pool = synthetic(200).summary["pools"][0] | {"streamed": False}
    missed = attained(0.1, 0.09, 0.11, ttft_s=0.1, tpot_s=1.0)
    sentence = headline(summary(requests=REQUESTS, pools=[pool], slo_attainment=missed))
    assert "answers leave whole with their batch. Take a continuous or chunked scheduler" in sentence


def test_a_missed_slo_names_what_fails_and_that_it_waits_in_the_queue() -> None:
    missed = attained(0.93, 0.92, 0.94, ttft_s=0.93, tpot_s=0.999)
    sentence = headline(
        summary(requests=REQUESTS, slo_attainment=missed, ttft_s=percentiles(0.1, 2.31), queue_s=percentiles(0.01, 2.1))
    )
    assert sentence == (
        "Misses the SLO: The goal is 99%. 93.0% (95% CI 92.0–94.0%) of 12,000 requests meet TTFT ≤ 500 ms and TPOT ≤ "
        "50 ms. TTFT fails most (p99 2.31 s, limit 500 ms), mostly in the queue. Add replicas, "
        "lower the rate or smooth the bursts."
    )


def test_a_slow_prefill_is_not_blamed_on_the_queue() -> None:
    missed = attained(0.93, 0.92, 0.94, ttft_s=0.93, tpot_s=0.999)
    sentence = headline(
        summary(requests=REQUESTS, slo_attainment=missed, ttft_s=percentiles(0.1, 2.31), queue_s=percentiles(0.01, 0.2))
    )
    assert "mostly in the prefill itself. Raise tensor parallelism" in sentence


def test_slow_decoding_is_told_from_preemption() -> None:
    missed = {"requests": REQUESTS, "slo_attainment": attained(0.9, 0.89, 0.91, ttft_s=0.99, tpot_s=0.9)}
    assert "decode steps are long. Lower max_num_batched_tokens" in headline(summary(**missed))
    preempted = {"n": 900, "requests_frac": 0.075}
    assert "7.5% of requests preempted for lack of KV" in headline(summary(**missed, preemptions=preempted))


def test_requests_without_an_answer_are_blamed_first() -> None:
    lost = REQUESTS | {"finished": 11_000, "rejected": 1000}
    sentence = headline(summary(requests=lost, slo_attainment=attained(0.91, 0.9, 0.92)))
    assert sentence.endswith(" ms. 1,000 requests got no full answer. Read status_reason in requests.parquet first.")


@pytest.mark.parametrize(
    ("fate", "reason", "remedy"),
    [
        ("rejected", "refused: the queue is full", "let cluster.admission take more"),
        ("rejected", "prompt leaves no room for a token within max_model_len", "Shorten the prompts"),
        ("timed_out", "no whole answer within 15 s", "refuse what cannot be answered in time (cluster.admission)"),
        ("unfinished", "still there at drain_limit_s after the last arrival", "raise workload.drain_limit_s"),
    ],
)
def test_the_reason_why_answers_are_lost_chooses_the_remedy(fate: str, reason: str, remedy: str) -> None:
    lost = REQUESTS | {"finished": 11_000, fate: 1000, "reasons": {reason: 1000}}
    sentence = headline(summary(requests=lost, slo_attainment=attained(0.91, 0.9, 0.92)))
    assert f"1,000 requests got no full answer (1,000 “{reason}”). " in sentence
    assert remedy in sentence


def test_where_clients_ask_again_attempts_are_counted_and_what_came_of_them_in_the_end() -> None:
    again = {"attempts_per_request": 1.5, "requests": 8000, "succeeded_frac": 0.9}
    sentence = headline(summary(requests=REQUESTS, slo_attainment=attained(0.91, 0.9, 0.92), retries=again))
    assert "of 12,000 attempts meet" in sentence
    assert sentence.endswith(". After retries, 90.0% of 8,000 requests were answered in the end.")


def test_a_queue_at_some_replicas_alone_is_blamed_on_the_routing() -> None:
    late = {"ttft_s": percentiles(0.1, 2.31), "queue_s": percentiles(0.01, 2.1), "e2e_s": {"p99": 9, "mean": 8.0}}
    missed = attained(0.93, 0.92, 0.94, ttft_s=0.93, tpot_s=0.999)
    base = {"requests": REQUESTS, "slo_attainment": missed, "requests_per_s": 20.0, **late}
    assert "Take another router" in headline(summary(**base, routing={"outstanding_std": 40.0}))
    assert "Add replicas, lower the rate" in headline(summary(**base, routing={"outstanding_std": 9.0}))


def test_without_an_slo_the_verdict_gives_the_latencies_and_how_to_set_one() -> None:
    sentence = headline(summary(requests=REQUESTS, slo=None, slo_attainment=None, requests_per_s=20.13))
    assert sentence.startswith("No SLO to meet: 12,000 of 12,000 requests finished, 20.1 req/s, with a p99 TTFT of ")
    assert "{ttft_s: 0.5, tpot_s: 0.05}" in sentence


def test_when_nothing_finished_the_fates_are_counted() -> None:
    nobody = {"arrived": 512, "finished": 0, "rejected": 500, "timed_out": 0, "unfinished": 12}
    sentence = headline(summary(requests=nobody))
    assert sentence == (
        "Nothing finished: none of 512 requests in the window was answered in full (500 rejected and 12 unfinished). "
        "See status_reason in requests.parquet, then shorten the prompts or give the cluster more KV memory."
    )


def test_when_admission_lets_nobody_in_that_is_said() -> None:
    nobody = {"arrived": 500, "finished": 0, "rejected": 500, "timed_out": 0, "unfinished": 0}
    sentence = headline(summary(requests=nobody | {"reasons": {"refused: the queue is full": 500}}))
    assert sentence.startswith(
        "Nothing finished: none of 500 requests in the window was answered in full (500 “refused: "
    )
    assert sentence.endswith("let cluster.admission take more.")


def test_an_empty_window_is_said_to_be_empty() -> None:
    nobody = dict.fromkeys(REQUESTS, 0)
    assert headline(summary(requests=nobody)).startswith("Nothing was measured: no request arrived after the warm-up.")


def test_a_saturated_run_says_what_it_can_serve_and_how_many_replicas_the_load_needs() -> None:
    sentence = headline(
        summary(
            requests=REQUESTS,
            slo_attainment=attained(0.2, 0.1, 0.3),
            trust={"saturated": True},
            offered_per_s=31.2,
            served_per_s=24.0,
        )
    )
    assert sentence.startswith("Saturated: 31.2 requests/s arrived and 24.0 were served, so the queue grew")
    assert sentence.endswith("Stay below 24.0 requests/s or use about 3 replicas instead of 2.")


def handing_over(binds: str | None) -> dict[str, Any]:
    return {
        "binds": binds,
        "p99": 0.02,
        "link_busy_frac": 0.1,
        "mean_wait_s": {"prefill": 0.1, "link": 0.0, "decode": 0.0},
    }


@pytest.mark.parametrize(
    ("binds", "remedy"),
    [
        ("prefill", "or add prefill replicas."),
        ("decode", "or add decode replicas."),
        ("link", "or raise kv_link.bytes_per_s."),
    ],
)
def test_a_saturated_pair_of_pools_says_which_side_to_raise(binds: str, remedy: str) -> None:
    load = {"offered_per_s": 31.2, "served_per_s": 24.0, "trust": {"saturated": True}}
    sentence = headline(
        summary(requests=REQUESTS, slo_attainment=attained(0.2, 0.1, 0.3), transfer=handing_over(binds), **load)
    )
    assert sentence.endswith(f"Stay below 24.0 requests/s {remedy}")


@pytest.mark.parametrize(
    ("binds", "cause"),
    [
        ("decode", "mostly waiting for slots and KV of decode replicas. Add decode replicas"),
        ("link", "mostly waiting for the link. Raise kv_link.bytes_per_s"),
        ("prefill", "because decode steps are long"),
        (None, "because decode steps are long"),
    ],
)
def test_a_late_answer_is_blamed_on_what_held_it_up_between_the_pools(binds: str | None, cause: str) -> None:
    met = attained(0.8, 0.78, 0.82, ttft_s=1.0, tpot_s=0.8)
    sentence = headline(summary(requests=REQUESTS, slo_attainment=met, transfer=handing_over(binds)))
    assert cause in sentence


def test_a_late_first_token_of_such_a_pair_asks_for_prefill_replicas() -> None:
    late = {"ttft_s": percentiles(0.2, 2.0), "queue_s": percentiles(0.1, 1.8)}
    met = attained(0.8, 0.78, 0.82, ttft_s=0.8, tpot_s=1.0)
    sentence = headline(summary(requests=REQUESTS, slo_attainment=met, transfer=handing_over("prefill"), **late))
    assert "mostly in the queue. Add prefill replicas" in sentence
    behind = headline(summary(requests=REQUESTS, slo_attainment=met, transfer=handing_over("decode"), **late))
    assert "Add decode replicas" in behind and "prefill" not in behind


@pytest.mark.parametrize("trust", [{"saturated": True}, {"saturated": False}])
@pytest.mark.parametrize("n_requests", [0, 1, 50])
def test_every_verdict_is_one_line_that_ends_in_a_full_stop(trust: dict[str, bool], n_requests: int) -> None:
    sentence = headline(synthetic(n_requests, trust=trust).figures)
    assert sentence.endswith(".")
    assert "\n" not in sentence and "None" not in sentence and "nan" not in sentence


def test_the_terminal_table_names_its_columns_and_ends_in_the_goals() -> None:
    table = latency_rows(summary(ttft_s=percentiles(0.082, 2.31)))
    assert table[0] == ("", "p50", "p90", "p95", "p99", "p99.9", "SLO")
    assert table[1] == ("TTFT", "82.0 ms", "82.0 ms", "2.31 s", "~2.31 s", "~2.31 s", "500 ms")  # of 190 requests
    assert [row[0] for row in table[1:]] == ["TTFT", "TPOT", "ITL", "E2E", "Queue"]
    assert table[3][-1] == "–"


def test_where_a_percentile_lies_stands_below_it() -> None:
    ends = {"mean": [0.1, 0.2], "p50": [0.0801, 0.0842], "p90": [0.079, 1.234], "p95": [1.9, None], "p99": None}
    table = latency_rows(summary(ttft_s=percentiles(0.082, 2.31) | {"intervals": ends | {"p99.9": None}}))
    assert table[2] == ("95%", "80.1–84.2 ms", "0.079–1.23 s", "≥ 1.90 s", "–", "–")
    assert table[3][0] == "TPOT"


def test_below_the_table_stands_what_its_marks_mean() -> None:
    sentence = how_sure(RunView(summary()))
    assert sentence == "~: a guess, with fewer requests than 1,000 for a p99 and 10,000 for a p99.9."
    assert how_sure(RunView(summary(requests=REQUESTS))) == ""
    known: dict[str, Any] = {"ttft_s": percentiles(0.1, 0.2) | {"intervals": {"p50": [0.09, 0.11]}}}
    sentence = "95% rows are confidence intervals (sampling noise only)."
    assert how_sure(RunView(summary(requests=REQUESTS, **known))) == sentence
    known = {"ttft_s": percentiles(0.1, 0.2) | {"intervals": {"p50": [0.09, None]}}}
    above = "≥: the run is too short for an upper bound."
    assert how_sure(RunView(summary(requests=REQUESTS, **known))) == f"{sentence} {above}"


def test_at_capacity_the_square_root_of_time_is_named() -> None:
    at_capacity = {"saturated": False, "steady": "critical"}
    sentence = headline(summary(requests=REQUESTS, trust=at_capacity, offered_per_s=24.0, served_per_s=23.6))
    assert sentence.startswith(
        "At capacity: 24.0 requests/s arrived and 23.6 were served, but the queue hardly ever emptied."
    )
    assert "the square root of time" in sentence
    assert sentence.endswith("Stay well below 23.6 requests/s or use about 3 replicas instead of 2.")


def test_a_run_too_short_to_tell_whether_the_queue_is_steady_says_so() -> None:
    short = {"saturated": False, "steady": "undetermined"}
    missed = attained(0.93, 0.92, 0.94, ttft_s=0.93, tpot_s=0.999)
    sentence = headline(summary(requests=REQUESTS, trust=short, slo_attainment=missed))
    assert sentence.endswith(" The run is too short to tell whether the queue is steady.")
    assert "too short" not in headline(summary(requests=REQUESTS, slo_attainment=missed))


ANSWER = {
    "decision": "missed",
    "attained_frac": 0.97,
    "low_frac": 0.96,
    "high_frac": 0.98,
    "goal_frac": 0.99,
    "n_runs": 4,
    "n_requests": 48_000,
    "basis": "replications",
    "slo_class": None,
    "load_off_frac": None,
    "queue": "steady",
    "is_far_below": False,
    "by_slo": {"ttft_s": 0.97},
}

LOAD = {"kind": "requests", "nominal_per_s": 14.4, "drawn_per_s": 12.24, "off_frac": -0.15}


def test_an_answer_at_the_nominal_load_names_it_and_whose_load_the_latencies_are_of() -> None:
    result = summary(requests=REQUESTS, load=LOAD, answer=ANSWER | {"basis": "replays", "load_off_frac": 0.0})
    assert "of 12,000 requests meet TTFT ≤ 500 ms and TPOT ≤ 50 ms at the nominal 14.4 req/s. " in headline(result)
    load = "Latencies are those of the drawn load: 12.2 req/s, 15% below the nominal 14.4 req/s."
    assert how_sure(RunView(result)) == load


WITH_REPLICATIONS = {
    "n": 4,
    "seeds": [3, 4, 5, 6],
    "n_requests": 48_000,
    "states": {"steady": 4},
    "measures": {
        "slo_attainment.frac": {"mean": 0.97, "low": 0.96, "high": 0.98},
        "ttft_s.p99": {"mean": 0.3, "low": 0.2, "high": None},
        "ttft_s.p50": {"mean": 0.05, "low": 0.04, "high": 0.06},
    },
}


def test_over_replications_means_and_their_intervals_are_told() -> None:
    one_run = {"requests": REQUESTS, "slo_attainment": attained(0.999, 0.998, 1.0, ttft_s=0.97)}
    result = summary(**one_run, replications=WITH_REPLICATIONS, answer=ANSWER)
    assert "97.0% (95% CI 96.0–98.0%) of 12,000 requests meet " in headline(result)
    assert "TTFT fails most (3.0% of requests over 4 runs), " in headline(result)
    table = latency_rows(result)
    assert (table[1][1], table[1][4]) == ("50.0 ms", "300 ms")
    assert (table[2][1], table[2][4]) == ("40.0–60.0 ms", "≥ 200 ms")
    assert how_sure(RunView(result)).startswith("Figures are means over 4 runs (seeds 3 to 6). 95% rows are ")


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ({"steady": 6, "growing": 4}, "steady"),
        ({"steady": 5, "growing": 5}, "steady"),
        ({"growing": 6, "steady": 4}, "growing"),
        ({"growing": 3, "critical": 3, "steady": 4}, "critical"),
        ({"undetermined": 6, "steady": 4}, "undetermined"),
    ],
)
def test_the_queue_is_called_what_it_is_in_most_runs(states: dict[Queue, int], state: Queue) -> None:
    assert queue_over((state for state, n in states.items() for _ in range(n))) == state
    known = {"replications": WITH_REPLICATIONS | {"n": 10, "states": states}, "slo": None}
    reader = RunView(summary(requests=REQUESTS, **known))
    assert reader.queue_state == state


def test_classes_are_those_of_the_first_run() -> None:
    chat = {"requests": REQUESTS, "slo_attainment": attained(0.5, 0.4, 0.6), "slo": {"ttft_s": 0.5}}
    reader = RunView(summary(classes={"chat": chat}, replications=WITH_REPLICATIONS))
    assert reader.classes["chat"].attainment == 0.5


def test_without_goals_the_terminal_table_has_no_column_for_them() -> None:
    assert {len(row) for row in latency_rows(summary(slo=None))} == {6}


def test_what_to_trust_gives_the_runs_warnings_first_as_sentences() -> None:
    result = cautions(
        RunView(summary(warnings=["step costs of engine vllm are uncalibrated"], notes=["3 rows sorted"]))
    )
    assert result[:2] == ["Step costs of engine vllm are uncalibrated.", "3 rows sorted."]
    assert [caution.split(",")[0] for caution in result[2:]] == [
        "Until costs are calibrated",
        "KV capacity of serve is computed",
    ]


def test_kv_is_not_called_unverified_twice() -> None:
    result = cautions(RunView(summary(trust={"kv_limit_is_a_guess": True})))
    assert not [caution for caution in result if "computed, not verified" in caution]


def test_the_data_sheets_latencies_are_a_lower_bound() -> None:
    pool = synthetic(200).summary["pools"][0] | {"engine": "ideal"}
    assert cautions(RunView(summary(pools=[pool])))[0].startswith("Take these latencies as a lower bound")


def test_an_attainment_without_an_interval_is_said_to_have_none() -> None:
    result = cautions(RunView(summary(slo_attainment={"frac": 1.0})))
    assert result[-1] == "The attainment has no interval: the window has too few requests."


def test_a_run_that_can_be_trusted_has_no_cautions() -> None:
    pool = synthetic(200).summary["pools"][0] | {"calibrated": True, "kv_verified": True}
    assert cautions(RunView(summary(requests=REQUESTS, pools=[pool]))) == []


def test_the_verdict_needs_neither_plotly_nor_pandas() -> None:
    code = "import sys, simserve.report.headline; print({'plotly', 'pandas', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
