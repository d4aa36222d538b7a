"""Requests prefilled remotely and locally. A step takes 10 ms; a block is one token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.replica_setup import ReplicaSetup
from simserve.errors import PolicyError
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.splitters.base import Splitter, Where
from simserve.splitters.load import LoadSplitter
from simserve.splitters.prompt_length import PromptLength
from simserve.state.request import Request
from simserve.state.view import LoadView
from simserve.workload.trace import Trace
from tests.doubles import MS, LineCost, instants, replica_setup, trace

LONG = PromptLength(min_prompt_tokens=5)


def pool(
    role: Literal["prefill", "decode", "both"],
    n_blocks: int = 1000,
    batch: int = 10,
    policy: Literal["fcfs", "priority"] = "fcfs",
) -> ReplicaSetup:
    scheduler = Chunked(max_num_batched_tokens=100, max_num_seqs=batch, policy=policy)
    return replace(replica_setup(scheduler, LineCost(step=10 * MS), n_blocks=n_blocks, block_size=1), role=role)


def serve(setups: list[ReplicaSetup], load: Trace, splitter: Splitter) -> Cluster:
    how = Disaggregation(RoundRobin(), LinkSpec(token_s=1e-3, latency_ps=0), splitter=splitter)
    cluster = Cluster(setups, RoundRobin(), Offered(load), router_seed=0, disaggregation=how)
    run_cluster(cluster)
    assert [replica.pool.free_blocks for replica in cluster.replicas] == [setup.n_blocks for setup in setups]
    return cluster


def test_a_decode_replica_computes_short_prompts_itself() -> None:
    # The long one as usual: 10, 15, then three steps. The short one at once: prefill until 10, a step until 20.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0, 0.0], [5, 4], [4, 2]), LONG)
    columns = cluster.recorder.columns
    assert (columns["prefill_replica"].tolist(), columns["replica"].tolist()) == ([0, -1], [1, 1])
    assert instants(cluster, "first_token_ps") == [10, 10]
    assert instants(cluster, "finish_ps") == [50, 20]  # the long one joins at the end of that step
    assert instants(cluster, "transfer_ps") == [5, 0]


def test_where_there_are_replicas_of_both_roles_these_do() -> None:
    cluster = serve([pool("both"), pool("prefill"), pool("decode")], trace([0.0, 0.0], [5, 4], [4, 2]), LONG)
    columns = cluster.recorder.columns
    assert (columns["prefill_replica"].tolist(), columns["replica"].tolist()) == ([1, -1], [2, 0])
    assert instants(cluster, "finish_ps") == [45, 20]


def test_who_is_to_be_computed_at_a_decode_replica_queues_behind_those_who_came_before() -> None:
    # 8 blocks: the long prompt and three tokens. It is handed over at 10 and decodes 15 to 25 and 25 to 35. A second
    # long one, handed over at 20, finds no room, so the short one of 22, which would, waits for it: both start at 35.
    load = trace([0.0, 0.010, 0.022], [5, 5, 2], [3, 2, 1])
    cluster = serve([pool("prefill"), pool("decode", n_blocks=8)], load, LONG)
    assert instants(cluster, "transfer_wait_ps") == [0, 15, 0]
    assert instants(cluster, "scheduled_ps") == [0, 10, 35]


def test_in_a_decode_pool_the_better_priority_is_first_wherever_its_prompt_is_computed() -> None:
    # The first holds 12 blocks of 20 at 22, and one more each step until 72. The second, of 10, is computed at 30 and
    # lacks room. So a short one that comes at 45 waits behind it, with a worse priority; with a better one it starts at
    # the next boundary.
    load = trace([0.0, 0.02, 0.045], [12, 10, 3], [6, 2, 1])
    setups = [pool("prefill"), pool("decode", n_blocks=20, policy="priority")]
    for priority, starts_ms in ((5, 72), (-1, 52)):
        cluster = serve(setups, replace(load, priority=np.array([0, 0, priority])), LONG)
        assert instants(cluster, "transfer_wait_ps") == [0, 42, 0]
        assert instants(cluster, "scheduled_ps") == [0, 20, starts_ms]


def test_and_prompts_that_were_computed_together_are_let_in_by_it() -> None:
    # One slot. All are computed at 10; the last has the best priority, is sent until 15 and leaves at 35.
    load = replace(trace([0.0] * 3, [5] * 3, [3] * 3), priority=np.array([1, 1, 0]))
    cluster = serve([pool("prefill"), pool("decode", batch=1, policy="priority")], load, LONG)
    assert instants(cluster, "transfer_wait_ps") == [25, 50, 0]


def test_seats_that_are_promised_are_taken() -> None:
    # One slot: the long prompt has it from 10 on, so the short one that comes at 12 begins when it is done, at 25.
    cluster = serve([pool("prefill"), pool("decode", batch=1)], trace([0.0, 0.012], [5, 4], [2, 1]), LONG)
    assert instants(cluster, "scheduled_ps") == [0, 25]


def test_by_load_only_as_many_as_a_prefill_replica_may_have() -> None:
    load = trace([0.0] * 4, [5] * 4, [2] * 4)
    cluster = serve([pool("prefill"), pool("decode")], load, LoadSplitter(max_outstanding=2))
    assert cluster.recorder.columns["prefill_replica"].tolist() == [0, 0, -1, -1]


def test_by_load_short_prompts_are_not_handed_over_either() -> None:
    load = trace([0.0] * 2, [5, 4], [2] * 2)
    cluster = serve([pool("prefill"), pool("decode")], load, LoadSplitter(max_outstanding=9, min_prompt_tokens=5))
    assert cluster.recorder.columns["prefill_replica"].tolist() == [0, -1]


def test_each_side_has_its_own_longest_prompt() -> None:
    # 8 blocks hold a prompt of 7 and a token. The prefill side could compute more than the decode side holds.
    load = trace([0.0, 0.0], [8, 7], [1, 1])
    cluster = serve(
        [pool("prefill"), pool("both", n_blocks=8), pool("decode")], load, PromptLength(min_prompt_tokens=9)
    )
    assert cluster.recorder.columns["status"].tolist() == [2, 1]


class Confused(Splitter):
    """Returns a number."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        return 1  # type: ignore[return-value]


class Broken(Splitter):
    """Raises."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("splitter", "text"),
    [
        (Confused(), "Confused.where: must return 'apart' or 'local', got 1"),
        (Broken(), "Broken.where: must not raise, got 'ZeroDivisionError: by zero'"),
    ],
)
def test_a_splitter_that_breaks_the_rules_is_named(splitter: Splitter, text: str) -> None:
    with pytest.raises(PolicyError, match="of simulated time") as error:
        serve([pool("prefill"), pool("decode")], trace([0.0], [5], [2]), splitter)
    assert text in str(error.value)
    assert str(error.value).count("simulated time") == 1
