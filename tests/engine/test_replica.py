"""Laws of the replica, on cases small enough to work by hand. A step takes 10 ms unless noted otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simserve.catalog.layers import LayerGroup
from simserve.engine.decode import UnevenStepRun
from simserve.engine.recorder import FINISHED, REJECTED
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.step_run import StepRun
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.schedulers.trtllm import TrtLlm
from simserve.state.layer_blocks import KvGroup, LayerBlocks
from simserve.units import MAX_PS, PS_PER_S, EndsTooLate
from simserve.workload.trace import Prefixes
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

TEN_MS = LineCost(step=10 * MS)


def test_the_first_token_comes_at_the_end_of_its_step_and_never_before() -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.0], [100], [3]))
    assert instants(cluster, "scheduled_ps") == [0]
    assert instants(cluster, "first_token_ps") == [10]
    assert instants(cluster, "finish_ps") == [30]


def test_a_request_that_arrives_in_mid_step_waits_for_its_end() -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.0, 0.013], [8, 8], [9, 1]))
    assert instants(cluster, "scheduled_ps") == [0, 20]
    assert instants(cluster, "finish_ps") == [90, 30]


def test_a_request_that_arrives_as_a_step_ends_joins_the_next_step() -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.0, 0.02], [8, 8], [9, 1]))
    assert instants(cluster, "scheduled_ps") == [0, 20]


def test_an_answer_of_one_token_ends_with_its_prefill() -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.0], [8], [1]))
    assert instants(cluster, "first_token_ps") == instants(cluster, "finish_ps") == [10]
    assert len(cluster.recorder.step_runs(0)) == 1


def test_the_step_of_output_token_t_attends_prompt_plus_t_minus_1_keys() -> None:
    cluster = serve(replica_setup(Chunked(), LineCost(key=MS)), trace([0.0], [10], [4]))
    # The prompt reads its 10 keys; tokens 2, 3 and 4 read 11, 12 and 13.
    assert instants(cluster, "first_token_ps") == [10]
    assert instants(cluster, "finish_ps") == [10 + 11 + 12 + 13]


def test_a_chunk_after_c_cached_tokens_makes_q_times_c_plus_its_triangle_of_pairs() -> None:
    policy = Chunked(max_num_batched_tokens=4, max_num_seqs=1)
    cluster = serve(replica_setup(policy, LineCost(pair=MS)), trace([0.0], [10], [1]))
    pairs = [row["prefill_pairs"] for row in cluster.recorder.step_runs(0)]
    assert pairs == [4 * 0 + 10, 4 * 4 + 10, 2 * 8 + 3]
    assert sum(pairs) == 10 * 11 // 2
    assert instants(cluster, "first_token_ps") == [55]


def test_a_finish_and_an_arrival_at_one_instant_are_seen_in_that_order() -> None:
    """The finish at 20 ms empties replica 1 before the arrival at 20 ms is routed to the least loaded."""
    load = trace([0.0, 0.0, 0.02], [8, 8, 8], [5, 2, 1])
    cluster = serve([replica_setup(Chunked(), TEN_MS)] * 2, load, LeastOutstanding())
    assert cluster.recorder.columns["replica"].tolist() == [0, 1, 1]


def test_requests_of_one_instant_start_together() -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.005] * 3, [8] * 3, [1] * 3))
    assert instants(cluster, "first_token_ps") == [15, 15, 15]
    assert len(cluster.recorder.step_runs(0)) == 1


def test_when_blocks_run_out_the_request_admitted_last_is_preempted_and_computes_all_again() -> None:
    # Two prompts of 3 tokens on 4 blocks of 2 tokens. Both take 2 blocks; key 5 needs a fifth block in the second
    # decode step, so the younger gives up its 2 blocks, having stored 4 tokens and produced 2.
    setup = replica_setup(Chunked(), TEN_MS, n_blocks=4, block_size=2, max_model_len=8)
    cluster = serve(setup, trace([0.0, 0.0], [3, 3], [4, 3]))
    columns = cluster.recorder.columns
    assert columns["n_preemptions"].tolist() == [0, 1]
    assert columns["n_recomputed_tokens"].tolist() == [0, 4]
    # The older goes on to 40 ms. The younger needs 3 blocks for 5 tokens, and 4 are free at 40 ms.
    assert instants(cluster, "finish_ps") == [40, 50]
    assert columns["preempted_ps"].tolist() == [0, 20 * MS]


def test_a_preemption_leaves_the_time_of_the_first_token_alone() -> None:
    setup = replica_setup(Chunked(), TEN_MS, n_blocks=4, block_size=2, max_model_len=8)
    cluster = serve(setup, trace([0.0, 0.0], [3, 3], [4, 3]))
    assert instants(cluster, "first_token_ps") == [10, 10]


def test_a_preemption_frees_the_blocks_it_says_it_frees() -> None:
    setup = replica_setup(Chunked(), TEN_MS, n_blocks=4, block_size=2, max_model_len=8)
    rows = serve(setup, trace([0.0, 0.0], [3, 3], [4, 3])).recorder.step_runs(0)
    # Prefill of both, a step of both (blocks for 4 tokens are allocated), then the older alone with 2 blocks.
    assert [(r["decode_requests"], r["kv_blocks_used"]) for r in rows][:3] == [(0, 4), (2, 4), (1, 2)]


def test_half_done_prompts_that_hold_all_blocks_do_not_wait_for_each_other_forever() -> None:
    policy = Chunked(
        max_num_batched_tokens=4, max_num_seqs=2, long_prefill_token_threshold=2, scheduler_reserve_full_isl=False
    )
    setup = replica_setup(policy, TEN_MS, n_blocks=5, block_size=2, max_model_len=10)
    cluster = serve(setup, trace([0.0, 0.0], [8, 8], [1, 1]))
    assert cluster.recorder.n_with(FINISHED) == 2
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 1]


def test_a_half_done_prompt_without_blocks_preempts_the_last_request_which_waits_for_a_step() -> None:
    # The first prompt computes 4 of its 12 tokens a step. At 20 ms the second request, admitted after it, decodes with
    # two blocks of the four: it leaves, and would fit again at once with its first chunk.
    policy = Chunked(long_prefill_token_threshold=4, scheduler_reserve_full_isl=False)
    setup = replica_setup(policy, TEN_MS, n_blocks=4, block_size=4)
    cluster = serve(setup, trace([0.0, 0.0], [12, 4], [1, 4]))
    assert instants(cluster, "finish_ps") == [30, 60]
    assert cluster.recorder.columns["n_preemptions"].tolist() == [0, 1]
    assert cluster.recorder.columns["preempted_ps"].tolist() == [0, 10 * MS]


def test_a_prompt_that_can_never_fit_is_refused_with_a_reason() -> None:
    setup = replica_setup(Chunked(), TEN_MS, n_blocks=4, block_size=16)
    cluster = serve(setup, trace([0.0, 0.1], [64, 63], [5, 5]))
    columns = cluster.recorder.columns
    assert (columns["status"].tolist(), cluster.recorder.n_with(REJECTED)) == ([2, 1], 1)
    assert "max_model_len" in cluster.recorder.reasons[columns["status_reason"][0]]
    assert cluster.rows.output_tokens[1] == 1  # there is room for one token


def test_an_answer_stops_at_max_tokens() -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.0], [8], [50], max_tokens=[3]))
    assert instants(cluster, "finish_ps") == [30]
    assert cluster.rows.output_tokens[0] == 3


def test_a_prompt_above_an_unchunked_budget_is_refused() -> None:
    cluster = serve(replica_setup(PrefillFirst(max_num_batched_tokens=100), TEN_MS), trace([0.0], [101], [1]))
    assert cluster.recorder.n_with(REJECTED) == 1


def test_a_closed_loop_sends_the_next_request_the_instant_an_answer_ends() -> None:
    load = trace([0.0] * 4, [8] * 4, [2, 3, 2, 1])
    cluster = serve(replica_setup(Chunked(), TEN_MS), load, concurrency=2)
    assert [ps / MS for ps in cluster.rows.arrivals.tolist()] == [0, 0, 20, 30]
    assert instants(cluster, "finish_ps") == [20, 30, 40, 40]


def test_a_drain_limit_ends_the_run_and_says_who_was_still_there() -> None:
    limit_ps = int(0.035 * PS_PER_S)
    cluster = serve(replica_setup(Chunked(), TEN_MS), trace([0.0, 0.0], [8, 8], [2, 99]), drain_limit_ps=limit_ps)
    columns = cluster.recorder.columns
    assert columns["status"].tolist() == [1, 0]
    assert "drain_limit_s" in cluster.recorder.reasons[columns["status_reason"][1]]
    # Three steps were over at 35 ms: the second request has its first token and two more.
    assert cluster.recorder.spans(0)[-1].tolist() == (1, 0, 1, 10 * MS)
    assert cluster.recorder.step_runs(0)["n_steps"].sum() == 3


@pytest.mark.parametrize("kv_block_size", [1, 2, 16])
def test_blocks_in_use_are_those_of_whole_requests(kv_block_size: int) -> None:
    cluster = serve(replica_setup(Chunked(), TEN_MS, n_blocks=99, block_size=kv_block_size), trace([0.0], [30], [9]))
    pool = cluster.replicas[0].pool
    # 30 prompt tokens and 8 of 9 output tokens are stored: the last one never is.
    assert pool.total_blocks - pool.least_free_blocks == -(-38 // kv_block_size)


def test_steps_planned_ahead_let_newcomers_in_a_step_later() -> None:
    load = trace([0.0, 0.005, 0.010], [1, 1, 1], [6, 1, 1])
    for is_ahead, scheduled in ((False, [0, 10, 10]), (True, [0, 20, 20])):
        setup = replace(replica_setup(cost=TEN_MS), async_scheduling=is_ahead)
        assert instants(serve(setup, load), "scheduled_ps") == scheduled


@given(st.integers(1, 50), st.integers(0, 9), st.integers(1, 40), st.integers(0, 200))
def test_no_step_of_a_run_is_shorter_than_the_hosts_work(first_ps: int, growth_ps: int, n: int, least_ps: int) -> None:
    steps_ps = [first_ps + i * growth_ps for i in range(n)]
    run = StepRun()
    run.begin(7, first_ps, growth_ps, n)
    run.hold_to(least_ps)
    n_held = sum(step_ps <= least_ps for step_ps in steps_ps) if first_ps < least_ps else n
    assert run.n_steps == n_held  # longer ones are another run
    assert run.end_ps == 7 + sum(max(step_ps, least_ps) for step_ps in steps_ps[:n_held])
    uneven = UnevenStepRun(7, (7 + np.cumsum(steps_ps)).tolist())
    uneven.hold_to(least_ps)
    assert uneven.ends_ps == (7 + np.cumsum(np.maximum(steps_ps, least_ps))).tolist()
    assert (uneven.first_ps, uneven.end_ps) == (uneven.ends_ps[0] - 7, uneven.ends_ps[-1])


@given(st.integers(0, MAX_PS), st.integers(1, MAX_PS), st.floats(0, 1), st.integers(1, 10**6))
@example(0, 10**12, 1.0, 4096)
@example(MAX_PS - 5, 5, 0.0, 1)
@example(MAX_PS - 5, 6, 0.0, 1)
@example(0, MAX_PS // 4000, 0.0, 4000)
@example(0, 10**12, 0.0, 9_223_373)
@example(0, 10**12, 1.0, 4297)
def test_times_of_a_step_run_never_wrap(start_ps: int, first_ps: int, growth_frac: float, n: int) -> None:
    """Compiled, they are machine integers. No step grows by more than the first one takes, which reads all keys."""
    growth_ps = int(growth_frac * first_ps)
    end_ps = start_ps + n * first_ps + growth_ps * (n * (n - 1) // 2)
    run = StepRun()
    try:
        run.begin(start_ps, first_ps, growth_ps, n)
        assert run.end_ps == end_ps
    except EndsTooLate:
        assert end_ps > MAX_PS
    run.begin(start_ps // 2, 1, 0, n)
    try:
        run.hold_to(first_ps)
        assert run.end_ps == start_ps // 2 + n * first_ps
    except EndsTooLate:
        assert start_ps // 2 + n * first_ps > MAX_PS


def test_uneven_steps_that_end_too_late_are_refused() -> None:
    with pytest.raises(EndsTooLate):
        UnevenStepRun(MAX_PS - 5, [MAX_PS, 6 - MAX_PS])


def test_a_step_lasts_as_long_as_its_kernels_or_as_the_host_by_hand() -> None:
    """Kernels take 10 ms and 1 ms a key: 11 ms with the prompt, 12, 13, 14 and 15; the host 13.5 ms."""
    cost = LineCost(step=10 * MS, key=MS, host=13 * MS, host_row=MS // 2)
    cluster = serve(replica_setup(Chunked(), cost, block_size=1), trace([0.0], [1], [5]))
    assert [row["first_ps"] / MS for row in cluster.recorder.step_runs(0)] == [13.5, 13.5, 14]
    assert instants(cluster, "finish_ps") == [13.5 * 3 + 14 + 15]
    two = replace(cost, host_row=MS)  # the host: 14 ms, and 15 while another prompt of one token is in the step
    joined = serve(replica_setup(Chunked(), two, block_size=1), trace([0.0, 0.020], [1, 1], [3, 1]))
    assert instants(joined, "finish_ps") == [14 + 14 + 15, 28 + 15]


def grouped(
    n_blocks: int, *windows: LayerGroup, n_whole: int = 1, n_states: int = 0, cost: LineCost = TEN_MS
) -> ReplicaSetup:
    """Return a replica with blocks of four tokens, steps of eight, and one block a window for the same tokens."""
    groups = *(KvGroup(4, 1, group) for group in windows), KvGroup(4, n_whole)
    layers = LayerBlocks(groups, n_states, most_chunk=8)
    cost = replace(cost, windows=cost.windows or (0,) * len(windows))
    setup = replica_setup(Chunked(max_num_batched_tokens=8), cost, n_blocks, block_size=4, max_model_len=200)
    return replace(setup, layers=layers)


def test_a_block_that_a_window_frees_lets_a_waiting_request_start() -> None:
    """With 4 tokens the first request has a block, with 5 and 6 two, with 7 again one: its window is four tokens."""
    setup = grouped(2, LayerGroup("windowed", 1, 4), n_whole=0)
    cluster = serve(setup, trace([0.0, 0.015], [4, 4], [20, 1]))
    assert instants(cluster, "scheduled_ps") == [0, 40]
    assert [row["kv_blocks_used"] for row in cluster.recorder.step_runs(0)][:4] == [1, 1, 2, 2]


def test_a_request_holds_states_at_once_and_blocks_for_all_kinds_of_layers() -> None:
    """Nine tokens and the next: three blocks in whole layers, two in windows of four, one in chunks of eight; a state
    takes two."""
    groups = LayerGroup("windowed", 1, 4), LayerGroup("chunked", 1, 8)
    cluster = serve(grouped(100, *groups, n_states=2), trace([0.0], [9], [3]))
    used = [row["kv_blocks_used"] for row in cluster.recorder.step_runs(0)]
    # Two steps of the prompt: 3 x 2 blocks and states; then the block behind its window and both behind its chunk are
    # free (-1, -2), and all layers begin another. Before the decode step, the window needs the tokens from 6 on.
    assert used[:3] == [8, 8 - 1 - 2 + 3, 3 + 2 + 1 + 2]


def test_a_reservation_pays_for_shared_blocks_of_windows_too() -> None:
    """The second request shares the window behind its hit with the first; each has what it reserved at all times."""
    setup = grouped(40, LayerGroup("windowed", 1, 8), n_whole=0)
    each = setup.layers.most(17 + 20)
    setup = replace(setup, scheduler=TrtLlm(enable_chunked_context=True, max_num_tokens=8), caches_prefixes=True)
    same = Prefixes.from_ids(4, np.array([0, 1, 2, 3, 0, 1, 2, 3]), np.array([0, 4, 8]))
    cluster = serve(setup, replace(trace([0.0, 0.025], [17, 17], [20, 20]), prefixes=same))
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 16]
    blocks = [row["kv_blocks_used"] + row["kv_blocks_reserved"] for row in cluster.recorder.step_runs(0)]
    assert set(blocks) == {each, 2 * each}


def test_keys_rise_until_a_window_is_full_and_begin_anew_with_a_chunk() -> None:
    groups = LayerGroup("windowed", 1, 4), LayerGroup("chunked", 1, 5)
    cluster = serve(grouped(100, *groups, cost=LineCost(windows=(MS, 100 * MS))), trace([0.0], [2], [9]))
    ends = [(row["start_ps"], row["n_steps"]) for row in cluster.recorder.step_runs(0)]
    prompt = 3 * 3 + 2 + 100 * (3 * 3 + 2)  # three times the pairs, and the keys
    odd = 2  # the slopes of a batch of one
    keys = [(min(n, 4), (n - 1) % 5 + 1) for n in range(3, 11)]  # of the tokens 2 to 9
    assert instants(cluster, "finish_ps") == [prompt + odd * sum(window + 100 * chunk for window, chunk in keys)]
    assert [n_steps for _, n_steps in ends] == [1, 1, 2, 5]  # the window is full at 4 keys, chunks end at 5 and 10
