"""Which pools keep prefixes: as given, else as the engine, where pool and policy can."""

from collections.abc import Callable

import numpy as np
import pytest

from simserve.metrics.results import Results
from simserve.scenario import Scenario
from simserve.simulation import simulate

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]
POOL = "cluster.pools.0"
APART = "cluster={pools: [{name: p, role: prefill}, {name: d, role: decode}]}"


@pytest.mark.parametrize(("engine", "caches"), [("vllm", True), ("sglang", True), ("trtllm", False), ("ideal", False)])
def test_left_out_it_is_as_the_engine_has_it(load: Load, small: str, engine: str, caches: bool) -> None:
    scenario = load(small, f"engine={engine}")
    assert scenario.setups[0].caches_prefixes is caches
    assert load(scenario.to_yaml()) == scenario


def test_what_is_given_counts(load: Load, small: str) -> None:
    assert not load(small, f"{POOL}.enable_prefix_caching=false").setups[0].caches_prefixes
    assert load(small, "engine=ideal", f"{POOL}.enable_prefix_caching=true").setups[0].caches_prefixes


def test_prefill_pools_keep_prefixes_and_decode_pools_do_not(load: Load, small: str) -> None:
    assert [setup.caches_prefixes for setup in load(small, APART).setups] == [True, False]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{POOL}.scheduler=continuous"], "this policy reserves whole requests, so prefixes are not shared there"),
        ([f"{POOL}.scheduler=static"], "this policy reserves whole requests, so prefixes are not shared there"),
    ],
)
def test_policies_that_hold_blocks_whole_cannot(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    (problem,) = messages_of(small, *overrides, f"{POOL}.enable_prefix_caching=true")
    assert message in problem


def test_a_decode_pool_cannot(messages_of: MessagesOf, small: str) -> None:
    (problem,) = messages_of(small, APART, "cluster.pools.1.enable_prefix_caching=true")
    assert "decode pools receive whole prompts, so prefixes are not shared there" in problem


def chats(load: Load, small: str, *overrides: str) -> Results:
    prefixes = "workload.prefixes={kind: shared, n_prefixes: 3, prefix_tokens: 320, block_tokens: 32}"
    return simulate(load(small, prefixes, *overrides))


def test_a_run_finds_what_its_prompts_share(load: Load, small: str) -> None:
    with_cache, without = chats(load, small), chats(load, small, f"{POOL}.enable_prefix_caching=false")
    requests = with_cache.columns["requests"]
    assert set(requests["cached_tokens"].tolist()) == {0, 320}
    assert np.count_nonzero(requests["cached_tokens"] == 0) >= 3  # the first of each, and who came with it
    result = with_cache.summary["prefix_cache"]
    assert result["hit_tokens"] == requests["cached_tokens"].sum()
    assert result["hit_frac"] == pytest.approx(result["hit_tokens"] / (100 * (512 + 320)))
    assert without.summary["prefix_cache"] == {"hit_tokens": 0, "hit_frac": 0.0, "requests_frac": 0.0}
    computed, whole = (float(run.columns["steps"]["prefill_tokens"].sum()) for run in (with_cache, without))
    assert whole - computed == result["hit_tokens"]
    assert with_cache.summary["ttft_s"]["mean"] < without.summary["ttft_s"]["mean"]


def test_a_prefix_is_shared_in_blocks_of_the_engine_of_any_size(load: Load, small: str) -> None:
    results = chats(load, small, f"{POOL}.block_size=48")
    assert set(results.columns["requests"]["cached_tokens"].tolist()) == {0, 288}  # six whole ones of 320 tokens
