"""vllm_bench.json: keys and definitions of `vllm bench serve`, against its own way of counting."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simserve
from simserve.metrics.decode_rows import decode_rows
from simserve.metrics.results import Results
from simserve.metrics.vllm_bench import max_output_tokens_per_s, most_in_a_second
from tests.effort import examples
from tests.metrics.stories import Life, S, Teller, in_pieces, random_story, run_facts, tables

KEYS = {
    "model_id",
    "num_prompts",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
} | {
    f"{what}_{name}_ms"
    for what in ("mean", "median", "std", "p50", "p90", "p95", "p99", "p99.9")
    for name in ("ttft", "tpot", "itl", "e2el")
}


def two_requests() -> tuple[list[Life], Teller]:
    """Sent at 1 s and 2 s: tokens of the first at 3, 4, 6 and of the second at 4."""
    lives = [Life(1 * S, 3, prompt_tokens=100), Life(2 * S, 1, prompt_tokens=50)]
    teller = Teller(lives, now_ps=2 * S)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.start(1)
    teller.row(1 * S, joins=(1,))
    teller.row(2 * S)
    return lives, teller


def test_the_keys_are_exactly_vllms() -> None:
    lives, teller = two_requests()
    run = tables(lives, [teller])
    assert Results.from_run(run, run_facts(run), "").vllm_bench.keys() == KEYS


@pytest.mark.parametrize(
    ("workload", "labels"),
    [
        ({"arrivals": {"kind": "poisson", "rate_per_s": 8}}, (8.0, 1.0, None)),
        ({"arrivals": {"kind": "gamma", "rate_per_s": 8, "burstiness": 0.5}}, (8.0, 0.5, None)),
        ({"arrivals": {"kind": "vllm_bench", "rate_per_s": math.inf}}, ("inf", 1.0, None)),
        ({"arrivals": {"kind": "constant", "rate_per_s": 8}}, (8.0, None, None)),
        ({"arrivals": {"kind": "mmpp", "rates_per_s": [4, 8], "mean_dwell_s": [1, 1]}}, (None, None, None)),
        ({"client": {"kind": "closed_loop", "concurrency": 4}}, ("inf", None, 4)),
    ],
)
def test_the_labels_are_those_of_a_benchmark_of_the_same_load(
    workload: dict[str, Any], labels: tuple[float | str | None, ...]
) -> None:
    load = {"lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 3}, "n_requests": 20}
    bench = simserve.run(
        {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "cluster": {"pools": [{}]}}
        | {"workload": {**workload, **load}}
    ).vllm_bench
    assert (bench["model_id"], bench["num_prompts"]) == ("llama-3.1-8b", 20)
    assert tuple(bench[key] for key in ("request_rate", "burstiness", "max_concurrency")) == labels


def test_the_scalars_are_those_worked_by_hand() -> None:
    lives, teller = two_requests()
    run = tables(lives, [teller])
    slo = {"ttft_s": 2.0, "tpot_s": 1.0}
    bench = Results.from_run(run, run_facts(run, slo=slo), "").vllm_bench
    assert bench["duration"] == 5.0  # from the first send at 1 s to the last finish at 6 s
    assert (bench["completed"], bench["failed"]) == (2, 0)
    assert (bench["total_input_tokens"], bench["total_output_tokens"]) == (150, 4)
    assert bench["request_throughput"] == pytest.approx(2 / 5)
    assert bench["output_throughput"] == pytest.approx(4 / 5)
    assert bench["total_token_throughput"] == pytest.approx(154 / 5)
    assert bench["request_goodput"] == pytest.approx(1 / 5)  # the first has a TPOT of 1.5 s, the second counts as 0
    assert bench["mean_ttft_ms"] == 2000.0
    assert bench["mean_tpot_ms"] == 1500.0  # the request of one token is left out
    assert (bench["mean_itl_ms"], bench["median_itl_ms"], bench["std_itl_ms"]) == (1500.0, 1500.0, 500.0)
    assert bench["mean_e2el_ms"] == 3500.0
    assert bench["p90_e2el_ms"] == pytest.approx(4700.0)
    assert bench["max_output_tokens_per_s"] == 2.0  # at 4 s: seconds 3 to 4 after the first send
    assert bench["max_concurrent_requests"] == 2


def test_goodput_is_null_without_goals_and_knows_only_vllms_three() -> None:
    lives, teller = two_requests()
    run = tables(lives, [teller])
    assert Results.from_run(run, run_facts(run), "").vllm_bench["request_goodput"] is None
    assert Results.from_run(run, run_facts(run, slo={"itl_s": 1.0}), "").vllm_bench["request_goodput"] is None
    both = run_facts(run, slo={"itl_s": 0.1, "e2e_s": 2.0})
    assert Results.from_run(run, both, "").vllm_bench["request_goodput"] == pytest.approx(1 / 5)


def test_whoever_did_not_finish_has_failed_and_is_in_no_latency() -> None:
    lives, teller = two_requests()
    lives.append(Life(3 * S, 5, status="rejected"))
    run = tables(lives, [teller])
    bench = Results.from_run(run, run_facts(run), "").vllm_bench
    assert (bench["completed"], bench["failed"], bench["total_input_tokens"]) == (2, 1, 150)


def test_when_nothing_is_completed_all_is_zero_as_in_vllm() -> None:
    lives = [Life(1 * S, 5, status="rejected")]
    run = tables(lives, [Teller(lives)])
    bench = Results.from_run(run, run_facts(run), "").vllm_bench
    assert {key: value for key, value in bench.items() if value and key != "model_id"} == {
        "failed": 1,
        "num_prompts": 1,
    }


def test_a_request_counts_in_every_second_that_it_touches() -> None:
    assert most_in_a_second(np.array([5.0, 6.1, 6.5]), np.array([6.0, 6.2, 6.9])) == 3
    assert most_in_a_second(np.array([5.0, 6.1, 7.5]), np.array([5.9, 6.2, 7.6])) == 1
    assert most_in_a_second(np.array([]), np.array([])) == 0


@settings(max_examples=examples(60))
@given(st.integers(0, 10**9), st.booleans())
@in_pieces()
def test_the_busiest_second_is_that_of_every_token_put_into_its_second(seed: int, whole: bool) -> None:
    lives, run = random_story(seed)
    completed = run.requests["status"].is_("finished")
    rows = decode_rows(run.steps, run.spans)
    answers_whole = completed & whole
    result = max_output_tokens_per_s(run.requests, rows, run.spans, completed, answers_whole)
    done = [life for life in lives if life.status == "finished"]
    if not done:
        assert result == 0.0
        return
    origin_ps = min(life.arrival_ps for life in done)
    tokens = [(life.token_ps[-1] if whole else at_ps) for life in done for at_ps in life.token_ps]
    counts = np.bincount([(at_ps - origin_ps) // S for at_ps in tokens])
    assert result == counts.max()


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 5_000)), min_size=1, max_size=30))
def test_the_most_in_one_second_is_that_of_putting_every_request_into_each_of_its_seconds(
    requests_ms: list[tuple[int, int]],
) -> None:
    start_s = np.array([start / 1000 for start, _ in requests_ms])
    end_s = np.array([(start + length) / 1000 for start, length in requests_ms])
    present = [0] * 30
    for first, last in zip(start_s - start_s.min(), end_s - start_s.min(), strict=True):
        for second in range(int(first), int(last) + 1):
            present[second] += 1
    assert most_in_a_second(start_s, end_s) == max(present)


@pytest.mark.parametrize(("first_ps", "growth_ps", "n"), [(S // 10, S // 100, 50), (S // 4, -S // 100, 22)])
def test_a_stretch_of_many_steps_is_counted_second_by_second(first_ps: int, growth_ps: int, n: int) -> None:
    """Steps of 0.1, 0.11, 0.12, ... s: more of them end in the first second than in any other; or of 0.25, 0.24, ..."""
    lives = [Life(0, n + 1)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1, joins=(0,))
    teller.row(first_ps, growth_ps, n)
    run = tables(lives, [teller])
    everyone = np.array([True])
    rows = decode_rows(run.steps, run.spans)
    result = max_output_tokens_per_s(run.requests, rows, run.spans, everyone, ~everyone)
    seconds = [math.floor(at_ps / S) for at_ps in lives[0].token_ps]
    assert result == max(seconds.count(second) for second in seconds)


def test_a_token_at_the_turn_of_a_second_belongs_to_the_second_that_begins() -> None:
    """Tokens at 1, 1.25, ... 3 s: four in each of the seconds 1 and 2, one in 3."""
    lives = [Life(0, 9)]
    teller = Teller(lives)
    teller.start(0)
    teller.row(1 * S, joins=(0,))
    teller.row(S // 4, n=8)
    run = tables(lives, [teller])
    assert Results.from_run(run, run_facts(run), "").vllm_bench["max_output_tokens_per_s"] == 4.0
