"""Swapping to host memory, and prefixes kept there, on cases small enough to work by hand."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from simserve.catalog.layers import LayerGroup
from simserve.cost.memory import HostTierSpec
from simserve.engine.cluster import Cluster
from simserve.engine.host_tier import HostCounts, HostTier
from simserve.engine.memory import CachingMemory, CachingPool
from simserve.engine.recorder import Recorder
from simserve.engine.replica_setup import ReplicaSetup
from simserve.errors import PolicyError
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.base import StepPlan
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.state.request import Request
from simserve.state.view import ReplicaView
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import assert_agreement, run_both, token_times
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace
from tests.invariants import check_cache, check_memory
from tests.oracle_fleet import Change

STEPS_OF_10_MS = LineCost(step=10 * MS)
TWO = trace([0.0, 0.0], [5, 5], [6, 6])


def swapping(n_blocks: int = 100, block_s: float = 1e-3, cost: LineCost = STEPS_OF_10_MS) -> ReplicaSetup:
    """Return a setup with 14 one-token blocks on the GPU, n_blocks on the host, and 1 ms per copied block."""
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10)
    return replace(
        replica_setup(policy, cost, n_blocks=14, block_size=1), host_tier=HostTierSpec(n_blocks, block_s, swaps=True)
    )


def counts(cluster: Cluster) -> HostCounts:
    replica = cluster.replicas[0]
    assert replica.tier is not None
    check_memory(replica.tier.memory)
    return replica.tier.counts


def column(cluster: Cluster, name: str) -> list[int]:
    return [int(n) for n in cluster.recorder.columns[name]]


def test_who_is_swapped_goes_on_where_it_was_and_each_way_is_paid_by_the_step_that_follows() -> None:
    # Both prompts fill 10 blocks until 10 ms, and two steps the other 4. At 30 the second has 7 tokens on the GPU and
    # is swapped out in 7 ms; the first one's steps end at 47, 57 and 67, when it is done. The second returns in 7 ms,
    # and its steps end at 84, 94 and 104.
    cluster = serve(swapping(), TWO)
    assert {row: [ps / MS for ps in times] for row, times in token_times(cluster).items()} == {
        0: [10, 20, 30, 47, 57, 67],
        1: [10, 20, 30, 84, 94, 104],
    }
    assert column(cluster, "n_swaps") == column(cluster, "n_preemptions") == [0, 1]
    assert column(cluster, "n_recomputed_tokens") == [0, 0]
    assert instants(cluster, "preempted_ps") == [0, 37]
    assert (counts(cluster).swapped_out, counts(cluster).swapped_in, counts(cluster).wait_ps) == (7, 7, 14 * MS)


def test_under_vtc_another_request_may_be_first_to_return_after_any_token() -> None:
    # Of 20 blocks, row 2 leaves at 20 ms with 3 and row 1 at 40 with 13. Tenant a, of weight 5, has had 8 / 5 tokens,
    # b 2, so row 1 is first, and does not fit beside row 0. At 70 a has had 11 / 5: row 2 is first, and returns.
    shares = FairShares(input_weight=0.0, output_weight=1.0, tenant_weights={"a": 5.0})
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10, policy="vtc", vtc=shares)
    setup = replace(swapping(block_s=0.0), scheduler=policy, n_blocks=20, max_model_len=20)
    load = replace(trace([0.0] * 3, [4, 10, 2], [12, 10, 10]), tenant=np.array(["a", "a", "b"]))
    times = {row: [ps / MS for ps in times] for row, times in token_times(serve(setup, load)).items()}
    assert times[0] == [*range(10, 130, 10)]
    assert (times[1][:4], times[2][:4]) == ([10, 20, 30, 40], [10, 20, 80, 90])


def test_without_room_on_the_host_it_computes_again() -> None:
    # No copies; the first ends at 60, and then one step computes 5 + 3 tokens and emits the fourth.
    cluster = serve(swapping(n_blocks=6), TWO)
    assert instants(cluster, "finish_ps") == [60, 90]
    assert (column(cluster, "n_swaps"), column(cluster, "n_preemptions")) == ([0, 0], [0, 1])
    assert column(cluster, "n_recomputed_tokens") == [0, 7]


def test_nobody_new_starts_before_the_step_after_the_last_has_come_back() -> None:
    cluster = serve(swapping(), trace([0.0, 0.0, 0.035], [5, 5, 1], [6, 6, 1]))
    assert instants(cluster, "scheduled_ps")[2] == 84


def test_a_request_in_whose_favor_another_is_swapped_out_starts_at_once() -> None:
    # At 20 ms the first has 11 tokens in 14 blocks, and the second, with a better priority, needs 8. The first is
    # swapped out in 11 ms; the second's steps end at 41 and 51; the first returns in 11 ms.
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10, policy="priority", priority_preemption_threshold=1)
    load = replace(trace([0.0, 0.015], [10, 8], [4, 2]), priority=np.array([2, 0]))
    cluster = serve(replace(swapping(), scheduler=policy), load)
    assert {row: [ps / MS for ps in times] for row, times in token_times(cluster).items()} == {
        0: [10, 20, 72, 82],
        1: [41, 51],
    }
    assert column(cluster, "n_swaps") == [1, 0]


@pytest.mark.parametrize("block_us", [250, 500, 1000])
def test_swap_and_recompute_break_even_where_two_copies_take_as_long_as_the_prefill(block_us: int) -> None:
    # A step takes 1 ms per token. The second request has 7 tokens when it is preempted. Recomputation takes a step of 8
    # for its next token; swapping takes 2 x 7 copies and a step of 1. So swapping takes 14 copies minus 7 ms more.
    cost = LineCost(token=MS)
    setup = swapping(block_s=block_us * 1e-6, cost=cost)
    swapped_ms = instants(serve(setup, TWO), "finish_ps")[1]
    recomputed_ms = instants(serve(replace(setup, host_tier=None), TWO), "finish_ps")[1]
    assert swapped_ms - recomputed_ms == pytest.approx(7 * (2 * block_us / 1000 - 1))


def test_who_is_still_out_when_the_run_ends_keeps_the_tokens_that_it_had() -> None:
    cluster = serve(swapping(), TWO, drain_limit_ps=40 * MS)
    assert {row: [ps / MS for ps in times] for row, times in token_times(cluster).items()} == {
        0: [10, 20, 30],
        1: [10, 20, 30],
    }
    replica = cluster.replicas[0]
    assert replica.tier is not None
    assert (replica.tier.memory.swapped_blocks, counts(cluster).swapped_in) == (7, 0)
    assert "still there at drain_limit_s" in cluster.recorder.reasons[-1]


def test_copies_of_the_lanes_of_a_pipeline_queue_on_one_link() -> None:
    # Each lane has two requests of five tokens, and a stage takes 5 ms. The first lane swaps 7 blocks at 30 ms and the
    # second at 35, when the link is free at 37: its step enters at 44, and not at 42.
    four = trace([0.0] * 4, [5] * 4, [6] * 4)
    cluster = serve(replace(swapping(), n_stages=2), four)
    assert column(cluster, "n_swaps") == [0, 0, 1, 1]
    starts, ends = zip(*(steps_of(cluster, lane) for lane in (0, 1)), strict=True)
    assert (starts[0][3], ends[0][3]) == (30, 47)
    assert (starts[1][3], ends[1][3]) == (35, 54)


def steps_of(cluster: Cluster, replica: int) -> tuple[list[float], list[float]]:
    """Return starts and ends of single steps, in milliseconds."""
    runs = cluster.recorder.step_runs(replica)
    return (runs["start_ps"] / MS).tolist(), ((runs["start_ps"] + runs["first_ps"]) / MS).tolist()


def test_all_that_goes_out_comes_in_when_many_are_swapped_again_and_again() -> None:
    load = trace([0.001 * i for i in range(40)], [3] * 40, [9] * 40)
    cluster = serve(swapping(), load)
    result = counts(cluster)
    assert result.swapped_out == result.swapped_in > 50
    assert sum(column(cluster, "n_swaps")) == sum(column(cluster, "n_preemptions")) > 10
    assert cluster.replicas[0].pool.free_blocks == 14


# -- prefixes: blocks of 4 tokens, 5 of them on the GPU ----------------------------------------------------------------


def offloading(host_blocks: int = 100, block_s: float = 1e-3, disk_blocks: int = 0) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10)
    setup = replica_setup(policy, STEPS_OF_10_MS, n_blocks=5, block_size=4)
    tier = HostTierSpec(host_blocks, block_s, offloads=True, disk_blocks=disk_blocks, disk_block_s=3e-3)
    return replace(setup, caches_prefixes=True, host_tier=tier)


def evicted_between(chain: list[int]) -> Trace:
    """The first and the last share a prefix; the one in between needs all blocks of the GPU."""
    chains = [[1, 2], chain, [1, 2]]
    ids = np.array([block for each in chains for block in each], np.int64)
    prefixes = Prefixes.from_ids(4, ids, np.cumsum([0, *map(len, chains)]))
    return replace(trace([0.0, 1.0, 2.0], [10, 18, 10], [1, 1, 1]), prefixes=prefixes)


def test_what_the_gpu_gave_up_is_read_from_the_host_before_the_step() -> None:
    cluster = serve(offloading(), evicted_between([]))
    assert cluster.recorder.step_runs(0)["prefill_tokens"].tolist() == [10, 18, 2]
    assert instants(cluster, "finish_ps") == [10, 1010, 2012]
    assert column(cluster, "cached_tokens") == column(cluster, "host_cached_tokens") == [0, 0, 8]
    assert (counts(cluster).written, counts(cluster).read) == (2, 2)


def test_a_read_waits_for_the_writes_before_it_on_the_same_link() -> None:
    # Two blocks at 1 s each leave from 10 ms on, so the link is free at 2,010; the read ends at 4,010.
    assert instants(serve(offloading(block_s=1.0), evicted_between([])), "finish_ps") == [10, 1010, 4020]


def test_what_the_host_gave_up_is_read_from_the_disk() -> None:
    # The host holds two blocks, and those of the second request displace the first one's. At 3 ms each from the disk,
    # they arrive after 6; the link has carried them by then.
    cluster = serve(offloading(host_blocks=2, disk_blocks=10), evicted_between([7, 8]))
    assert instants(cluster, "finish_ps") == [10, 1010, 2016]
    assert (column(cluster, "host_cached_tokens"), column(cluster, "disk_cached_tokens")) == ([0, 0, 0], [0, 0, 8])
    assert (counts(cluster).disk_written, counts(cluster).disk_read) == (4, 2)
    assert counts(cluster).written == 4  # blocks on disk need not be written again


def test_without_a_disk_what_the_host_gave_up_is_computed() -> None:
    cluster = serve(offloading(host_blocks=2), evicted_between([7, 8]))
    assert column(cluster, "cached_tokens") == [0, 0, 0]
    assert counts(cluster).read == 0


def test_what_is_read_once_is_shared_by_all_who_start_with_it() -> None:
    ids = np.array([1, 2, 1, 2, 1, 2], np.int64)
    twice = replace(
        trace([0.0, 1.0, 2.0, 2.0], [10, 18, 9, 9], [1, 1, 1, 1]),
        prefixes=Prefixes.from_ids(4, ids, np.array([0, 2, 2, 4, 6])),
    )
    cluster = serve(offloading(), twice)
    assert column(cluster, "cached_tokens") == [0, 0, 8, 8]
    assert column(cluster, "host_cached_tokens") == [0, 0, 8, 0]
    assert counts(cluster).read == 2


# -- reads that overlap the steps: blocks of 4 tokens, 9 of them on the GPU, 25 ms each from the host ------------------


def beside_decodes(n_readers: int) -> Trace:
    """One leaves a prefix, one needs all blocks of the GPU, one decodes from 2 s on; then some need the prefix."""
    chains = [[1, 2], [], [], *[[1, 2]] * n_readers]
    ids = np.array([block for each in chains for block in each], np.int64)
    prefixes = Prefixes.from_ids(4, ids, np.cumsum([0, *map(len, chains)]))
    arrivals, prompts = [0.0, 1.0, 1.99, *[2.0] * n_readers], [10, 34, 3, *[9] * n_readers]
    return replace(trace(arrivals, prompts, [1, 1, 20, *[1] * n_readers]), prefixes=prefixes)


def overlapping(*, overlaps: bool = True) -> ReplicaSetup:
    setup = offloading(block_s=25e-3)
    assert setup.host_tier is not None
    return replace(setup, n_blocks=9, max_model_len=36, host_tier=replace(setup.host_tier, overlaps=overlaps))


def test_others_decode_while_a_prefix_is_read_and_its_request_joins_when_it_is_there() -> None:
    # The read takes from 2,000 to 2,050, and the prompt's step from there to 2,060; or else the step that begins at
    # 2,000 waits for it, and the decoding request with it.
    cluster = serve(overlapping(), beside_decodes(1))
    assert instants(cluster, "scheduled_ps")[3] == 2050
    assert instants(cluster, "finish_ps")[2:] == [2190, 2060]
    assert (counts(cluster).wait_ps, counts(cluster).read_ps) == (0, 50 * MS)
    blocking = serve(overlapping(overlaps=False), beside_decodes(1))
    assert instants(blocking, "finish_ps")[2:] == [2240, 2060]
    for each in (cluster, blocking):
        assert column(each, "cached_tokens") == column(each, "host_cached_tokens") == [0, 0, 0, 8]


def test_a_request_waits_for_the_prefix_that_is_read_for_another() -> None:
    cluster = serve(overlapping(), beside_decodes(2))
    assert instants(cluster, "scheduled_ps")[3:] == [2050, 2050]
    assert counts(cluster).read == 2
    assert column(cluster, "cached_tokens")[3:] == [8, 8]
    assert column(cluster, "host_cached_tokens")[3:] == [8, 0]


def test_what_is_read_goes_in_after_the_evictions_of_earlier_steps() -> None:
    # Six blocks on the GPU. From 2,030 to 2,055 ms the sixth request reads block 2, which the answer of the fifth also
    # fills by 2,040: the GPU keeps that copy, and block 7, idle before it. A read replaces such a copy, which is then
    # the next to evict. If the fourth takes a block in the step to 2,050, 7 goes, and the last request reads it again,
    # from 2,060 to 2,085; in the step to 2,060, the copy goes.
    chains: list[list[int]] = [[1, 2], [], [7], [], [1, 2], [1, 2], [7]]
    for n_tokens, scheduled_ms, n_read in ((4, 2085, 4), (3, 2060, 0)):
        load = prefixed([0.0, 1.0, 1.5, 1.99, 1.99, 2.03, 2.06], [10, 22, 4, n_tokens, 4, 9, 5], chains)
        load = replace(load, output_tokens=np.array([1, 1, 1, 7, 5, 1, 1], np.int64))
        cluster = serve(replace(overlapping(), n_blocks=6, max_model_len=24), load)
        assert instants(cluster, "scheduled_ps")[5:] == [2060, scheduled_ms]
        assert column(cluster, "host_cached_tokens")[5:] == [4, n_read]
        assert column(cluster, "cached_tokens")[5:] == [8, 4]


@pytest.mark.parametrize("leaves", [False, True])
def test_where_a_policy_reserves_a_read_pays_for_windows_that_it_shares(leaves: bool) -> None:
    # A block of 2 tokens in each kind of layer. Behind 12 tokens a window of 5 keeps blocks 4 and 5 of 6; block 3 is
    # evicted. A read of 5 blocks shares block 4 and brings block 3. If the first request leaves block 4 meanwhile, the
    # second one alone has it, and what it paid for both is the first one's again.
    layers = LayerBlocks((KvGroup(2, 1, LayerGroup("windowed", 1, 5)), KvGroup(2)))
    pool, tier = CachingPool(40, layers), HostTier(HostTierSpec(100, 1e-3, offloads=True, overlaps=True))
    memory = CachingMemory(pool, Recorder(2, 1), tier, reserves=True)
    first, second = Request(0, 0, 16, 4), Request(1, 0, 12, 2)
    first.chains = second.chains = {2: range(8)}
    first.reserved_blocks = pool.most_blocks(20)

    def compute(n_tokens: int) -> None:
        pool.take(layers.begun(first.prefilled_tokens, n_tokens), from_reserved=True)
        n_before, first.prefilled_tokens = first.prefilled_tokens, first.prefilled_tokens + n_tokens
        memory.computed(first, n_before)
        memory.drop(first, (n_before, first.prefilled_tokens), to_reserved=True)

    memory.admit(first)
    compute(12)
    pool.keep_within(0)
    assert (pool.used_blocks, pool.reserved_blocks) == (6 + 2, 12)
    assert memory.reads_first(second)
    assert (pool.used_blocks, pool.reserved_blocks) == (9, 13)
    if leaves:
        compute(2)
        assert (pool.used_blocks, pool.reserved_blocks) == (11, 11)
    tier.copy(0)
    memory.end_reads(memory.reading[second].end_ps)
    check_cache(pool.cache)
    assert (pool.used_blocks, pool.reserved_blocks) == ((7 + 2, 11) if leaves else (8, 12))
    memory.release(first, first.prefilled_tokens)
    assert pool.free_blocks == 40


# -- a store that two replicas share, which take turns -----------------------------------------------------------------


def sharing(setup: ReplicaSetup) -> list[ReplicaSetup]:
    assert setup.host_tier is not None
    return [replace(setup, host_tier=replace(setup.host_tier, store="pool"))] * 2


def prefixed(arrivals: list[float], prompts: list[int], chains: list[list[int]], tokens: int = 4) -> Trace:
    """Requests for one token, with ids of their blocks."""
    ids = np.array([block for each in chains for block in each], np.int64)
    prefixes = Prefixes.from_ids(tokens, ids, np.cumsum([0, *map(len, chains)]))
    return replace(trace(arrivals, prompts, [1] * len(prompts)), prefixes=prefixes)


def test_what_one_replica_writes_the_other_finds_from_when_the_copy_is_over() -> None:
    # The first writes two blocks from 10 ms to 12. At 12 the second reads them in 2 ms, at 11 it computes them.
    for sent_ms, finish_ms, n_found in ((11, 21, 0), (12, 24, 8)):
        cluster = serve(sharing(offloading()), prefixed([0.0, sent_ms / 1000], [10, 10], [[1, 2], [1, 2]]))
        assert column(cluster, "replica") == [0, 1]
        assert instants(cluster, "finish_ps") == [10, finish_ms]
        assert column(cluster, "host_cached_tokens") == column(cluster, "cached_tokens") == [0, n_found]


def test_what_leaves_a_window_in_decode_is_written_from_the_end_of_that_step_on() -> None:
    # Layers keep 5 tokens. The first has stored 12 at 90 ms, and its window leaves the second block; the third, which
    # gets its id then, is there at 91. It goes on to 160.
    layers = LayerBlocks((KvGroup(4, 1, LayerGroup("windowed", 1, 5)),))
    setups = sharing(replace(offloading(), layers=layers, cost=replace(STEPS_OF_10_MS, windows=(0,))))
    for sent_ms, n_found in ((90, 8), (91, 12)):
        load = prefixed([0.0, sent_ms / 1000], [4, 18], [[1, 2, 3, 4]] * 2)
        load = replace(load, output_tokens=np.array([16, 1], np.int64))
        cluster = serve(setups, load)
        assert column(cluster, "cached_tokens") == [0, n_found]
        assert instants(cluster, "finish_ps")[0] == 160


def test_a_store_survives_its_replicas_and_their_copies_in_flight_do_not() -> None:
    for failed_ms, n_found in ((11, 0), (12, 8)):
        load = prefixed([0.0, 0.013], [10, 10], [[1, 2], [1, 2]])
        changes = [Change(failed_ms * MS, "fail", 0)]
        cluster, truth = run_both(sharing(offloading()), RoundRobin, load, None, changes=changes)
        assert_agreement(sharing(offloading()), cluster, truth)
        assert column(cluster, "cached_tokens") == [0, n_found]


def test_replicas_that_read_from_one_disk_wait_for_each_other() -> None:
    # At 3 s both need blocks 1 and 2, which 7 and 8 have displaced. The disk reads for the first until 3,006, then
    # writes 7 and 8, which make way, and reads for the second from 3,012 to 3,018.
    load = prefixed([0.0, 1.0, 2.0, 3.0, 3.0], [10, 18, 18, 10, 10], [[1, 2], [7, 8], [], [1, 2], [1, 2]])
    cluster = serve(sharing(offloading(host_blocks=2, disk_blocks=10)), load)
    assert column(cluster, "replica") == [0, 1, 0, 1, 0]
    assert instants(cluster, "finish_ps")[3:] == [3028, 3016]
    assert column(cluster, "disk_cached_tokens")[3:] == [8, 8]


def test_a_request_fits_when_another_replica_has_displaced_its_prefix() -> None:
    # Blocks of a token. The second replica decodes; from 60 ms on a request waits there with a hit of 8 blocks and one
    # token to compute, for which the decoding one leaves too little room. At 62 and 72 ms the first replica begins to
    # write 4 other blocks each into a store of 10. Then the hit is of 2 blocks; with a chunk of 3 it fits beside 11
    # tokens at 80 ms, before the first of these copies are over at 82.
    policy = Chunked(max_num_batched_tokens=4, max_num_seqs=10, scheduler_reserve_full_isl=False)
    setup = replica_setup(policy, STEPS_OF_10_MS, n_blocks=18, block_size=1)
    setup = replace(setup, caches_prefixes=True, host_tier=HostTierSpec(10, 5e-3, offloads=True))
    first, other = list(range(8)), list(range(100, 108))
    load = prefixed([0.0, 0.0, 0.0, 0.051, 0.052], [8, 4, 1, 9, 8], [first, [], [], first, other], tokens=1)
    load = replace(load, output_tokens=np.array([1, 20, 1, 1, 1], np.int64))
    cluster = serve(sharing(setup), load)
    assert column(cluster, "replica") == [0, 1, 0, 1, 0]
    assert instants(cluster, "scheduled_ps")[3] == 80
    assert column(cluster, "cached_tokens")[3] == 2


class Insists(Chunked):
    """Plans a request that it has seen before, whether or not it is shown."""

    seen: ClassVar[list[Request]] = []

    def plan(self, view: ReplicaView) -> StepPlan:
        self.seen.extend(view.waiting)
        return StepPlan(prefill=[(self.seen[-1], 1)])


def test_a_policy_may_not_start_a_request_whose_prefix_is_being_read() -> None:
    setup = replace(overlapping(), scheduler=Insists(max_num_batched_tokens=100, max_num_seqs=10))
    with pytest.raises(PolicyError, match=r"must prefill only requests of view\.queue, got Request\(row=3.*at 2\.0"):
        serve(setup, replace(beside_decodes(1), output_tokens=np.array([1, 1, 1, 1], np.int64)))
