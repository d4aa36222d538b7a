"""Host memory in a scenario: what it comes to, who uses it, and what does not go together."""

from collections.abc import Callable

import pytest

from simserve.explain.explain import explain
from simserve.scenario import Scenario

Load = Callable[..., Scenario]
MessagesOf = Callable[..., list[str]]

POOL = """\
cluster:
  pools:
    - name: serve
      host_tier: {bytes: 20e9}
"""


def test_without_a_speed_it_has_that_of_pcie_and_requests_are_swapped(load: Load, small: str) -> None:
    scenario = load(small + POOL, "cluster.pools.0.enable_prefix_caching=false")
    tier = scenario.cluster.pools[0].host_tier
    assert tier is not None
    assert (tier.bytes_per_s, tier.preemption, tier.offload_prefixes) == (64e9, "swap", False)
    assert scenario.origins["cluster.pools.0.host_tier.bytes_per_s"] == "gpu h100-sxm"
    assert load(scenario.to_yaml()) == scenario


def test_bytes_are_blocks_of_one_gpu_and_each_gpu_copies_its_own_part(load: Load, small: str) -> None:
    # Llama-3.1-8B: 32 layers x K and V x 8 heads x 128 x 2 bytes x 16 tokens = 2 MiB a block, half on each of two GPUs.
    one, two = (load(small + POOL, f"cluster.pools.0.parallel.tensor={n}").setups[0].host_tier for n in (1, 2))
    assert one is not None and two is not None
    assert (one.n_blocks, two.n_blocks) == (int(20e9 // 2**21), int(20e9 // 2**20))
    assert one.block_s == pytest.approx(2**21 / 64e9) and two.block_s == pytest.approx(2**20 / 64e9)


def test_prefixes_are_kept_where_the_pool_caches_them(load: Load, small: str) -> None:
    scenario = load(small + POOL, "cluster.pools.0.host_tier.disk={bytes: 1e12, bytes_per_s: 5e9}")
    result = scenario.setups[0].host_tier
    assert result is not None
    assert (result.swaps, result.offloads, result.disk_blocks) == (True, True, int(1e12 // 2**21))
    assert result.disk_block_s == pytest.approx(2**21 / 5e9)


def test_prefixes_are_read_while_others_go_on_unless_the_pool_says_otherwise(load: Load, small: str) -> None:
    for given, overlaps in ((), True), (["cluster.pools.0.host_tier.reads=blocking"], False):
        scenario = load(small + POOL, *given)
        tier = scenario.setups[0].host_tier
        assert tier is not None and tier.overlaps == overlaps
        assert load(scenario.to_yaml()) == scenario


SHARED = ["cluster.pools.0.host_tier={bytes: 20e9, scope: pool, disk: {bytes: 1e12, bytes_per_s: 5e9}}"]


def test_a_store_of_the_pool_holds_whole_blocks_of_prefixes_and_is_reached_over_each_link(
    load: Load, small: str
) -> None:
    # Of a block of 2 MiB each of two GPUs copies half over its own link, while the one disk writes all of it.
    scenario = load(small + POOL, *SHARED, "cluster.pools.0.parallel.tensor=2", "cluster.pools.0.replicas=4")
    tier, result = scenario.cluster.pools[0].host_tier, scenario.setups[0].host_tier
    assert tier is not None and result is not None
    assert (tier.preemption, result.swaps, result.offloads, result.store) == ("recompute", False, True, "serve")
    assert (result.n_blocks, result.disk_blocks) == (int(20e9 // 2**21), int(1e12 // 2**21))
    assert (result.block_s, result.disk_block_s) == pytest.approx((2**20 / 64e9, 2**21 / 5e9))
    assert load(scenario.to_yaml()) == scenario
    stages = load(small + POOL, *SHARED, "cluster.pools.0.parallel.pipeline=2").setups[0].host_tier
    assert stages is not None and stages.n_blocks == result.n_blocks


def test_a_store_on_several_nodes_is_reached_over_the_network_adapters(load: Load, small: str) -> None:
    scenario = load(small + POOL, *SHARED, "cluster.pools.0.replicas=9")
    tier = scenario.cluster.pools[0].host_tier
    assert tier is not None and tier.bytes_per_s == 50e9
    origin = scenario.origins["cluster.pools.0.host_tier.bytes_per_s"]
    assert origin == "network adapter of gpu h100-sxm, as the pool has several nodes"


def test_policies_that_preempt_nobody_swap_nobody(load: Load, messages_of: MessagesOf, small: str) -> None:
    message = "this policy reserves all blocks at admission, so it never preempts"
    for requested in ([], ["cluster.pools.0.host_tier.preemption=recompute"]):
        (none,) = messages_of(small + POOL, "cluster.pools.0.scheduler=continuous", *requested)
        assert "nothing would use host memory" in none
    both = messages_of(small + POOL, "cluster.pools.0.scheduler=static", "cluster.pools.0.host_tier.preemption=swap")
    assert any(message in each and "leave it out" in each for each in both)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["host_tier.bytes=20"],
            ": must hold a block of 16 tokens, 2097152 bytes of each GPU, got 20; give bytes",
        ),
        (["host_tier.bytes=0"], ": must be more than 0, got 0"),
        (["host_tier.bytes_per_s=50"], ": must be at least"),  # GB/s were meant
        (["host_tier.preemption=drop"], ": must be one of swap or recompute, got 'drop'"),
        (["host_tier.size=3"], ": unknown key"),
        (
            ["host_tier.offload_prefixes=true", "enable_prefix_caching=false"],
            ": this pool caches no prefixes, got true; set enable_prefix_caching: true",
        ),
        (
            ["host_tier.preemption=recompute", "host_tier.offload_prefixes=false"],
            "host_tier: nothing would use host memory: requests are not swapped and prefixes are not offloaded",
        ),
        (
            ["host_tier.disk={bytes: 1e12, bytes_per_s: 5e9}", "host_tier.offload_prefixes=false"],
            ": is for prefixes, and none are offloaded; leave it out",
        ),
        (["host_tier.reads=later"], ": must be one of overlap or blocking, got 'later'"),
        (
            ["host_tier.reads=blocking", "host_tier.offload_prefixes=false"],
            "host_tier.reads=blocking: is for prefixes, and none are offloaded; leave it out",
        ),
        (["host_tier.disk={bytes: 1, bytes_per_s: 5e9}"], ": must hold a block of 16 tokens"),
        (["host_tier={bytes: 2e6, scope: pool}"], "a block of 16 tokens, 2097152 bytes of all its GPUs, got"),
        (["host_tier.scope=node"], ": must be one of replica or pool, got 'node'"),
        (
            ["host_tier={bytes: 20e9, scope: pool, preemption: swap}"],
            "a swapped request is of use to its own replica only, got 'swap'; leave it out, or use scope: replica",
        ),
        (
            ["host_tier={bytes: 20e9, scope: pool}", "enable_prefix_caching=false"],
            "nothing would use host memory: requests are not swapped and prefixes are not offloaded; set "
            "enable_prefix_caching: true, or leave it out",
        ),
        (["parallel.pipeline=2", "host_tier.bytes=2e6"], ": must hold a block of 16 tokens for each lane"),
        (["swap_space=4"], ": unknown key; use cluster.pools.0.host_tier.bytes"),
    ],
)
def test_what_does_not_go_together_is_a_mistake(
    messages_of: MessagesOf, small: str, overrides: list[str], message: str
) -> None:
    text = messages_of(small + POOL, *(f"cluster.pools.0.{each}" for each in overrides))
    assert any(message in each for each in text), text


def test_each_rank_that_steps_with_others_has_the_host_memory_of_its_gpus(load: Load, small: str) -> None:
    sharing = ["model=qwen3-30b-a3b", "cluster.pools.0.parallel.data=2", "cluster.pools.0.parallel.expert=2"]
    (setup,) = load(small + POOL, *sharing).setups
    assert setup.n_sharing == 2
    assert setup.host_tier is not None
    assert setup.host_tier.n_blocks == int(20e9 // setup.ledger.block_bytes)


def test_lanes_of_a_pipeline_share_the_host_memory_of_its_gpus(load: Load, small: str) -> None:
    # Each of two stages holds half of a block of 2 MiB, and each of two lanes half of these blocks.
    (setup,) = load(small + POOL, "cluster.pools.0.parallel.pipeline=2").setups
    assert setup.host_tier is not None
    assert setup.host_tier.n_blocks == int(20e9 // 2**20) // 2
    assert setup.host_tier.block_s == pytest.approx(2**20 / 64e9)


APART = """\
cluster:
  pools:
    - {name: prefill, role: prefill}
    - {name: decode, role: decode}
"""


def test_prefill_pools_keep_prefixes_there_and_decode_pools_swap_too(
    load: Load, messages_of: MessagesOf, small: str
) -> None:
    tier = load(small + APART, "cluster.pools.0.host_tier={bytes: 20e9}").setups[0].host_tier
    assert tier is not None
    assert (tier.swaps, tier.offloads) == (False, True)
    tier = load(small + APART, "cluster.pools.1.host_tier={bytes: 20e9}").setups[1].host_tier
    assert tier is not None
    assert (tier.swaps, tier.offloads) == (True, True)
    (message,) = messages_of(small + APART, "cluster.pools.0.host_tier={bytes: 20e9, preemption: swap}")
    assert "prefill pools do not decode, got 'swap'; leave it out" in message


def test_prefixes_of_layers_that_keep_different_tokens_are_offloaded_too(load: Load, small: str) -> None:
    text = small.replace("llama-3.1-8b", "gpt-oss-120b") + POOL
    scenario = load(text, "weight_dtype=mxfp4", "cluster.pools.0.parallel.tensor=2")
    tier = scenario.setups[0].host_tier
    assert tier is not None and (tier.swaps, tier.offloads) == (True, True)
    (pool,) = explain(scenario).pools
    assert pool.host_tokens == tier.n_blocks // 2 * 16  # a block of each kind of layer for the same tokens
