"""Prefill and decode pools in a scenario: what goes together, and what does not."""

from collections.abc import Callable

import pytest

from simserve.cost.comm import NIC_LATENCY_S
from simserve.routers.least_kv import LeastKv
from simserve.routers.round_robin import RoundRobin
from simserve.scenario import Scenario
from simserve.splitters.mixed import Mixed
from simserve.splitters.prompt_length import PromptLength

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

POOLS = """\
cluster:
  pools:
    - {name: prefill, role: prefill, replicas: 2, parallel: {tensor: 2}}
    - {name: decode, role: decode}
"""


MIXED = "cluster.disaggregate={kind: mixed, max_prefill_waiting: 4, max_decode_kv_frac: 0.9}"


def test_without_a_link_the_slower_sides_network_adapters_carry_keys_and_values(load: Load, small: str) -> None:
    scenario = load(small + POOLS)
    link = scenario.cluster.kv_link
    assert link is not None
    assert (link.bytes_per_s, link.latency_s, link.shared) == (50e9, NIC_LATENCY_S, False)  # one GPU of the decode pool
    assert scenario.origins["cluster.kv_link.bytes_per_s"] == "network adapters of the GPUs"
    assert load(scenario.to_yaml()) == scenario
    both = (f"cluster.pools.{i}.parallel.pipeline=2" for i in (0, 1))
    link = load(small + POOLS, *both).cluster.kv_link
    assert link is not None and link.bytes_per_s == 100e9


def test_a_link_that_is_given_is_kept(load: Load, small: str) -> None:
    link = load(small + POOLS, "cluster.kv_link={bytes_per_s: 100e9, shared: true}").cluster.kv_link
    assert link is not None
    assert (link.bytes_per_s, link.latency_s, link.shared) == (100e9, 0.0, True)


def test_trtllm_takes_the_policy_that_roles_need_unless_one_is_given(load: Load, small: str) -> None:
    scenario = load(small + POOLS, "engine=trtllm")
    for index, pool in enumerate(scenario.cluster.pools):
        assert pool.scheduler is not None
        assert pool.scheduler["capacity_scheduler_policy"] == "max_utilization"
        origin = scenario.origins[f"cluster.pools.{index}.scheduler.capacity_scheduler_policy"]
        assert origin == f"role {pool.role}, which has no prompt with its answer"
    assert load(scenario.to_yaml()) == scenario
    (both,) = load(small, "engine=trtllm").cluster.pools
    assert both.scheduler is not None
    assert both.scheduler["capacity_scheduler_policy"] == "guaranteed_no_evict"


def test_decode_replicas_have_a_router_of_their_own(load: Load, small: str) -> None:
    assert isinstance(load(small + POOLS).build_decode_router(), RoundRobin)  # as for arrivals
    own = load(small + POOLS, "cluster.decode_router=least_kv")
    assert isinstance(own.build_decode_router(), LeastKv)
    assert isinstance(own.build_router(), RoundRobin)
    assert load(small).build_decode_router() is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["cluster.pools.1.role=prefill"],
            "cluster.pools.0.role: a prefill pool needs a decode pool, got 'prefill'; add one with role: decode, or "
            "use role: both",
        ),
        (
            ["cluster.pools.0.role=decode"],
            "cluster.pools.0.role=decode: a decode pool needs a prefill pool, got 'decode'; add one with role: "
            "prefill, or use role: both",
        ),
        (
            ["cluster.pools.1.model=llama-2-7b"],
            "must run the same model, as the KV cache of one serves the other, got 'llama-2-7b'; use llama-3.1-8b",
        ),
        (
            ["cluster.pools.1.scheduler=static"],
            "a decode pool exchanges requests one at a time, and static runs whole batches, got "
            "'static'; use chunked, prefill_first or sglang",
        ),
        (
            ["cluster.pools.0.scheduler={kind: trtllm, capacity_scheduler_policy: guaranteed_no_evict}"],
            "got 'trtllm'; use scheduler: {kind: trtllm, capacity_scheduler_policy: max_utilization}",
        ),
        (
            ["cluster.pools.0.scheduler=continuous"],
            "reserves blocks for both, got 'continuous'; use chunked or sglang",
        ),
        (["cluster.kv_link={bytes_per_s: 0}"], "bytes_per_s: must be at least"),
        (["cluster.kv_link={bytes_per_s: 50}"], "bytes_per_s: must be at least"),  # GB/s were meant
        (["cluster.kv_link={bytes_per_s: 50e9, latency_s: 1000}"], "latency_s: must be at most 10"),
        (
            ["cluster.kv_link={bytes_per_s: 50e9, transfer: by_layer}"],
            "transfer: a pull transfers the whole KV cache of a prompt after its prefill, got 'by_layer'; add "
            "how: push, or use transfer: whole",
        ),
        (["cluster.kv_link={bytes_per_s: 50e9, how: shove}"], "kv_link.how: must be one of pull or push"),
        (
            ["cluster.kv_link={bytes_per_s: 50e9, transfer: half}"],
            "kv_link.transfer: must be one of whole",
        ),
        (["cluster.disaggregate=alwasy"], "unknown splitter, got 'alwasy'; did you mean always?"),
        (["cluster.disaggregate=prompt_length"], "cluster.disaggregate.min_prompt_tokens: is missing"),
        (["cluster.disaggregate={kind: load, max_outstanding: 0}"], "max_outstanding: must be more than 0"),
        ([MIXED.replace("0.9", "1.5")], "max_decode_kv_frac: must be at most 1, got 1.5"),
        ([MIXED.replace("0.9", "0")], "max_decode_kv_frac: must be more than 0, got 0"),
        (["cluster.disaggregate=mixed"], "cluster.disaggregate.max_prefill_waiting: is missing"),
        (["cluster.decode_router=least_kw"], "unknown router, got 'least_kw'; did you mean least_kv?"),
    ],
)
def test_what_does_not_go_together_is_a_mistake(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    assert any(message in each for each in messages_of(small + POOLS, *overrides))


def test_nothing_follows_from_a_way_of_sending_that_is_misspelled(messages_of: MessagesOf, small: str) -> None:
    messages = messages_of(small + POOLS, "cluster.kv_link={bytes_per_s: 50e9, how: shove, transfer: by_layer}")
    assert len(messages) == 1
    assert "kv_link.how: must be one of pull or push, got 'shove'" in messages[0]


THIRD = POOLS + "    - {name: both}\n"


@pytest.mark.parametrize("overrides", [[], ["cluster.disaggregate=always"]])
def test_a_pool_that_nobody_would_be_sent_to_is_a_mistake(
    messages_of: MessagesOf, small: str, overrides: list[str]
) -> None:
    (message,) = messages_of(small + THIRD, *overrides)
    assert "cluster.pools.2.role: a role: both pool needs requests that are not disaggregated, and all are" in message
    assert "set cluster.disaggregate: {kind: prompt_length, min_prompt_tokens: 1000}" in message


def test_where_prefill_replicas_answer_nobody_would_be_sent_to_a_pool_of_both_roles(
    messages_of: MessagesOf, small: str
) -> None:
    (message,) = messages_of(small + THIRD, MIXED)
    assert ": never sends requests to a role: both pool" in message
    assert "leave pool both out, or use {kind: load, max_outstanding: 4}" in message


def test_a_pool_of_both_roles_may_stand_beside_others_when_some_requests_are_for_it(load: Load, small: str) -> None:
    scenario = load(small + THIRD, "cluster.disaggregate={kind: prompt_length, min_prompt_tokens: 1000}")
    assert scenario.build_splitter() == PromptLength(min_prompt_tokens=1000)
    assert load(scenario.to_yaml()) == scenario


def test_all_requests_are_disaggregated_unless_the_scenario_says_which(load: Load, small: str) -> None:
    scenario = load(small + POOLS)
    assert scenario.cluster.disaggregate == {"kind": "always"}
    assert scenario.origins["cluster.disaggregate"] == "default"
    assert scenario.build_splitter() is None
    loaded = load(small + POOLS, "cluster.disaggregate={kind: load, max_outstanding: 4}")
    assert load(small + POOLS, MIXED).build_splitter() == Mixed(max_prefill_waiting=4, max_decode_kv_frac=0.9)
    assert loaded.cluster.disaggregate == {"kind": "load", "max_outstanding": 4, "min_prompt_tokens": 1}


@pytest.mark.parametrize("key", ["kv_link={bytes_per_s: 50e9}", "decode_router=least_kv", "disaggregate=always"])
def test_without_roles_there_is_nothing_to_carry(messages_of: MessagesOf, small: str, key: str) -> None:
    (message,) = messages_of(small, f"cluster.{key}")
    assert "is for pools with role prefill and decode" in message


def test_a_model_that_fits_one_pool_only_is_a_mistake_of_the_other(messages_of: MessagesOf, small: str) -> None:
    (message,) = messages_of(small + POOLS, "model=llama-3.1-70b", "cluster.pools.0.parallel.tensor=4")
    assert "cluster.pools.1: llama-3.1-70b in bf16 does not fit the memory of 1 h100-sxm" in message
