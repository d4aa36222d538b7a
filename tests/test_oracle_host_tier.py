"""Engine and oracle agree on replicas that swap to host memory, and keep prefixes there and on disk."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.catalog.layers import LayerGroup
from simserve.cost.memory import HostTierSpec
from simserve.engine.cluster import Cluster
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Backoff, Patience
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.tabulate import tabulate
from simserve.metrics.decode_rows import decode_rows
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.schedulers.trtllm import TrtLlm
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.workload.trace import Prefixes, Trace
from tests import oracle
from tests.agreement import assert_agreement, run_both
from tests.doubles import LineCost, plain_blocks
from tests.effort import examples
from tests.invariants import check_memory
from tests.test_oracle_patience import assert_all_is_given_back, assert_clients_agree, patiences
from tests.test_oracle_routers import routers
from tests.worlds import (
    ROUTERS,
    cached,
    can_be_disaggregated,
    changes,
    disaggregated,
    grouped,
    grouped_replica,
    links,
    ordered,
    setups,
    shared_prompts,
    tagged,
    traces,
)


@st.composite
def tiers(draw: st.DrawFn, *, swaps: bool, offloads: bool) -> HostTierSpec:
    """Draw host tiers from no room to room for all, from much faster than a step to as slow as several; those that only
    keep prefixes may be shared."""
    seconds = st.sampled_from([1e-9, 1.37e-7, 1.1e-6, 3e-5])
    return HostTierSpec(
        draw(st.sampled_from([0, 3, 10, 25, 40, 10_000])),
        draw(seconds),
        swaps,
        offloads,
        draw(st.sampled_from([0, 0, 5, 30])),
        draw(seconds),
        draw(st.booleans()),
        draw(st.sampled_from([None, "pool"])) if offloads and not swaps else None,
    )


def can_have_a_tier(result: list[ReplicaSetup], caches: bool) -> bool:
    """They can have host memory; those that reserve only for prefixes, as nothing is preempted while it decodes."""
    scheduler = result[0].scheduler
    return scheduler.shares_blocks if caches else can_be_disaggregated(scheduler)


@st.composite
def tight(draw: st.DrawFn, least_tokens: int = 40, caches: bool = False) -> list[ReplicaSetup]:
    """Draw replicas with slots for more requests than their blocks hold, so that some wait or are preempted."""
    result = draw(setups().filter(lambda result: can_have_a_tier(result, caches)))
    return [draw(short_of_blocks(st.just(result[0]), least_tokens))] * crowded(result)


def crowded(result: list[ReplicaSetup]) -> int:
    """Return how many replicas leave each lane or rank enough requests to be preempted."""
    return 1 if result[0].n_ranks > 1 else min(len(result), 2)


@st.composite
def short_of_blocks(draw: st.DrawFn, plain: st.SearchStrategy[ReplicaSetup], least_tokens: int = 40) -> ReplicaSetup:
    """Leave a replica blocks for few requests."""
    setup = draw(plain)
    n_blocks = -(-draw(st.integers(least_tokens, least_tokens + 50)) // setup.block_size)
    return replace(setup, n_blocks=n_blocks, max_model_len=min(setup.max_model_len, n_blocks * setup.block_size))


@st.composite
def swapping(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw replicas that only swap."""
    tier = draw(tiers(swaps=True, offloads=False))
    return [replace(setup, host_tier=tier) for setup in draw(tight())]


@st.composite
def at_the_far_end(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw prefill replicas, and decode replicas that swap."""
    tier = draw(tiers(swaps=True, offloads=False))
    result = draw(disaggregated())
    result = [draw(short_of_blocks(st.just(s))) if s.role == "decode" else s for s in result]
    limit = min(setup.max_model_len for setup in result)
    result = [replace(setup, max_model_len=limit) for setup in result]
    return [replace(setup, host_tier=tier) if setup.role == "decode" else setup for setup in result]


HOW = ((False, True), (True, True), (True, False))
"""Whether replicas swap, and whether they offload prefixes."""


@st.composite
def offloading(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw replicas that offload prefixes, and perhaps swap too; those with roles only offload."""
    result = draw(st.one_of(*[tight(80, caches=True)] * 3, disaggregated()))
    only_offloads = result[0].scheduler.reserves or any(setup.role == "decode" for setup in result)
    swaps, offloads = (False, True) if only_offloads else draw(st.sampled_from(HOW))
    tier = draw(tiers(swaps=swaps, offloads=offloads))
    limit = min(setup.max_model_len for setup in result)
    result = [replace(setup, max_model_len=limit) for setup in result]
    return by_pool([replace(setup, host_tier=tier) for setup in draw(cached(result))])


def by_pool(result: list[ReplicaSetup]) -> list[ReplicaSetup]:
    """Let the replicas of each role share a store of their own, where they share any."""
    return [
        replace(setup, host_tier=tier and replace(tier, store=tier.store and f"of {setup.role}"))
        for setup in result
        for tier in [setup.host_tier]
    ]


def assert_tiers_agree(cluster: Cluster, truth: oracle.OracleRun, load: Trace) -> None:
    """Compare the final tiers; all swapped-out blocks returned or were found on the GPU. Steps and spans are
    consistent."""
    n_replicas = len(cluster.replicas)
    tables = tabulate(cluster, np.zeros(n_replicas, np.int32), ("serve",))
    decode_rows(tables.steps, tables.spans)
    for replica, true in zip(cluster.replicas, truth.replicas, strict=True):
        if replica.tier is None:
            continue
        assert true.host is not None
        memory, counts = replica.tier.memory, replica.tier.counts
        check_memory(memory)
        assert (memory._host.n, memory._disk.n) == (len(true.host.host), len(true.host.disk))
        assert counts.read == true.host.n_read
        assert memory.swapped_blocks == 0
        assert counts.swapped_out == true.host.has_been_out
        assert counts.swapped_out == counts.swapped_in + counts.dropped + counts.discarded
        assert counts.discarded == true.host.n_discarded
        assert (replica.pool.free_blocks, replica.pool.used_blocks) == (replica.pool.total_blocks, 0)


@settings(max_examples=examples(300))
@given(
    swapping() | grouped(swapping()) | ordered(swapping()),
    st.sampled_from(ROUTERS),
    tagged(traces()),
    st.none() | st.integers(1, 5),
)
def test_engine_and_oracle_agree_on_swapping(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None
) -> None:
    cluster, truth = run_both(setups, router, load, concurrency)
    assert_agreement(setups, cluster, truth)
    assert_tiers_agree(cluster, truth, load)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[ReplicaSetup], Trace]:
    """Draw a replica where short prompts grow until several are in host memory at once, and its load."""
    setup, *_ = draw(ordered(setups()))
    n_slots = draw(st.integers(4, 8))
    assert isinstance(setup.scheduler, Chunked)
    policy = replace(setup.scheduler, max_num_seqs=n_slots, max_num_batched_tokens=draw(st.integers(n_slots, 60)))
    setup = draw(short_of_blocks(st.just(replace(setup, scheduler=policy))))
    tier = replace(draw(tiers(swaps=True, offloads=False)), n_blocks=10_000)
    load = draw(tagged(traces()))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(load), max_size=len(load)))
    load = replace(load, arrival_s=np.cumsum(gaps) * 1e-6, prompt_tokens=1 + load.prompt_tokens % 8)
    return draw(grouped(st.just([replace(setup, host_tier=tier)])) | st.just([replace(setup, host_tier=tier)])), load


@settings(max_examples=examples(200))
@given(crowds())
def test_engine_and_oracle_agree_on_who_returns_first(world: tuple[list[ReplicaSetup], Trace]) -> None:
    setups, load = world
    cluster, truth = run_both(setups, RoundRobin, load, None)
    assert_agreement(setups, cluster, truth)
    assert_tiers_agree(cluster, truth, load)


@settings(max_examples=examples(300))
@given(
    at_the_far_end() | grouped(at_the_far_end()),
    st.sampled_from(ROUTERS),
    traces(),
    st.none() | st.integers(1, 5),
    links(),
    st.booleans(),
)
def test_engine_and_oracle_agree_on_swapping_in_decode_pools(
    setups: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, link: LinkSpec, is_pushed: bool
) -> None:
    cluster, truth = run_both(setups, router, load, concurrency, link=link, is_pushed=is_pushed)
    assert_agreement(setups, cluster, truth)
    assert_tiers_agree(cluster, truth, load)


@settings(max_examples=examples(400))
@given(
    offloading() | grouped(offloading()),
    links(),
    st.sampled_from((*ROUTERS, PrefixAffinity)),
    st.data(),
    st.none() | st.integers(1, 5),
)
def test_engine_and_oracle_agree_on_prefixes_beside_the_gpus(
    setups: list[ReplicaSetup], link: LinkSpec, router: Any, data: st.DataObject, concurrency: int | None
) -> None:
    load = data.draw(shared_prompts())
    is_disaggregated = any(setup.role == "decode" for setup in setups)
    cluster, truth = run_both(setups, router, load, concurrency, link=link if is_disaggregated else None)
    assert_agreement(setups, cluster, truth)
    assert_tiers_agree(cluster, truth, load)


@st.composite
def reading(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw one replica with a small cache before a large host memory, which is read while steps go on."""
    (setup, *_) = draw(cached(draw(st.one_of(tight(80, caches=True), ordered(tight(80))))))
    swaps = not setup.scheduler.reserves and draw(st.booleans())
    tier = replace(draw(tiers(swaps=swaps, offloads=True)), n_blocks=10_000, overlaps=True)
    return [replace(setup, host_tier=tier)]


@settings(max_examples=examples(300))
@given(reading() | grouped(reading()), st.data(), st.none() | st.integers(1, 5), st.none() | patiences())
def test_engine_and_oracle_agree_on_prefixes_read_while_steps_go_on(
    setups: list[ReplicaSetup], data: st.DataObject, concurrency: int | None, patience: Patience | None
) -> None:
    load = data.draw(tagged(shared_prompts()))
    cluster, truth = run_both(setups, RoundRobin, load, concurrency, patience=patience)
    assert_agreement(setups, cluster, truth)
    assert_clients_agree(cluster, truth)
    assert_all_is_given_back(cluster)
    assert_tiers_agree(cluster, truth, load)


def test_a_replica_plans_where_a_client_gives_up_at_the_end_of_a_step_and_its_prefix_is_being_read() -> None:
    """The read ends the request's stay, but the step was committed for it: the others must go on at once."""
    state = LayerBlocks((KvGroup(3, 2, LayerGroup("state", 1, window=2)),), most_chunk=38)
    tier = HostTierSpec(10_000, 3e-5, swaps=True, offloads=True, overlaps=True)
    scheduler = Chunked(max_num_batched_tokens=38, max_num_seqs=2, scheduler_reserve_full_isl=False)
    setup = ReplicaSetup(scheduler, LineCost(step=10**6), 29, state, 87, host_tier=tier, caches_prefixes=True)
    arrival_s = np.array([0.0, 0.0, 110e-6, 110e-6, 110e-6, 110e-6, 190e-6, 200e-6])
    prompts, outputs = np.array([28, 1, 8, 27, 17, 34, 1, 31]), np.array([1, 38, 31, 1, 1, 1, 27, 1])
    ids, n_ids = np.array([1, 3, 0, 1, 1, 3]), np.array([2, 3, 1, 2, 1, 2])
    prefixes = Prefixes(12, ids, n_ids, np.array([0, 1, 2, 3, 4, 5, 5, 5, 6]))
    load = Trace(arrival_s, prompts, outputs, prefixes=prefixes)
    backoff = Backoff(4, 7 * 10**6, 2.0, 10**8, 0.0, 0)
    patience = Patience(None, 27 * 10**6, backoff, goes_on=True)
    cluster, truth = run_both([setup], RoundRobin, load, None, patience=patience)
    assert_agreement([setup], cluster, truth)


@st.composite
def reading_reserved(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw one replica that reserves, with windows of which it has hardly more blocks than one request needs."""
    batch, layers = draw(st.integers(2, 5)), plain_blocks(draw(st.sampled_from([1, 3, 4])))
    policy = TrtLlm(max_num_tokens=batch + draw(st.integers(3, 40)), max_batch_size=batch, enable_chunked_context=True)
    (setup, *_) = draw(cached(draw(setups())))
    setup = replace(setup, scheduler=policy, layers=layers, max_model_len=60, n_blocks=1, caches_prefixes=True)
    tier = replace(draw(tiers(swaps=False, offloads=True)), n_blocks=10_000, overlaps=True, store=None)
    setup = draw(grouped_replica(replace(setup, n_stages=1, n_in_step=1, host_tier=tier)))
    return [replace(setup, n_blocks=setup.n_blocks + draw(st.integers(1, setup.n_blocks)))]


@settings(max_examples=examples(60))
@given(reading_reserved(), shared_prompts(12, (1, 2, 3)), st.sampled_from([1.0, 1e-2, 1e-3]), st.integers(1, 12))
def test_engine_and_oracle_agree_on_windows_that_reads_share_with_requests_under_reservation(
    setups: list[ReplicaSetup], load: Trace, pace: float, spread: int
) -> None:
    load = replace(load, arrival_s=load.arrival_s * pace, prompt_tokens=28 + load.prompt_tokens % spread)
    cluster, truth = run_both(setups, RoundRobin, load, None)
    assert_agreement(setups, cluster, truth)
    assert_all_is_given_back(cluster)
    assert_tiers_agree(cluster, truth, load)


@st.composite
def sharing(draw: st.DrawFn) -> list[ReplicaSetup]:
    """Draw replicas, or prefill and decode replicas, with small caches before a small store that those of a role share,
    over links so slow that many copies are in flight."""
    tier = HostTierSpec(
        draw(st.sampled_from([6, 12, 25, 60])),
        draw(st.sampled_from([1.1e-6, 4e-6, 3e-5, 3e-4])),
        offloads=True,
        disk_blocks=draw(st.sampled_from([0, 0, 8])),
        disk_block_s=draw(st.sampled_from([1.1e-6, 3e-5])),
        overlaps=draw(st.booleans()),
        store="pool",
    )
    together = setups().filter(lambda result: can_have_a_tier(result, caches=True))
    alone = together.map(lambda result: [replace(result[0], n_stages=1, n_in_step=1)])
    result = draw(st.one_of(alone, ordered(alone), ordered(together), disaggregated()))
    sides = {setup.role: replace(setup, layers=plain_blocks(draw(st.sampled_from([1, 3, 4])))) for setup in result}
    tiny = {role: draw(short_of_blocks(st.just(setup))) for role, setup in sides.items()}
    limit = min(setup.max_model_len for setup in tiny.values())
    n_members = {role: 1 if setup.n_ranks > 1 else draw(st.integers(2, 3)) for role, setup in tiny.items()}
    result = draw(cached([replace(tiny[role], max_model_len=limit) for role in tiny for _ in range(n_members[role])]))
    return by_pool([replace(setup, host_tier=tier) for setup in result])


@settings(max_examples=examples(300))
@given(
    sharing() | grouped(sharing()),
    links(),
    routers(),
    st.data(),
    st.none() | st.integers(1, 5),
    st.none() | patiences(),
)
def test_engine_and_oracle_agree_on_a_store_that_replicas_share(
    setups: list[ReplicaSetup],
    link: LinkSpec,
    router: Any,
    data: st.DataObject,
    concurrency: int | None,
    patience: Patience | None,
) -> None:
    load = data.draw(tagged(shared_prompts(12, (0, 2, 3, 5))))
    load = replace(load, arrival_s=load.arrival_s * data.draw(st.sampled_from([1.0, 1e-2, 1e-3])))
    script = data.draw(st.none() | changes(setups, load))
    between = link if any(setup.role == "decode" for setup in setups) else None
    cluster, truth = run_both(setups, router, load, concurrency, link=between, patience=patience, changes=script)
    assert_agreement(setups, cluster, truth)
    assert_clients_agree(cluster, truth)
    assert_all_is_given_back(cluster)
    assert_tiers_agree(cluster, truth, load)


@pytest.mark.parametrize("store", [None, "of both"])
def test_a_preempted_prompt_comes_back_without_what_was_taken_of_its_own_blocks(store: str | None) -> None:
    """A read for a preempted prompt copies none of its own blocks to the host: it computes again what the GPU lost."""
    windows = KvGroup(3, 2, LayerGroup("windowed", 1, 1)), KvGroup(3, 3, LayerGroup("windowed", 1, 8))
    layers = LayerBlocks((*windows, KvGroup(3, 2, LayerGroup("full", 1, None))), n_states=1, most_chunk=12)
    per_token = {"token": 70_001, "shared": 50_021, "busiest": 30_011}
    cost = LineCost(step=5_000_003, row=11, pair=101, key=1009, windows=(0, 0), **per_token)
    shares = FairShares(1.0, 1.0, {"a": 2.0, "b": 0.5})
    policy = Chunked(12, 2, scheduler_reserve_full_isl=False, policy="vtc", vtc=shares)
    setup = ReplicaSetup(policy, cost, 85, layers, 75, True, caches_prefixes=True, keeps_contents=True)
    tier = HostTierSpec(25, 1.1e-6, swaps=False, offloads=True, disk_blocks=0, disk_block_s=1.1e-6, store=store)
    two = [replace(setup, scheduler=deepcopy(policy), host_tier=replace(tier, overlaps=True)) for _ in range(2)]
    starts = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2])
    load = Trace(
        np.array([0.0] * 4 + [1.1e-5] * 8),
        np.array([1, 4, 1, 1, 38, 40, 1, 36, 1, 1, 19, 1]),
        np.array([1, 27, 1, 1, 10, 19, 1, 1, 1, 1, 1, 1]),
        tenant=np.array(list("abaacaabaaaa")),
        priority=np.zeros(12, np.int64),
        prefixes=Prefixes(3, np.array([0, 4]), np.array([4, 1]), starts),
    )
    assert_agreement(two, *run_both(two, Random, load, None))


def test_a_swapped_request_comes_back_at_once_where_the_one_it_left_for_waits_for_its_prefix() -> None:
    """No step runs meanwhile, so the next boundary is now."""
    state = KvGroup(1, 2, LayerGroup("state", 1, window=2))
    layers = LayerBlocks((state, KvGroup(1, 0, LayerGroup("full", 1, window=None))), most_chunk=9)
    tier = HostTierSpec(10_000, 1e-9, swaps=True, offloads=True, overlaps=True)
    scheduler = Chunked(
        max_num_batched_tokens=9,
        max_num_seqs=1,
        scheduler_reserve_full_isl=False,
        policy="priority",
        priority_preemption_threshold=0,
    )
    cost = LineCost(token=10**6)
    setup = ReplicaSetup(
        scheduler, cost, 117, layers, 83, n_stages=3, n_in_step=2, host_tier=tier, caches_prefixes=True
    )
    tokens = np.array([13, 23, 11, 25, 4, 4, 32, 24, 10, 18, 7, 15, 22, 24, 23, 4, 28, 10, 6, 7])
    first_ids = np.array([0, 4, 11, 0, 11, 0, 4, 0, 11, 0, 0, 11, 4, 4, 4, 0, 0, 0, 0, 0])
    n_ids = np.array([4, 7, 3, 4, 1, 4, 7, 4, 3, 4, 2, 3, 7, 7, 7, 1, 4, 3, 2, 2])
    outputs, priority = tokens.copy(), np.zeros(20, np.int64)
    outputs[5], priority[7], priority[13] = 29, 1, 2
    most = np.array([39, 30, 21, 10, 34, 27, 1, 20, 28, 45, 7, 19, 29, 24, 13, 17, 9, 17, 26, 21])
    prefixes = Prefixes(6, first_ids, n_ids, np.arange(21))
    load = Trace(np.zeros(20), tokens, outputs, most, priority=priority, prefixes=prefixes)
    cluster, truth = run_both([setup], RoundRobin, load, 4, patience=None)
    assert truth.lives[13].n_preemptions == 2
    assert_agreement([setup], cluster, truth)


def test_a_swapped_request_takes_its_blocks_before_they_have_ids() -> None:
    """It returns to a cache that has its id in the full layers and has lost it in the windowed ones: the blocks it
    takes come from the front of the eviction order, and only then does its own id replace the idle one."""
    windowed, full = KvGroup(16, 1, LayerGroup("windowed", 1, 2)), KvGroup(16, 2, LayerGroup("full", 1, None))
    policy = Chunked(32, 3, long_prefill_token_threshold=3, scheduler_reserve_full_isl=False)
    tier = HostTierSpec(10_000, 1e-9, swaps=True, offloads=True, overlaps=True)
    cost, layers = LineCost(step=5_000_003, token=70_001, windows=(0,)), LayerBlocks((windowed, full), 1, most_chunk=32)
    setup = ReplicaSetup(policy, cost, 17, layers, 96, host_tier=tier, caches_prefixes=True, keeps_contents=True)
    prompts, outputs = [32, 17, 1, 20, 33] + [1] * 12, [12, 17, 1, 5] + [1] * 13
    ids, n_ids = [0, 44, 0, 0, 44] + [0] * 12, [44, 34, 2, 25, 34] + [2] * 12
    prefixes = Prefixes(1, np.array(ids), np.array(n_ids), np.arange(18))
    load = Trace(np.zeros(17), np.array(prompts), np.array(outputs), np.array(outputs), prefixes=prefixes)
    cluster, truth = run_both([setup], RoundRobin, load, None)
    assert_agreement([setup], cluster, truth)
    assert_tiers_agree(cluster, truth, load)
    assert truth.replicas[0].host is not None and truth.replicas[0].host.n_read == 2
