"""Prefix cache hits, on cases small enough to work by hand. Steps of 10 ms, blocks of 4 tokens."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simserve.engine.cluster import Cluster
from simserve.engine.memory import CachingPool
from simserve.engine.recorder import FINISHED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.schedulers.base import StepPlan
from simserve.schedulers.chunked import Chunked
from simserve.state.kv_pool import KvPool, LeftBlocks
from simserve.state.request import Phase
from simserve.state.view import ReplicaView
from simserve.workload.readers import read_trace
from simserve.workload.trace import Prefixes, Trace
from tests.doubles import MS, LineCost, instants, plain_blocks, replica_setup, serve, trace
from tests.invariants import check_cache

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
MOONCAKE = TRACES / "mooncake_conversation.jsonl"


def caching(n_blocks: int = 1000, cost: LineCost | None = None) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10)
    setup = replica_setup(policy, cost or LineCost(step=10 * MS), n_blocks=n_blocks, block_size=4)
    return replace(setup, caches_prefixes=True)


def keeping(n_blocks: int) -> ReplicaSetup:
    return replace(caching(n_blocks), caches_prefixes=False, keeps_contents=True)


def sharing(load: Trace, chains: list[list[int]], block_tokens: int = 4) -> Trace:
    ids = np.array([block for chain in chains for block in chain], np.int64)
    return replace(load, prefixes=Prefixes.from_ids(block_tokens, ids, np.cumsum([0, *map(len, chains)])))


def cached(cluster: Cluster) -> list[int]:
    return [int(n) for n in cluster.recorder.columns["cached_tokens"]]


def prefills(cluster: Cluster) -> list[int]:
    return [n for n in cluster.recorder.step_runs(0)["prefill_tokens"].tolist() if n]


def blocks(cluster: Cluster) -> tuple[int, int]:
    """Return (free, idle) of the first replica at the end of the run."""
    pool = cluster.replicas[0].pool
    assert isinstance(pool, CachingPool)
    check_cache(pool.cache)
    return pool.free_blocks, pool.cache.idle_blocks


def test_a_prompt_that_begins_like_an_earlier_one_is_computed_from_where_they_part() -> None:
    load = sharing(trace([0.0, 1.0], [14, 14], [1, 1]), [[1, 2, 3], [1, 2, 4]])
    cluster = serve(caching(), load)
    assert cached(cluster) == [0, 8]
    assert prefills(cluster) == [14, 6]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    load = sharing(trace([0.0, 1.0], [12, 12], [1, 1]), [[1, 2, 3], [1, 2, 3]])
    assert cached(serve(caching(), load)) == [0, 8]  # two of three blocks, as the third ends with the last token


def test_what_is_found_is_attended_to_and_not_computed() -> None:
    # 6 tokens over 8 cached ones: 8 x 6 + 21 pairs.
    load = sharing(trace([0.0, 1.0], [14, 14], [1, 1]), [[1, 2], [1, 2]])
    assert serve(caching(), load).recorder.step_runs(0)["prefill_pairs"].tolist() == [14 * 15 // 2, 8 * 6 + 21]


def test_two_who_compute_the_same_at_once_both_compute_it() -> None:
    load = sharing(trace([0.0, 0.0, 1.0], [9, 9, 9], [1, 1, 1]), [[1, 2]] * 3)
    cluster = serve(caching(), load)
    assert cached(cluster) == [0, 0, 8]
    assert prefills(cluster) == [18, 1]


def test_a_hit_is_counted_once_however_many_chunks_follow() -> None:
    policy = Chunked(max_num_batched_tokens=5, max_num_seqs=10)
    load = sharing(trace([0.0, 1.0], [9, 20], [1, 1]), [[1, 2], [1, 2]])
    cluster = serve(replace(caching(), scheduler=policy), load)
    assert cached(cluster) == [0, 8]
    assert prefills(cluster) == [5, 4, 5, 5, 2]


def test_an_answer_can_be_found_by_the_next_turn() -> None:
    # 6 prompt and 7 output tokens make 13, of which the last is not stored: three blocks.
    load = sharing(trace([0.0, 1.0], [6, 20], [7, 1]), [[1, 2, 3], [1, 2, 3, 4]])
    assert cached(serve(caching(), load)) == [0, 12]


def test_a_shared_block_takes_room_once() -> None:
    # While the first decodes, it holds 3 blocks; the second hits 2 of them and takes 2 of its own. In the end the first
    # has stored 17 tokens in 5 blocks, and the second's 2 remain too.
    load = sharing(trace([0.0, 0.015], [9, 13], [9, 1]), [[1, 2], [1, 2]])
    cluster = serve(caching(), load)
    used = {(row["prefill_tokens"], row["kv_blocks_used"]) for row in cluster.recorder.step_runs(0)}
    assert (5, 5) in used
    assert blocks(cluster) == (1000, 7)


def test_what_nobody_holds_is_given_up_when_its_room_is_needed_longest_idle_first() -> None:
    # Six blocks. The first leaves 3, the second takes 3 others. The third, of 3, takes what the first left: its last
    # block goes first, which had no id, then the ids from the last to the first.
    load = sharing(
        trace([0.0, 1.0, 2.0, 3.0, 4.0], [9, 9, 9, 9, 9], [1] * 5),
        [[1, 2], [3, 4], [5, 6], [3, 4], [1, 2]],
    )
    cluster = serve(caching(n_blocks=6), load)
    assert cached(cluster) == [0, 0, 0, 8, 0]
    assert blocks(cluster)[0] == 6


@pytest.mark.parametrize("chains", [[[1, 2], [3, 4]], [[1], [3]], [[], []], None])
def test_who_was_preempted_finds_again_what_is_left_of_its_own(chains: list[list[int]] | None) -> None:
    # Five blocks hold two prompts of two; to grow, both need one more, and the second is preempted. Its two stay idle,
    # but to hold them and one for its next token takes three of two free ones. When the first is done, at 40 ms, they
    # are still present: of its prompt and first token it computes the token alone. Ids of the load make no difference.
    load = trace([0.0, 0.0], [8, 8], [4, 3])
    setup = keeping(n_blocks=5) if chains is None else caching(n_blocks=5)
    cluster = serve(setup, load if chains is None else sharing(load, chains))
    columns = cluster.recorder.columns
    assert columns["n_preemptions"].tolist() == [0, 1]
    assert prefills(cluster) == [16, 1]
    assert columns["n_recomputed_tokens"].tolist() == [0, 0]
    assert cached(cluster) == [0, 0]  # a hit after a preemption does not count
    assert instants(cluster, "finish_ps") == [40, 60]


def test_who_was_preempted_computes_all_again_where_blocks_do_not_keep_their_contents() -> None:
    cluster = serve(replace(keeping(n_blocks=5), keeps_contents=False), trace([0.0, 0.0], [8, 8], [4, 3]))
    assert prefills(cluster) == [16, 9]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0, 8]


def test_a_blocked_request_fits_once_others_have_taken_a_block_of_what_it_finds() -> None:
    # Six blocks, chunks of one. At 20 ms the last has two blocks and one token, and is preempted, as it and the first
    # need two blocks and one is free. At 30 the third leaves a block: the last needs three, the two it would find and
    # one, and three are free, but the second takes one in the next step. It takes one that the last would find, so at
    # 40 two are needed and free. The last computes four tokens, and the fifth in a block that the first has left at 50.
    policy = Chunked(long_prefill_token_threshold=4, max_num_seqs=10, scheduler_reserve_full_isl=False)
    load = trace([0.0] * 4, [3, 2, 2, 8], [5, 8, 3, 2])
    cluster = serve(replace(keeping(n_blocks=6), scheduler=policy), load)
    assert instants(cluster, "preempted_ps") == [0, 0, 0, 20]
    assert instants(cluster, "finish_ps") == [50, 80, 30, 60]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0, 0, 0, 4]


def test_free_blocks_are_taken_in_the_order_in_which_they_were_freed_and_last_blocks_first() -> None:
    # Ten blocks, three each for two requests that are preempted one after the other. The second takes its own back,
    # which leaves in order: four that never held anything, and the three of the first, its last one first.
    pool = KvPool(10, plain_blocks(4))
    left = LeftBlocks(pool)
    pool.take(6, from_reserved=False)
    for request in ("first", "second"):
        pool.release(3)
        left.leave(request, 3)
    assert (left.hold("second"), pool.free_blocks) == (3, 7)
    found = []
    while pool.free_blocks:
        found.append(left.n_found("first"))
        pool.take(1, from_reserved=False)
    assert found == [3, 3, 3, 3, 3, 2, 1]
    pool.release(3)  # what is gone is gone
    assert left.n_found("first") == 0


@pytest.mark.parametrize(
    ("id_tokens", "block_size", "n_shared", "prompt_tokens", "n_cached"),
    [
        (512, 16, 2, 1500, 1024),
        (512, 16, 2, 1024, 1008),  # one token is computed, and with it its block
        (512, 544, 2, 1500, 544),  # of 1,024 shared tokens
        (512, 544, 1, 1500, 0),
        (16, 64, 11, 200, 128),  # of 176
        (16, 128, 11, 177, 128),
        (6, 4, 3, 20, 16),  # of 18; the second block lies in two of the trace
        (6, 4, 1, 20, 4),
        (4, 6, 3, 13, 12),
        (4, 6, 3, 12, 6),
    ],
)
def test_a_hit_is_whole_blocks_of_the_engine_whatever_those_of_the_trace(
    id_tokens: int, block_size: int, n_shared: int, prompt_tokens: int, n_cached: int
) -> None:
    own, shared = range(100, 200), [*range(n_shared)]
    load = trace([0.0, 1.0, 2.0], [prompt_tokens] * 3, [1] * 3)
    chains = [[*shared, *own[first:]][: prompt_tokens // id_tokens] for first in (0, 20)] + [[50]]
    setup = replica_setup(Chunked(max_num_batched_tokens=2000), LineCost(step=10 * MS), 1000, block_size)
    cluster = serve(replace(setup, caches_prefixes=True), sharing(load, chains, id_tokens))
    assert cached(cluster) == [0, n_cached, 0]
    assert prefills(cluster) == [prompt_tokens, prompt_tokens - n_cached, prompt_tokens]


def test_routers_look_a_prompt_up_in_the_blocks_of_each_replica() -> None:
    # Blocks of 32 on the first replica share nothing of 24 tokens, blocks of 16 on the second share 16.
    setups = [replace(caching(), layers=plain_blocks(size)) for size in (32, 16)]
    load = sharing(trace([0.0, 0.001, 1.0], [30] * 3, [1] * 3), [[1, 2, 3]] * 3, 8)
    cluster = serve(setups, load, PrefixAffinity())
    assert cluster.recorder.columns["replica"].tolist() == [0, 1, 1]
    assert cached(cluster) == [0, 0, 16]


def test_a_policy_that_walks_the_queue_changes_no_request() -> None:
    states = []

    class Watching(Chunked):
        def plan(self, view: ReplicaView) -> StepPlan:
            before = [(request.prefilled_tokens, request.phase) for request in view.queue]
            left = [(request.prefill_left_tokens, request.idle_hit_blocks) for request in view.queue]
            states.append((before, left))
            assert before == [(request.prefilled_tokens, request.phase) for request in view.queue]
            return super().plan(view)

    load = sharing(trace([0.0, 1.0], [14, 14], [1, 1]), [[1, 2, 3], [1, 2, 4]])
    cluster = serve(replace(caching(), scheduler=Watching()), load)
    assert states == [([(0, Phase.WAITING)], [(14, 0)]), ([(0, Phase.WAITING)], [(6, 2)])]
    assert cached(cluster) == [0, 8]


def test_affinity_sends_turns_of_a_conversation_to_the_replica_that_knows_it() -> None:
    chains = [[10], [20], [10, 11], [20, 21], [10, 11, 12]]
    load = sharing(trace([0.0, 0.001, 1.0, 1.001, 2.0], [5, 5, 9, 9, 13], [3] * 5), chains)
    cluster = serve([caching(), caching()], load, PrefixAffinity())
    assert cluster.recorder.columns["replica"].tolist() == [0, 1, 0, 1, 0]
    assert cached(cluster) == [0, 0, 4, 4, 8]


def test_everything_is_free_when_all_is_done() -> None:
    rng = np.random.default_rng(0)
    chains = [list(range(100 * first, 100 * first + 6)) for first in rng.integers(0, 5, 200)]
    load = sharing(trace(sorted(rng.uniform(0, 2, 200).tolist()), [25] * 200, [5] * 200), chains)
    cluster = serve(caching(n_blocks=60), load)
    free_blocks, idle_blocks = blocks(cluster)
    assert free_blocks == 60
    assert 0 < idle_blocks <= 60


@pytest.mark.skipif(not MOONCAKE.is_file(), reason=f"{MOONCAKE} is not there")
def test_an_unbounded_cache_finds_what_mooncakes_conversations_share() -> None:
    """One replica, steps that take no time, unlimited blocks: a set of ids gives the hits, request by request."""
    load = read_trace(MOONCAKE)
    load = replace(load, arrival_s=np.linspace(0.0, 10.0, len(load)))
    assert load.prefixes is not None
    seen: set[int] = set()
    result = []
    for row, prompt in enumerate(load.prompt_tokens.tolist()):
        n, chain = 0, load.prefixes.of(row)
        while n < min(len(chain), (prompt - 1) // 512) and chain[n] in seen:
            n += 1
        result.append(512 * n)
        seen.update(chain)
    policy = Chunked(max_num_batched_tokens=10**6, max_num_seqs=10)
    setup = replica_setup(policy, LineCost(step=1), n_blocks=10**7, block_size=16, max_model_len=10**6)
    cluster = serve(replace(setup, caches_prefixes=True), load)
    assert cached(cluster) == result
    assert sum(result) / load.prompt_tokens.sum() == pytest.approx(0.373, abs=0.001)


def test_a_copy_of_what_others_computed_takes_no_room_from_its_owner_once_they_have_gone() -> None:
    # Both begin with the same three ids and compute them at once; the longer one needs all blocks but one in the end.
    setup = replace(
        replica_setup(Chunked(max_num_batched_tokens=5, scheduler_reserve_full_isl=False), n_blocks=41, block_size=1),
        caches_prefixes=True,
    )
    load = trace([0.0] * 5, [1, 1, 1, 4, 40], [1, 1, 1, 2, 1])
    ids = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    cluster = serve(setup, replace(load, prefixes=Prefixes.from_ids(1, ids, np.array([0, 0, 0, 0, 4, 8]))))
    assert (cluster.recorder.columns["status"] == FINISHED).all()
