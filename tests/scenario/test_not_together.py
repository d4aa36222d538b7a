"""Mechanisms that nobody has put together yet say so, rather than give wrong numbers."""

from typing import Any

import pytest

from simserve import Scenario, simulate
from simserve.errors import ScenarioError, TraceError

LENGTHS = {"kind": "fixed", "prompt_tokens": 64, "output_tokens": 8}
WORKLOAD: dict[str, Any] = {"arrivals": {"kind": "poisson", "rate_per_s": 8}, "lengths": LENGTHS, "n_requests": 20}
TURNS = {"kind": "conversations", "turns": 3, "think_s": 1.0, "next_turn": "after_answer"}


def scenario(workload: dict[str, Any], **pool: Any) -> Scenario:
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": WORKLOAD | workload}
    return Scenario.from_dict(data | {"cluster": {"pools": [pool]}, "measure": {"replays": 0}})


def test_host_memory_where_requests_pass_each_other() -> None:
    with pytest.raises(ScenarioError, match="host_tier: a host tier with a scheduling order other than fcfs"):
        scenario({}, scheduler={"kind": "chunked", "policy": "priority"}, host_tier={"bytes": 1e9})


def test_clients_that_give_up_and_host_memory() -> None:
    with pytest.raises(ScenarioError, match=r"workload\.timeout: client timeouts with a host"):
        scenario({"timeout": {"e2e_s": 10}}, host_tier={"bytes": 1e9})


NGRAM = {"kind": "ngram", "tokens": 3, "acceptance": 0.5}


@pytest.mark.parametrize(
    ("workload", "pool", "rule"),
    [
        ({"timeout": {"e2e_s": 10}}, {}, r"workload\.timeout: client timeouts in pools that speculate"),
        ({}, {"host_tier": {"bytes": 1e9}}, "speculation: a host tier in a pool that speculates"),
        ({}, {"scheduler": {"kind": "chunked", "policy": "priority"}}, "policy: orders other than fcfs in"),
    ],
)
def test_pools_that_speculate(workload: dict[str, Any], pool: dict[str, Any], rule: str) -> None:
    with pytest.raises(ScenarioError, match=rule):
        scenario(workload, speculation=NGRAM, **pool)


APART = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]
PUSH = {"bytes_per_s": 50e9, "how": "push"}


@pytest.mark.parametrize(
    ("cluster", "workload", "rule"),
    [
        ({"kv_link": PUSH}, {"timeout": {"e2e_s": 10}}, r"workload\.timeout: client timeouts with KV push"),
        (
            {"disaggregate": {"kind": "prompt_length", "min_prompt_tokens": 9}},
            {"timeout": {"e2e_s": 10}},
            "timeouts with KV push",
        ),
        (
            {"kv_link": PUSH, "pools": [APART[0] | {"scheduler": {"kind": "chunked", "policy": "priority"}}, APART[1]]},
            {},
            "orders other than fcfs in a prefill pool with KV push",
        ),
        (
            {"kv_link": PUSH, "pools": [APART[0] | {"host_tier": {"bytes": 1e9}}, APART[1]]},
            {},
            "a host tier in a prefill pool with KV push",
        ),
    ],
)
def test_pools_that_push(cluster: dict[str, Any], workload: dict[str, Any], rule: str) -> None:
    data = {"schema": "simserve/1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": WORKLOAD | workload}
    with pytest.raises(ScenarioError, match=rule):
        Scenario.from_dict(data | {"cluster": {"pools": APART} | cluster, "measure": {"replays": 0}})


@pytest.mark.parametrize("key", ["timeout", "retries"])
def test_clients_that_give_up_or_ask_again_and_turns_that_follow_answers(key: str) -> None:
    given = {"timeout": {"e2e_s": 10}} | ({"retries": {"max_attempts": 2}} if key == "retries" else {})
    with pytest.raises(
        TraceError,
        match=rf"workload\.{key}: timeouts and retries of requests that others wait for are not supported yet",
    ):
        simulate(scenario({"prefixes": TURNS} | given))


def test_jobs_and_turns_that_follow_answers() -> None:
    with pytest.raises(TraceError, match=r"workload\.batch: must not be combined with requests that wait for answers"):
        simulate(scenario({"prefixes": TURNS, "batch": {"n_requests": 5, "lengths": LENGTHS}}))
