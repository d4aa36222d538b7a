"""Attempts, what came of them in the end, and what was computed for nobody."""

from typing import Any

import numpy as np
import pytest

from simserve import Results, Scenario, simulate
from simserve.metrics.sessions import retries, wasted
from simserve.metrics.window import Window
from simserve.tables.columns import Categorical, Columns
from tests.metrics.stories import STATUS

BUSY: dict[str, Any] = {
    "schema": "simserve/1",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cluster": {
        "admission": {"kind": "queue_length", "max_outstanding": 40},
        "pools": [{"replicas": 2, "scheduler": {"kind": "chunked", "max_num_seqs": 16}}],
    },
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 50},
        "lengths": {"kind": "lognormal", "prompt_tokens": {"median": 500}, "output_tokens": {"median": 100}},
        "n_requests": 400,
        "timeout": {"ttft_s": 1, "e2e_s": 3},
        "retries": {"max_attempts": 3},
    },
    "slo": {"e2e_s": 2},
}
for _key in ("prompt_tokens", "output_tokens"):
    BUSY["workload"]["lengths"][_key] |= {"sigma": 0.5, "max": 4096}


def attempts(*progress: tuple[float, float, int, str]) -> Columns:
    """(first sent, sent, attempt, status) of each; who finished did so two seconds after it sent."""
    first_s, sent_s, number, status = (np.array(column) for column in zip(*progress, strict=True))
    codes = np.array([STATUS.index(each) for each in status], np.int32)
    return {
        "arrival_s": sent_s,
        "first_sent_s": first_s,
        "attempt": number,
        "finish_s": np.where(status == "finished", sent_s + 2, np.nan),
        "status": Categorical(codes, STATUS),
        "slo_met": status == "finished",
    }


def test_users_are_counted_once_and_wait_from_their_first_attempt_on() -> None:
    # One is answered at once, one at the third attempt, which is sent after the window, one never. The first was sent
    # before the window, and so is its second attempt, whenever it came.
    requests = attempts(
        (0.0, 0.0, 1, "rejected"),
        (1.0, 1.0, 1, "finished"),
        (2.0, 2.0, 1, "timed_out"),
        (3.0, 3.0, 1, "rejected"),
        (0.0, 3.5, 2, "finished"),
        (2.0, 4.0, 2, "timed_out"),
        (3.0, 5.0, 2, "rejected"),
        (2.0, 9.0, 3, "finished"),
    )
    has = (requests["arrival_s"] >= 1) & (requests["arrival_s"] <= 5)
    result = retries(requests, Window(1.0, 5.0, 4.0, "last arrival", has))
    assert (result.requests, result.attempts, result.succeeded) == (3, 6, 2)
    assert (result.attempts_per_request, result.retry_frac) == (2, 0.5)
    assert result.succeeded_frac == result.slo_met_frac == pytest.approx(2 / 3)
    assert result.e2e_s.mean == (2 + 9) / 2


def test_users_count_by_their_first_attempt_at_the_ends_of_the_window_too() -> None:
    """Two users' first attempts are at the ends of the window; a third's is at its start, left out by rank."""
    requests = attempts(
        (1.0, 1.0, 1, "rejected"),
        (1.0, 1.0, 1, "finished"),
        (5.0, 5.0, 1, "rejected"),
        (1.0, 2.0, 2, "finished"),
        (5.0, 6.0, 2, "finished"),
    )
    window = Window(1.0, 5.0, 4.0, "last arrival", np.array([True, False, True, True, False]))
    result = retries(requests, window)
    assert (result.requests, result.attempts, result.succeeded, result.slo_met_frac) == (2, 4, 2, 1.0)
    assert result.e2e_s.n == 2
    assert retries(requests | {"slo_met": None}, window).slo_met_frac is None


def test_without_requests_there_are_no_shares() -> None:
    requests = attempts((0.0, 0.0, 1, "finished"))
    result = retries(requests, Window(1.0, 5.0, 4.0, "last arrival", np.zeros(1, np.bool_)))
    assert (result.requests, result.attempts_per_request, result.succeeded_frac) == (0, None, None)


def test_tokens_for_nobody_are_a_share_of_all_that_steps_computed() -> None:
    """A prompt of 60, ten steps of four tokens and 25 more that were proposed and accepted."""
    steps = {
        "prefill_tokens": np.array([60, 0]),
        "decode_requests": np.array([0, 4]),
        "n_steps": np.array([1, 10]),
        "accepted_tokens": np.array([0, 25]),
    }
    assert wasted({"wasted_tokens": np.array([0, 25])}, steps).facts() == {"tokens": 25, "frac": 0.2}
    nothing = {name: column[:0] for name, column in steps.items()}
    assert wasted({"wasted_tokens": np.array([0])}, nothing).facts() == {"tokens": 0, "frac": 0.0}


@pytest.fixture(scope="module")
def busy() -> Results:
    return simulate(Scenario.from_dict(BUSY))


def test_every_attempt_ends_in_exactly_one_way_and_follows_the_one_before(busy: Results) -> None:
    requests = busy.requests
    assert set(requests["status"]) == {"finished", "rejected", "timed_out"}
    assert requests["arrival_s"].is_monotonic_increasing
    by_id = requests.groupby("request_id")
    assert (by_id["attempt"].apply(list).map(lambda result: result == list(range(1, len(result) + 1)))).all()
    assert (by_id["status"].apply(lambda each: (each == "finished").sum()) <= 1).all()
    assert (by_id["first_sent_s"].first() == by_id["arrival_s"].first()).all()
    again = requests[requests["attempt"] > 1]
    assert len(again) > 20
    for column in ("prompt_tokens", "output_tokens"):
        assert (by_id[column].nunique() == 1).all()


def test_all_tokens_were_computed_for_somebody_or_for_nobody(busy: Results) -> None:
    requests, steps = busy.requests, busy.steps
    computed = steps["prefill_tokens"].sum() + (steps["decode_requests"] * steps["n_steps"]).sum()
    finished = requests[requests["status"] == "finished"]
    for_somebody = finished["prompt_tokens"] + finished["output_tokens"] - 1
    for_somebody += finished["n_recomputed_tokens"] - finished["cached_tokens"]
    assert computed == for_somebody.sum() + requests["wasted_tokens"].sum()
    assert requests["wasted_tokens"].sum() == busy.summary["wasted"]["tokens"] > 0
    assert (requests[requests["status"] != "timed_out"]["wasted_tokens"] == 0).all()


def test_a_client_has_no_answer_after_it_gave_up_and_none_later_than_it_waits(busy: Results) -> None:
    requests = busy.requests
    gave_up = requests[requests["status"] == "timed_out"]
    assert gave_up["finish_s"].isna().all() and not gave_up["gave_up_s"].isna().any()
    assert set((gave_up["gave_up_s"] - gave_up["arrival_s"]).round(9)) == {1.0, 3.0}
    assert requests["ttft_s"].max() <= 1
    assert requests["e2e_s"].max() <= 3


def test_the_window_ends_with_the_load(busy: Results) -> None:
    requests = busy.requests
    assert busy.summary["window"]["end_s"] == requests[requests["attempt"] == 1]["arrival_s"].max()
    assert busy.summary["retries"]["requests"] == 400
    assert busy.summary["retries"]["attempts"] == len(requests)


def test_spans_are_those_of_their_rows(busy: Results) -> None:
    spans = busy.spans.merge(busy.requests, left_on="request_id", right_index=True)
    assert (spans["join_s"] >= spans["scheduled_s"]).all()
    assert (spans["replica_x"] == spans["replica_y"]).all()
    tokens = (2 + busy.spans["last_step"] - busy.spans["first_step"]).groupby(busy.spans["request_id"]).sum()
    finished = busy.requests[busy.requests["status"] == "finished"]
    assert (tokens[finished.index] == finished["output_tokens"]).all()


def test_who_gave_up_runs_no_longer(busy: Results) -> None:
    last = busy.timeseries.groupby("replica").last()
    assert (last["running"] <= 1).all()
