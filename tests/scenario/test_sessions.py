"""Scenarios whose requests wait for answers: what they may say, and what comes of it in a run."""

from pathlib import Path

import numpy as np
import pytest

from simserve import load_results, simulate
from tests.scenario.conftest import Load, MessagesOf

USERS = ("workload.arrivals=", "workload.client={concurrency: 4, think_s: {mean: 2}}")
TALKS = "workload.prefixes={kind: conversations, turns: [1, 4], think_s: 1, next_turn: after_answer}"
AGENTS = "workload.prefixes={kind: agents, steps: [1, 4], tool_s: 1, fan_out_frac: 0.5}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["workload.prefixes={kind: conversations, turns: 2, think_s: 1, next_turn: answer}"],
            "next_turn: must be one of after_arrival or after_answer, got 'answer'; did you mean after_answer",
        ),
        (
            [*USERS, "workload.prefixes={kind: conversations, turns: 2, think_s: 1}"],
            "give next_turn: after_answer, or workload.arrivals in place of workload.client",
        ),
        (["workload.arrivals=", "workload.client={concurrency: 4, think_s: -1}"], "think_s: must be at least 0"),
        (
            ["workload.arrivals=", "workload.client={concurrency: 4, think_s: {mean: 2, sigma: 1}}"],
            "must have mean (exponential), or median, sigma and max (lognormal)",
        ),
        (["workload.prefixes={kind: agents, steps: 3}"], "workload.prefixes.tool_s: is missing"),
        (["workload.prefixes={kind: agents, steps: 3, tool_s: 1, fan_out: 0.1}"], "did you mean fan_out_frac?"),
        (
            ["workload.prefixes={kind: agents, steps: 3, tool_s: 1, fan_out_frac: 1.5}"],
            "fan_out_frac: must be at most 1, got 1.5",
        ),
        (
            ["workload.prefixes={kind: agents, steps: 3, tool_s: 1, fan_out_frac: 1, branches: 900, branch_calls: 9}"],
            "steps, branches and branch_calls must make at most 10000 calls, got 24303",
        ),
    ],
)
def test_what_cannot_be_is_said_with_its_place(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    (text,) = messages_of(small, *overrides)
    assert message in text


RECORDED = ("workload.arrivals=", "workload.lengths=", "workload.n_requests=", "workload.trace.path=t.csv")
AFTER = "workload.trace.next_turn=after_answer"
CLIENT = "workload.client={concurrency: 4}"
RATE = "workload.arrivals={kind: poisson, rate_per_s: 1}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([CLIENT], "has trace and client; leave out trace or client, or give trace.next_turn: after_answer"),
        ([RATE], "has arrivals and trace; leave out arrivals or trace, or give trace.next_turn: after_answer"),
        (
            [RATE, CLIENT, AFTER],
            "has arrivals and trace and client; leave out all of arrivals, trace and client but one",
        ),
        ([CLIENT, AFTER, "workload.lengths={kind: fixed, prompt_tokens: 9, output_tokens: 9}"], "its own lengths"),
        ([CLIENT, AFTER, TALKS], "a trace brings its own prefixes; leave it out"),
        (
            ["workload.trace.max_gap_s=10"],
            "max_gap_s=10: is for turns that follow answers, and these come at their own times, got 10; "
            "give next_turn: after_answer, or leave it out",
        ),
        (
            [RATE, AFTER, "workload.trace.start_frac=[0, 1]"],
            "start_frac=[0, 1]: is for the first sessions of users, and there are none, got [0.0, 1.0]; "
            "give workload.client, or leave it out",
        ),
        ([CLIENT, AFTER, "workload.trace.start_frac=[0.7, 0.2]"], "first bound must not be above the second, got [0.7"),
        ([CLIENT, AFTER, "workload.trace.start_frac=[0, 1.5]"], "start_frac.1: must be at most 1, got 1.5"),
        ([CLIENT, AFTER, "workload.trace.max_gap_s=0"], "max_gap_s=0: must be more than 0, got 0"),
        (
            [CLIENT, AFTER, "workload.trace.rate_scale=2"],
            "rate_scale=2: is for times of the trace, and others begin its sessions, got 2; leave it out; give more",
        ),
        ([RATE, AFTER, "workload.trace.spread=uniform"], "spread=uniform: is for times of the trace, and others begin"),
    ],
)
def test_rules_for_sessions_of_a_trace_are_told_with_their_place(
    messages_of: MessagesOf, small: str, tmp_path: Path, overrides: list[str], message: str
) -> None:
    (tmp_path / "t.csv").write_text("any")
    assert [text for text in messages_of(small, *RECORDED, *overrides) if message in text]


@pytest.mark.parametrize("prefixes", [TALKS, AGENTS])
@pytest.mark.parametrize("who", [(), USERS])
@pytest.mark.parametrize("end", [(), ("workload.n_requests=", "workload.duration_s=30")])
def test_sessions_are_told_of_and_read_back(
    load: Load, small: str, tmp_path: Path, prefixes: str, who: tuple[str, ...], end: tuple[str, ...]
) -> None:
    scenario = load(small, prefixes, *who, *end)
    results = simulate(scenario)
    result, requests = results.summary["sessions"], results.columns["requests"]
    assert result["n"] == len(np.unique(requests["session_id"])) == result["finished"] + result["cut"]
    assert result["finished"] > 1
    assert result["e2e_s"]["p50"] >= result["in_flight_s"]["p50"] > 0
    assert (np.diff(requests["arrival_s"]) >= 0).all()
    assert end or (len(requests["arrival_s"]), result["cut"]) == (100, 0)
    assert results.summary["prefix_cache"]["hit_tokens"] > 0
    again = simulate(load(scenario.to_yaml()))
    assert again.summary["digest"] == results.summary["digest"]
    assert again.columns["requests"]["finish_s"].tolist() == requests["finish_s"].tolist()
    results.write(tmp_path / "out")
    read = load_results(tmp_path / "out")
    assert read.columns["requests"]["session_requests"].tolist() == requests["session_requests"].tolist()
    joined = results.spans.merge(results.requests, on="request_id")
    assert len(joined) == len(results.spans)
    assert (joined["join_s"] <= joined["finish_s"]).all()
    assert (joined["join_s"] >= joined["arrival_s"]).all()


def test_where_nothing_waits_for_answers_there_are_no_sessions(load: Load, small: str) -> None:
    disaggregated = "workload.prefixes={kind: conversations, turns: 2, think_s: 1}"
    assert simulate(load(small, disaggregated)).summary["sessions"] is None
    alone = simulate(load(small, *USERS))
    assert alone.summary["sessions"] is None
    assert alone.columns["requests"]["session_requests"].tolist() == [1] * 100


def test_users_leave_time_to_think_between_their_requests(load: Load, small: str) -> None:
    one = simulate(load(small, "workload.arrivals=", "workload.client={concurrency: 1, think_s: 3}"))
    requests = one.columns["requests"]
    assert requests["arrival_s"][1:] - requests["finish_s"][:-1] == pytest.approx(np.full(99, 3.0), abs=1e-9)


def test_a_session_whose_prompt_outgrows_the_model_ends_there(load: Load, small: str) -> None:
    talks = "workload.prefixes={kind: conversations, turns: 9, think_s: 1, next_turn: after_answer}"
    results = simulate(load(small, talks, "cluster.pools.0.max_model_len=3000"))
    requests, result = results.columns["requests"], results.summary["sessions"]
    # Each turn adds 704 tokens: the fourth has 3 * 704 + 512 = 2624, the fifth's 3328 do not fit; four never come.
    assert requests["turn"].max() == 5
    assert requests["status"].is_("rejected").tolist() == (requests["turn"] == 5).tolist()
    assert (result["n"], result["refused"], result["finished"], result["cut"]) == (
        12,
        11,
        1,
        0,
    )  # the last has one turn, the 100th request


def test_the_requests_of_a_run_can_be_replayed_with_turns_after_their_answers(
    load: Load, small: str, tmp_path: Path
) -> None:
    first = simulate(load(small, TALKS, "cluster.pools.0.enable_prefix_caching=false"))
    first.write(tmp_path / "out")
    again = "workload={trace: {path: out/requests.parquet, next_turn: after_answer}}"
    second = simulate(load(small, again))
    assert second.summary["sessions"]["e2e_s"] == pytest.approx(first.summary["sessions"]["e2e_s"])
