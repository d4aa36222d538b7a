"""TensorRT-LLM's policies on cases small enough to work by hand. A step takes 10 ms."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.engine.cluster import Cluster
from simserve.schedulers.trtllm import TrtLlm
from simserve.workload.trace import Prefixes
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

TEN_MS = LineCost(step=10 * MS)


def test_whole_prompts_join_the_decoding_requests() -> None:
    load = trace([0.0, 0.015], [8, 500], [4, 1], max_tokens=[9, 9])
    rows = serve(replica_setup(TrtLlm(), TEN_MS), load).recorder.step_runs(0)
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows] == [(8, 0), (0, 1), (500, 1), (0, 1)]


@pytest.mark.parametrize(("prompt_tokens", "scheduled_ms", "blocked_by"), [(9, 20, 0), (10, 40, 3)])
def test_a_whole_prompt_must_fit_what_decoding_leaves_of_a_step(
    prompt_tokens: int, scheduled_ms: int, blocked_by: int
) -> None:
    policy = TrtLlm(max_num_tokens=10, max_batch_size=4)
    load = trace([0.0, 0.015], [8, prompt_tokens], [4, 1], max_tokens=[9, 9])
    cluster = serve(replica_setup(policy, TEN_MS), load)
    # The first request decodes until 40 ms and leaves 9 of the 10 tokens.
    assert instants(cluster, "scheduled_ps") == [0, scheduled_ms]
    assert cluster.recorder.step_runs(0)["blocked_by"].tolist()[2] == blocked_by


def test_a_prompt_longer_than_a_step_is_refused_unless_it_may_be_cut() -> None:
    reason = "prompt longer than max_num_tokens, and enable_chunked_context is off"
    assert TrtLlm(max_num_tokens=100).never_fits(101) == reason
    assert TrtLlm(max_num_tokens=100).never_fits(100) is None
    assert TrtLlm(max_num_tokens=100, enable_chunked_context=True).never_fits(101) is None


def test_chunks_are_whole_blocks_of_what_decoding_leaves() -> None:
    policy = TrtLlm(max_num_tokens=16, max_batch_size=4, enable_chunked_context=True)
    setup = replica_setup(policy, TEN_MS, n_blocks=100, block_size=4)
    rows = serve(setup, trace([0.0, 0.015], [4, 30], [10, 1], max_tokens=[20, 20])).recorder.step_runs(0)
    # 15 tokens are left of each step, and 12 of them are whole blocks; the last chunk is the rest.
    assert [(r["prefill_tokens"], r["decode_requests"]) for r in rows][:5] == [(4, 0), (0, 1), (12, 1), (12, 1), (6, 1)]


def test_a_reservation_to_the_longest_answer_keeps_the_next_one_out_and_nobody_is_paused() -> None:
    setup = replica_setup(TrtLlm(), TEN_MS, n_blocks=4, block_size=10)
    cluster = serve(setup, trace([0.0, 0.0], [10, 10], [15, 15], max_tokens=[15, 15]))
    # 25 tokens take 3 of the 4 blocks: the second waits for the first, which emits its 15 tokens by 150 ms.
    assert instants(cluster, "scheduled_ps") == [0, 150]
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 0]
    row = cluster.recorder.step_runs(0)[0]
    assert (row["kv_blocks_used"], row["kv_blocks_reserved"], row["blocked_by"]) == (1, 2, 2)


@pytest.mark.parametrize("max_num_tokens", [8192, 20])
def test_max_utilization_pauses_the_last_and_recomputes_it_when_it_fits_again(max_num_tokens: int) -> None:
    policy = TrtLlm(max_num_tokens=max_num_tokens, capacity_scheduler_policy="max_utilization")
    setup = replica_setup(policy, TEN_MS, n_blocks=4, block_size=10)
    cluster = serve(setup, trace([0.0, 0.0], [10, 10], [15, 15], max_tokens=[15, 15]))
    # Both fill their two blocks by 110 ms, with 11 output tokens. The second is paused; its 10 + 11 tokens take 3
    # blocks, free only when the first is done at 150 ms. Alone it is not limited to 20 tokens a step.
    assert instants(cluster, "scheduled_ps") == [0, 0]
    assert instants(cluster, "finish_ps") == [150, 190]
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 1]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0, 20]
    assert cluster.recorder.columns["preempted_ps"].tolist() == [0, 40 * MS]


def reusing(n_blocks: int, prompts: list[int], arrival_s: list[float], chains: list[list[int]]) -> Cluster:
    """Serve prompts of blocks of 4 tokens, each with 3 output tokens of at most 7."""
    setup = replace(replica_setup(TrtLlm(), TEN_MS, n_blocks, block_size=4), caches_prefixes=True)
    n = len(prompts)
    ids = np.array([block for chain in chains for block in chain], np.int64)
    prefixes = Prefixes.from_ids(4, ids, np.cumsum([0, *map(len, chains)]))
    return serve(setup, replace(trace(arrival_s, prompts, [3] * n, [7] * n), prefixes=prefixes))


@pytest.mark.parametrize(("n_blocks", "scheduled_ms"), [(7, 30), (8, 20)])
def test_all_blocks_of_a_request_must_be_free_though_it_finds_some_and_then_it_reserves_the_rest(
    n_blocks: int, scheduled_ms: int
) -> None:
    # 16 tokens are 4 blocks each. The second finds 2 that the first holds; 3 free blocks would be enough for it.
    cluster = reusing(n_blocks, [9, 9], [0.0, 0.015], [[1, 2], [1, 2]])
    assert instants(cluster, "scheduled_ps") == [0, scheduled_ms]
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 8]
    if n_blocks == 8:
        row = cluster.recorder.step_runs(0)[2]
        assert (row["kv_blocks_used"], row["kv_blocks_reserved"]) == (4, 2)  # 2 shared, 1 each, 1 more each at the end


def test_a_request_is_passed_over_while_another_computes_what_it_begins_with() -> None:
    cluster = reusing(100, [9, 9, 9], [0.0] * 3, [[1, 2], [1, 3], [4, 5]])
    assert instants(cluster, "scheduled_ps") == [0, 10, 0]
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 4, 0]
    assert [int(row["prefill_tokens"]) for row in cluster.recorder.step_runs(0)][:2] == [18, 5]


def test_prompts_that_are_all_there_are_not_passed_over() -> None:
    cluster = reusing(100, [8, 8, 8], [0.0, 1.0, 1.0], [[1, 2]] * 3)  # the last block is computed again by both
    assert instants(cluster, "scheduled_ps") == [0, 1000, 1000]
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 4, 4]


def test_no_more_requests_run_than_max_batch_size() -> None:
    cluster = serve(replica_setup(TrtLlm(max_batch_size=1), TEN_MS), trace([0.0] * 2, [8] * 2, [3] * 2, [9] * 2))
    assert instants(cluster, "scheduled_ps") == [0, 30]
