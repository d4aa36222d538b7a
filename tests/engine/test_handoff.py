"""From prefill to decode replicas, on cases small enough to work by hand. A step takes 10 ms; a block is one token."""

from dataclasses import replace
from typing import Literal

import numpy as np

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import Link, LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Prefixes, Trace
from tests.doubles import MS, LineCost, instants, replica_setup, trace

ONE_MS_A_TOKEN = LinkSpec(token_s=1e-3, latency_ps=0)


def pool(role: Literal["prefill", "decode"], n_blocks: int = 1000, batch: int = 10) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=batch)
    return replace(replica_setup(policy, LineCost(step=10 * MS), n_blocks=n_blocks, block_size=1), role=role)


def serve(setups: list[ReplicaSetup], load: Trace, link: LinkSpec = ONE_MS_A_TOKEN) -> Cluster:
    how = Disaggregation(RoundRobin(), link)
    cluster = Cluster(setups, RoundRobin(), Offered(load), router_seed=0, disaggregation=how)
    run_cluster(cluster)
    return cluster


def test_the_transfer_falls_into_the_first_gap() -> None:
    # Prefill until 10, five tokens on the wire until 15, then three steps.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0], [5], [4]))
    assert instants(cluster, "first_token_ps") == [10]
    assert instants(cluster, "transfer_ps") == [5]
    assert instants(cluster, "finish_ps") == [45]
    assert cluster.recorder.columns["prefill_replica"].tolist() == [0]
    assert cluster.recorder.columns["replica"].tolist() == [1]


def test_latency_comes_on_top() -> None:
    link = LinkSpec(token_s=1e-3, latency_ps=3 * MS)
    assert instants(serve([pool("prefill"), pool("decode")], trace([0.0], [5], [4]), link), "finish_ps") == [48]


def test_an_answer_of_one_token_goes_nowhere() -> None:
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0], [5], [1]))
    assert instants(cluster, "finish_ps") == [10]
    assert cluster.recorder.columns["prefill_replica"].tolist() == [-1]
    assert len(cluster.recorder.step_runs(1)) == 0


def test_transfers_of_a_port_follow_each_other() -> None:
    # Both prompts end at 10. The first arrives at 15 and decodes 15 to 25, 25 to 35; the second arrives at 20, in the
    # middle of a step, and joins at 25.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0, 0.0], [5, 5], [3, 2]))
    assert instants(cluster, "transfer_ps") == [5, 10]
    assert instants(cluster, "finish_ps") == [35, 35]


def test_two_senders_share_the_receivers_port_and_two_receivers_do_not_wait() -> None:
    load = trace([0.0, 0.0], [5, 5], [2, 2])
    one = serve([pool("prefill"), pool("prefill"), pool("decode")], load)
    two = serve([pool("prefill"), pool("prefill"), pool("decode"), pool("decode")], load)
    assert instants(one, "transfer_ps") == [5, 10]
    assert instants(two, "transfer_ps") == [5, 5]


def test_all_replicas_may_share_one_port() -> None:
    load = trace([0.0, 0.0], [5, 5], [2, 2])
    shared = replace(ONE_MS_A_TOKEN, is_shared=True)
    cluster = serve([pool("prefill"), pool("prefill"), pool("decode"), pool("decode")], load, shared)
    assert instants(cluster, "transfer_ps") == [5, 10]


def test_without_blocks_on_the_decode_side_the_prompt_stays_where_it_is() -> None:
    # Room for one: 5 prompt tokens and 2 output tokens. The second is fetched when the first is done, at 35, and until
    # then holds 5 of 12 blocks of the prefill replica, so the third prompt, of 8, must wait for them.
    load = trace([0.0, 0.0, 0.001], [5, 5, 8], [3, 2, 1])
    cluster = serve([pool("prefill", n_blocks=12), pool("decode", n_blocks=9)], load)
    assert instants(cluster, "transfer_wait_ps") == [0, 25, 0]
    assert instants(cluster, "transfer_ps") == [5, 30, 0]
    # Its blocks are freed as each prompt is fetched: 5 at 15, which makes 7, and 5 more at 40.
    assert instants(cluster, "scheduled_ps") == [0, 0, 40]


def test_a_decode_replica_takes_in_no_more_than_it_has_seats() -> None:
    load = trace([0.0, 0.0], [5, 5], [3, 2])
    cluster = serve([pool("prefill"), pool("decode", batch=1)], load)
    assert instants(cluster, "transfer_wait_ps") == [0, 25]


def test_who_is_preempted_on_the_decode_side_computes_again_there() -> None:
    # 14 blocks hold two prompts of 5 and four more tokens; the second is preempted at its third token and recomputes 5
    # and 2 tokens when the first is done.
    load = trace([0.0, 0.0], [5, 5], [6, 4])
    cluster = serve([pool("prefill"), pool("decode", n_blocks=14)], load, LinkSpec(1e-9, 0))
    columns = cluster.recorder.columns
    assert columns["n_preemptions"].tolist() == [0, 1]
    assert columns["replica"].tolist() == [1, 1]
    assert [row["prefill_tokens"] for row in cluster.recorder.step_runs(1) if row["prefill_tokens"]] == [7]


def test_what_the_decode_side_has_of_a_prompt_is_not_sent_and_takes_no_blocks_twice() -> None:
    # The first turn leaves 8 of its 9 tokens on the decode side at 45, and the second, of 12, begins with them: 4 are
    # sent, 110 to 114. A third of the same 12 is computed at 120; at the boundary at 124 the second holds 13 blocks and
    # needs one more. The third finds 11, as the last token is always sent, and has room for it and the next.
    caching = [replace(each, caches_prefixes=True) for each in (pool("prefill"), pool("decode", n_blocks=16))]
    ids = np.array([*range(9), *range(12), *range(12)])
    load = trace([0.0, 0.1, 0.11], [5, 12, 12], [4, 3, 2])
    cluster = serve(caching, replace(load, prefixes=Prefixes.from_ids(1, ids, np.array([0, 9, 21, 33]))))
    assert cluster.recorder.columns["decode_cached_tokens"].tolist() == [0, 8, 11]
    assert instants(cluster, "transfer_ps") == [5, 4, 5]
    assert instants(cluster, "finish_ps") == [45, 134, 144]


def test_a_prompt_too_long_for_the_decode_side_is_refused_at_the_door() -> None:
    cluster = serve([pool("prefill"), pool("decode", n_blocks=20)], trace([0.0, 0.0], [20, 15], [5, 9]))
    assert cluster.recorder.columns["status"].tolist() == [2, 1]
    assert cluster.rows.output_tokens.tolist() == [5, 5]  # cut at the capacity of the decode side


def test_a_port_is_busy_for_the_bytes_and_not_for_the_latency() -> None:
    link = Link(LinkSpec(token_s=1e-3, latency_ps=7 * MS))
    (one,), (other,), (third,) = link.ports(), link.ports(), link.ports()
    assert link.arrival_ps(5, (one, other), 0) == 12 * MS
    assert link.arrival_ps(2, (one, third), 1 * MS) == 14 * MS  # through the first port at 7, through the third at 3
    assert link.arrival_ps(4, (third, other), 2 * MS) == 16 * MS  # at 3 to 7, at 5 to 9: no port waits for the other
    assert (one.free_at_ps, other.free_at_ps, third.free_at_ps) == (7 * MS, 9 * MS, 7 * MS)
