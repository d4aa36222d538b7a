"""Mechanisms run together; test_combinations_page.py tries those that do not."""

from typing import Any

import pytest

from simserve import Scenario, simulate

LENGTHS = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
WORKLOAD: dict[str, Any] = {"arrivals": {"kind": "poisson", "rate_per_s": 8}, "lengths": LENGTHS, "n_requests": 20}
TURNS = {"kind": "conversations", "turns": 3, "think_s": 1.0, "next_turn": "after_answer"}
SHARED = {"kind": "shared", "n_prefixes": 2, "prefix_tokens": 32}
NGRAM = {"kind": "ngram", "tokens": 3, "acceptance": 0.5}
TIER = {"bytes": 1e10}
BY_PRIORITY = {"scheduler": {"kind": "chunked", "policy": "priority"}}
APART = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]
PUSH = {"kv_link": {"bytes_per_s": 50e9, "how": "push"}}
KEEPS = {"disaggregate": {"kind": "mixed", "max_prefill_waiting": 2, "max_decode_kv_frac": 0.5}}
TIMEOUT = {"timeout": {"e2e_s": 10}}


def scenario(workload: dict[str, Any], *pools: dict[str, Any], **cluster: Any) -> Scenario:
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": WORKLOAD | workload}
    return Scenario.from_dict(data | {"cluster": {"pools": [*pools]} | cluster, "measure": {"replays": 0}})


def separate(prefill: dict[str, Any], decode: dict[str, Any]) -> list[dict[str, Any]]:
    return [APART[0] | prefill, APART[1] | decode]


@pytest.mark.parametrize(
    ("workload", "pools", "cluster"),
    [
        (TIMEOUT, [{"host_tier": TIER} | BY_PRIORITY], {}),
        (TIMEOUT, [{"speculation": NGRAM, "host_tier": TIER} | BY_PRIORITY], {}),
        ({}, [{"speculation": NGRAM, "parallel": {"pipeline": 2}}], {}),
        (TIMEOUT, [{"speculation": NGRAM, "scheduler": {"kind": "chunked", "policy": "vtc"}, "host_tier": TIER}], {}),
        (TIMEOUT, [{"speculation": NGRAM, "scheduler": {"kind": "sglang", "enable_mixed_chunk": True}}], {}),
        (TIMEOUT, separate({"speculation": NGRAM}, {"speculation": NGRAM, "scheduler": {"kind": "sglang"}}), PUSH),
        (TIMEOUT, [{"host_tier": TIER, "parallel": {"pipeline": 2}}], {}),
        (TIMEOUT, separate({"speculation": NGRAM} | BY_PRIORITY, {"speculation": NGRAM, "host_tier": TIER}), {}),
        (TIMEOUT, separate({"enable_prefix_caching": True, "host_tier": TIER} | BY_PRIORITY, {}), PUSH),
        (TIMEOUT, separate({"speculation": NGRAM}, {"host_tier": TIER}), PUSH | KEEPS),
        (TIMEOUT, separate({"enable_prefix_caching": True}, {"enable_prefix_caching": True, "host_tier": TIER}), KEEPS),
        (TIMEOUT, separate(BY_PRIORITY, {}), KEEPS),
        (TIMEOUT, separate(BY_PRIORITY, {"host_tier": TIER, "speculation": NGRAM} | BY_PRIORITY), PUSH | KEEPS),
        (TIMEOUT, separate({}, {"scheduler": {"kind": "chunked", "policy": "vtc"}}), {}),
    ],
)
def test_mechanisms_that_run_together(
    workload: dict[str, Any], pools: list[dict[str, Any]], cluster: dict[str, Any]
) -> None:
    shared = {"prefixes": SHARED} if "enable_prefix_caching" in pools[0] else {}
    results = simulate(scenario(workload | shared, *pools, **cluster))
    assert results.columns["requests"]["status"].is_("finished").all()


@pytest.mark.parametrize("then", ["end_session", "next_turn"])
def test_clients_that_give_up_or_ask_again_and_turns_that_follow_answers(then: str) -> None:
    limits = {"timeout": {"e2e_s": 0.05, "then": then}, "retries": {"max_attempts": 2}}
    result = simulate(scenario({"prefixes": TURNS, **limits}, {}))
    requests = result.requests
    by_turn = requests.groupby(["session_id", "turn"])
    assert set(by_turn["attempt"].max()) == {2} and set(requests["status"]) == {"timed_out"}
    turns = requests.groupby("session_id")["turn"].nunique()
    assert (turns == (1 if then == "end_session" else requests.groupby("session_id")["session_requests"].first())).all()
    assert (turns.max() == 3) == (then == "next_turn")
    assert result.summary["sessions"]["refused"] == result.summary["sessions"]["n"] > 1


USERS = {"kind": "closed_loop", "concurrency": 4}
JOB = {"n_requests": 5, "lengths": LENGTHS, "at_s": 0.25, "over_s": 1}


@pytest.mark.parametrize("ends", [{"n_requests": 20}, {"n_requests": None, "duration_s": 60}])
@pytest.mark.parametrize(
    "load", [{"prefixes": TURNS}, {"prefixes": TURNS, "client": USERS}, {"client": USERS | {"think_s": 0.1}}]
)
def test_jobs_beside_turns_that_follow_answers_and_users(load: dict[str, Any], ends: dict[str, Any]) -> None:
    load = load | ends | ({"arrivals": None} if "client" in load else {})
    alone, beside = (simulate(scenario(load | more, {})).requests for more in ({}, {"batch": JOB}))
    is_job = beside["slo_class"] == "batch"
    assert beside[is_job]["arrival_s"].tolist() == [0.25, 0.45, 0.65, 0.85, 1.05]
    assert set(beside[is_job]["status"]) == {"finished"}
    if ends.get("n_requests"):
        assert len(beside[~is_job]) == len(alone)
    else:
        assert len(beside[~is_job]) > 200 and beside["arrival_s"].max() < 60
    if "prefixes" in load:
        assert beside[is_job][["session_id", "turn"]].isna().all(axis=None)
        assert set(beside[is_job]["session_requests"]) == {1}
        assert beside[~is_job][["session_id", "turn"]].notna().all(axis=None)
