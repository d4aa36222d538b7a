"""Keys and values pushed to blocks allocated in advance, worked by hand. A step takes 10 ms; a block is one token; a
token takes a port 1 ms; bytes and notices arrive 1 ms after they leave."""

from dataclasses import replace
from typing import Literal

from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import Link, LinkSpec, Port
from simserve.engine.offered import Offered, Patience
from simserve.engine.recorder import TIMED_OUT
from simserve.engine.replica_setup import ReplicaSetup
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.workload.trace import Trace
from tests.doubles import MS, LineCost, instants, replica_setup, trace

LINK = LinkSpec(token_s=1e-3, latency_ps=1 * MS)


def pool(role: Literal["prefill", "decode"], n_blocks: int = 1000, batch: int = 10, budget: int = 100) -> ReplicaSetup:
    policy = Chunked(max_num_batched_tokens=budget, max_num_seqs=batch)
    return replace(replica_setup(policy, LineCost(step=10 * MS), n_blocks=n_blocks, block_size=1), role=role)


def serve(setups: list[ReplicaSetup], load: Trace, link: LinkSpec = LINK, patience: Patience | None = None) -> Cluster:
    how = Disaggregation(RoundRobin(), link, is_pushed=True)
    offered = Offered(load, patience=patience)
    cluster = Cluster(setups, RoundRobin(), offered, router_seed=0, disaggregation=how)
    run_cluster(cluster)
    assert [replica.pool.free_blocks for replica in cluster.replicas] == [
        setup.n_blocks for setup in setups for _ in range(setup.n_ranks)
    ]
    assert {replica.load.n_outstanding for replica in cluster.replicas} == {0}
    return cluster


def test_word_that_there_is_room_comes_before_the_prefill() -> None:
    # Blocks at 0, notice at 1, prefill until 11, five tokens on the wire until 16, arrival at 17, then three steps.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0], [5], [4]))
    assert instants(cluster, "scheduled_ps") == [1]
    assert instants(cluster, "first_token_ps") == [11]
    assert instants(cluster, "transfer_ps") == [6]
    assert instants(cluster, "finish_ps") == [47]
    assert cluster.recorder.columns["prefill_replica"].tolist() == [0]
    assert cluster.recorder.columns["replica"].tolist() == [1]


def test_a_prompt_waits_for_blocks_on_the_decode_side_before_it_is_computed() -> None:
    # Room for one: the first ends at 37, the second has room then, and its prefill is 38 to 48.
    cluster = serve([pool("prefill"), pool("decode", n_blocks=9)], trace([0.0, 0.0], [5, 5], [3, 2]))
    assert instants(cluster, "transfer_wait_ps") == [0, 37]
    assert instants(cluster, "scheduled_ps") == [1, 38]
    assert instants(cluster, "transfer_ps") == [6, 6]


def test_or_for_a_seat() -> None:
    cluster = serve([pool("prefill"), pool("decode", batch=1)], trace([0.0, 0.0], [5, 5], [3, 2]))
    assert instants(cluster, "scheduled_ps") == [1, 38]


def test_what_was_kept_for_an_answer_of_one_token_is_free_when_word_of_it_comes() -> None:
    # The first ends at 11; the decode side is notified at 12 and allocates for the second, whose prefill is 13 to 23.
    cluster = serve([pool("prefill"), pool("decode", n_blocks=9)], trace([0.0, 0.0], [5, 5], [1, 2]))
    assert instants(cluster, "scheduled_ps") == [1, 13]
    assert cluster.recorder.columns["prefill_replica"].tolist() == [-1, 0]
    assert cluster.replicas[1].batch.n_away == 0


def test_chunks_follow_each_other_while_the_next_is_computed() -> None:
    # 4 tokens until 11, 4 until 21, 2 until 31: through the port until 15, 25 and 33, the last arrives at 34.
    cluster = serve(
        [pool("prefill", budget=4, batch=4), pool("decode")], trace([0.0], [10], [2]), replace(LINK, n_layers=1)
    )
    assert instants(cluster, "first_token_ps") == [31]
    assert instants(cluster, "transfer_ps") == [3]


def test_after_the_prefill_only_the_last_layer_is_left_to_send() -> None:
    # Five layers of 1 ms are ready at 3, 5, 7, 9 and 11; the last is through at 12 and arrives at 13.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0], [5], [2]), replace(LINK, n_layers=5))
    assert instants(cluster, "transfer_ps") == [2]


def test_or_what_a_slow_link_has_not_kept_up_with() -> None:
    # Five layers of 3 ms from 3 on, without a pause: through at 18, arrival at 19; a whole prompt would arrive at 27.
    slow = replace(LINK, token_s=3e-3, n_layers=5)
    assert instants(serve([pool("prefill"), pool("decode")], trace([0.0], [5], [2]), slow), "transfer_ps") == [8]
    whole = replace(slow, n_layers=None)
    assert instants(serve([pool("prefill"), pool("decode")], trace([0.0], [5], [2]), whole), "transfer_ps") == [16]


def test_layers_wait_for_a_port_that_another_prompt_has_taken() -> None:
    # Both prompts are computed until 11, in one step: the layers of the first are through at 12, those of the second
    # follow all five, until 17.
    cluster = serve([pool("prefill"), pool("decode")], trace([0.0, 0.0], [5, 5], [2, 2]), replace(LINK, n_layers=5))
    assert instants(cluster, "transfer_ps") == [2, 7]


def test_each_stage_of_a_pipeline_sends_its_layers_while_the_next_one_computes() -> None:
    # Stages take 5 ms: a prompt has left the first at 6 and the second at 11. Each sends half of the layers at half of
    # the speed: as one chunk in 5 ms, until 11 and 16; as two layers, ready at 8.5 and 11, until 13.5.
    setups = [replace(pool("prefill"), n_stages=2), pool("decode")]
    for n_layers, transfer_ms in ((1, 6), (4, 3.5)):
        cluster = serve(setups, trace([0.0], [5], [2]), replace(LINK, n_layers=n_layers))
        assert instants(cluster, "first_token_ps") == [11]
        assert instants(cluster, "transfer_ps") == [transfer_ms]
    # In chunks of 4 tokens, the second enters at 6 and leaves at 11 and 16: the stages send in 4 ms, until 15 and 20.
    setups = [replace(pool("prefill", budget=4, batch=4), n_stages=2), pool("decode")]
    cluster = serve(setups, trace([0.0], [8], [2]), replace(LINK, n_layers=1))
    assert (instants(cluster, "first_token_ps"), instants(cluster, "transfer_ps")) == ([16], [5])


def test_lanes_of_a_pipeline_send_through_the_adapters_of_the_same_gpus() -> None:
    # Prompts of 10 enter at 1 and 6, and leave the stages at 6 and 11, and at 11 and 16. A stage sends one in 10 ms:
    # the first has the adapters until 16 and 21, the second until 26 and 31. As a whole after its prefill, each takes
    # 10 ms of all adapters: from 11 to 21, and until 31.
    setups = [replace(pool("prefill"), n_stages=2), pool("decode")]
    for n_layers in (1, None):
        cluster = serve(setups, trace([0.0, 0.0], [10, 10], [2, 2]), replace(LINK, n_layers=n_layers))
        assert instants(cluster, "first_token_ps") == [11, 16]
        assert instants(cluster, "transfer_ps") == [11, 16]


def test_the_closed_form_of_layers_is_that_of_one_after_another() -> None:
    for n_layers, step_ms, token_s, free_ms in [(3, 10, 1e-3, 0), (3, 10, 4e-3, 0), (4, 9, 2e-3, 30), (1, 7, 1e-3, 0)]:
        spec = LinkSpec(token_s, 0, n_layers=n_layers)
        port, other = Port(), Port()
        port.free_at_ps = at_ps = free_ms * MS
        layer_ps = -(-spec.busy_ps(5) // n_layers)
        for layer in range(1, n_layers + 1):
            ready_ps = (20 + step_ms) * MS - (n_layers - layer) * (step_ms * MS // n_layers)
            at_ps = max(at_ps, ready_ps) + layer_ps
        assert Link(spec).streamed_arrival_ps(5, (port, other), (20 * MS, (20 + step_ms) * MS)) == at_ps
        assert port.free_at_ps == at_ps


def test_one_that_gives_up_before_the_scheduler_sees_it_gives_its_blocks_back() -> None:
    # Steps are planned ahead. The second has notice at 5, during the step from 1 to 11, so the scheduler would see it a
    # step after that. It gives up at 10, leaves at 11, and its blocks are free at 12.
    ahead = replace(pool("prefill"), async_scheduling=True)
    patience = Patience(e2e_ps=6 * MS)
    cluster = serve([ahead, pool("decode")], trace([0.0, 0.004], [5, 5], [4, 4]), patience=patience)
    assert cluster.recorder.columns["status"].tolist() == [TIMED_OUT, TIMED_OUT]
    assert instants(cluster, "scheduled_ps") == [1, -1]
