"""Batches in a pipeline, on cases small enough to work by hand. A step takes 10 ms in all."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.engine.lock_step import Pipeline
from simserve.engine.replica_setup import ReplicaSetup
from simserve.schedulers.chunked import Chunked
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

TEN_MS = LineCost(step=10 * MS)


def staged(n_stages: int, cost: LineCost = TEN_MS, budget_tokens: int = 100) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=budget_tokens, max_num_seqs=10)
    return replace(replica_setup(policy, cost, n_blocks=1000, block_size=1), n_stages=n_stages)


def test_a_batch_waits_before_a_stage_until_the_one_before_has_left_it() -> None:
    pipeline = Pipeline(2)
    assert pipeline.enter(0, 20) == (10, 20)
    assert pipeline.enter(0, 8) == (14, 24)  # 10 to 14, then the second stage is free at 20
    assert pipeline.enter(30, 20) == (40, 50)
    assert pipeline.enter(32, 4) == (42, 52)


def test_a_request_alone_is_as_quick_as_without_a_pipeline() -> None:
    load = trace([0.0], [8], [4])
    assert instants(serve(staged(1), load), "finish_ps") == instants(serve(staged(2), load), "finish_ps") == [40]


def test_two_lanes_in_two_stages_do_not_wait_for_each_other() -> None:
    # The second request enters when the first has left the first stage, 5 ms later, and they never collide again.
    cluster = serve(staged(2), trace([0.0, 0.0], [8, 8], [4, 4]))
    assert instants(cluster, "first_token_ps") == [10, 15]
    assert instants(cluster, "finish_ps") == [40, 45]


def test_a_long_prompt_in_one_lane_holds_up_the_other() -> None:
    # A step takes 10 ms and 1 ms per token, half of it in each stage. a's prefill ends at 11, its second token leaves
    # the first stage at 16.5 and the second at 22. b's prompt of 30 comes at 16 and has the first stage from 16.5 to
    # 36.5, the second until 56.5. a's third token waits for both, and comes at 62, its fourth at 73.
    cost = LineCost(step=10 * MS, token=1 * MS)
    cluster = serve(staged(2, cost), trace([0.0, 0.016], [1, 30], [4, 1]))
    ends = [
        cluster.recorder.step_runs(lane)["start_ps"] + cluster.recorder.step_runs(lane)["first_ps"] for lane in (0, 1)
    ]
    assert [(end / MS).tolist() for end in ends] == [[11, 22, 62, 73], [56.5]]


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    # Three chunks enter at 0, 5 and 10 ms; the last leaves the second stage at 20, not at 30.
    cluster = serve(staged(2, budget_tokens=10), trace([0.0], [30], [2]))
    assert instants(cluster, "first_token_ps") == [20]
    assert instants(cluster, "finish_ps") == [30]


def test_full_lanes_give_as_many_steps_as_one_replica_of_the_same_stages_would() -> None:
    n = 400
    load = trace(np.zeros(n).tolist(), [1] * n, [50] * n)
    policy = Chunked(max_num_batched_tokens=1000, max_num_seqs=100)
    setup = replica_setup(policy, TEN_MS, n_blocks=10_000, block_size=1)
    alone, staged_ends = (max(instants(serve(replace(setup, n_stages=s), load), "finish_ps")) for s in (1, 4))
    # 100 slots at 10 ms a token, against four times as many slots of which a batch leaves every 2.5 ms.
    assert alone == 4 * 500
    assert staged_ends == pytest.approx(500, rel=0.02)
