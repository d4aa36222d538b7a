"""Local decode on prefill replicas, by hand. A step takes 10 ms, a token 1 ms on the link; a block is one token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

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
from simserve.splitters.mixed import Mixed
from simserve.state.request import Request
from simserve.state.view import LoadView
from simserve.workload.trace import Trace
from tests.agreement import engine_steps
from tests.doubles import MS, LineCost, instants, replica_setup, trace

TIGHT = Mixed(max_prefill_waiting=2, max_decode_kv_frac=1.0)


def pool(role: Literal["prefill", "decode"], n_blocks: int = 1000) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10)
    return replace(replica_setup(policy, LineCost(step=10 * MS), n_blocks=n_blocks, block_size=1), role=role)


def serve(setups: list[ReplicaSetup], load: Trace, splitter: Splitter) -> Cluster:
    how = Disaggregation(RoundRobin(), LinkSpec(token_s=1e-3, latency_ps=0), splitter=splitter)
    cluster = Cluster(setups, RoundRobin(), Offered(load), router_seed=0, disaggregation=how)
    run_cluster(cluster)
    assert [replica.pool.free_blocks for replica in cluster.replicas] == [setup.n_blocks for setup in setups]
    return cluster


def steps_ms(cluster: Cluster, replica: int) -> list[tuple[int, int, int, int]]:
    """Return (start, end, prompt tokens, decoding requests) of each step."""
    return [
        (s["start_ps"] // MS, s["end_ps"] // MS, s["prefill_tokens"], s["decode_requests"])
        for s in engine_steps(cluster, replica)
    ]


def test_a_prefill_replica_answers_while_the_decode_side_has_no_room() -> None:
    # The decode replica has 9 blocks. The first goes there at 10, arrives at 15, and decodes until 45. The second (at
    # 12: 5 held and 5 more) and the third (at 30: 7 held, with the step in flight, and 3 more) stay: one decodes from
    # 22 on, and in its last step the other is prefilled. The fourth comes when there is room again.
    load = trace([0.0, 0.012, 0.030, 0.050], [5, 5, 3, 2], [4, 3, 2, 2])
    cluster = serve([pool("prefill"), pool("decode", n_blocks=9)], load, TIGHT)
    columns = cluster.recorder.columns
    assert columns["prefill_replica"].tolist() == [0, -1, -1, 0]
    assert columns["replica"].tolist() == [1, 0, 0, 1]
    assert steps_ms(cluster, 0) == [
        (0, 10, 5, 0),
        (12, 22, 5, 0),
        (22, 32, 0, 1),
        (32, 42, 3, 1),
        (42, 52, 0, 1),
        (52, 62, 2, 0),
    ]
    assert steps_ms(cluster, 1) == [(15, 25, 0, 1), (25, 35, 0, 1), (35, 45, 0, 1), (64, 74, 0, 1)]
    assert instants(cluster, "first_token_ps") == [10, 22, 42, 62]
    assert instants(cluster, "finish_ps") == [45, 42, 52, 74]
    assert instants(cluster, "transfer_ps") == [5, 0, 0, 2]


def test_decode_replicas_help_out_when_many_wait_on_the_prefill_side() -> None:
    # All arrive at once: two wait at the prefill replica, so the others are prefilled on the decode replica.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0] * 4, [5] * 4, [2] * 4), TIGHT)
    assert cluster.recorder.columns["prefill_replica"].tolist() == [0, 0, -1, -1]
    assert cluster.recorder.columns["replica"].tolist() == [1] * 4


def test_when_neither_side_has_room_nobody_moves() -> None:
    # 4 blocks hold no prompt of 5, so the first two wait on the prefill side; from then on it is full as well.
    load = trace([0.0] * 3, [3, 3, 2], [2] * 3)
    splitter = Mixed(max_prefill_waiting=2, max_decode_kv_frac=0.25)
    cluster = serve([pool("prefill"), pool("decode", n_blocks=4)], load, splitter)
    assert cluster.recorder.columns["prefill_replica"].tolist() == [-1, -1, 0]


def test_who_is_kept_is_cut_where_the_prefill_replica_ends() -> None:
    # The decode side holds 8 tokens, so 4 follow a prompt of 4; the prefill side holds 20, so 15 follow a prompt of 5.
    splitter = Mixed(max_prefill_waiting=9, max_decode_kv_frac=0.5)
    setups = [pool("prefill", n_blocks=20), pool("decode", n_blocks=8)]
    cluster = serve(setups, trace([0.0, 1.0], [4, 5], [50, 50]), splitter)
    assert cluster.recorder.columns["prefill_replica"].tolist() == [0, -1]
    assert list(cluster.rows.output_tokens[:2]) == [4, 15]


def test_who_is_kept_is_preempted_when_it_outgrows_the_memory_and_stays() -> None:
    # 12 blocks: two prompts of 5 leave room for two steps less one; the second is preempted and recomputes.
    splitter = Mixed(max_prefill_waiting=9, max_decode_kv_frac=0.1)
    setups = [pool("prefill", n_blocks=12), pool("decode", n_blocks=12)]
    cluster = serve(setups, trace([0.0, 0.0], [5, 5], [4, 4]), splitter)
    columns = cluster.recorder.columns
    assert columns["n_preemptions"].tolist() == [0, 1]
    assert (columns["replica"].tolist(), columns["prefill_replica"].tolist()) == ([0, 0], [-1, -1])
    # Together: prefill until 10, a token at 20, which fills all; the first alone until 40, then the second: its 5 + 2
    # tokens again until 50, and the last at 60.
    assert instants(cluster, "finish_ps") == [40, 60]


class Keeps(Splitter):
    """Returns "prefill" without setting `keeps`."""

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        return "prefill"


def test_a_splitter_that_keeps_must_have_said_so() -> None:
    with pytest.raises(PolicyError, match=r"Keeps\.where: must return 'apart' or 'local', got 'prefill'"):
        serve([pool("prefill"), pool("decode")], trace([0.0], [5], [2]), Keeps())
