"""Clients that time out, retry or are refused, on cases small enough to work by hand. A step takes 10 ms."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simserve.admission.base import Admission, QueueView
from simserve.admission.queue_length import QueueLength
from simserve.admission.token_bucket import TokenBucket
from simserve.engine.clients import Clients
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Backoff, Offered, Patience
from simserve.engine.recorder import STATUS
from simserve.engine.replica_setup import ReplicaSetup
from simserve.errors import PolicyError
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.static import Static
from simserve.state.request import Request
from simserve.workload.trace import Trace
from tests.doubles import MS, LineCost, instants, replica_setup, trace

EIGHT_LATER = FrontEnd(respond_ps=8 * MS)
SLOW_LINK = LinkSpec(token_s=4e-3, latency_ps=0)


def one(batch: int = 10, budget: int = 100, scheduler: Scheduler | None = None) -> ReplicaSetup:
    policy = scheduler or Chunked(max_num_batched_tokens=budget, max_num_seqs=min(batch, budget))
    return replica_setup(policy, LineCost(step=10 * MS), n_blocks=1000, block_size=1)


def serve(
    setups: ReplicaSetup | list[ReplicaSetup],
    load: Trace,
    ttft_ms: float | None = None,
    e2e_ms: float | None = None,
    backoff: Backoff | None = None,
    concurrency: int | None = None,
    front_end: FrontEnd | None = None,
    link: LinkSpec | None = None,
    admission: Admission | None = None,
) -> Cluster:
    ttft_ps, e2e_ps = (None if limit is None else round(limit * MS) for limit in (ttft_ms, e2e_ms))
    cluster = Cluster(
        setups if isinstance(setups, list) else [setups],
        RoundRobin(),
        Offered(load, concurrency, patience=Patience(ttft_ps, e2e_ps, backoff)),
        0,
        front_end,
        None if link is None else Disaggregation(RoundRobin(), link),
        admission=admission,
    )
    cluster.run()
    return cluster


def fates(cluster: Cluster) -> list[str]:
    """Return the status of each attempt, in the order of sending."""
    return [STATUS[cluster.recorder.status[row]] for row in rows(cluster)]


def rows(cluster: Cluster) -> list[int]:
    result: list[int] = cluster.sender.rows_sent.tolist()  # type: ignore[union-attr]  # clients number attempts
    return result


def sent_ms(cluster: Cluster) -> list[float]:
    return [cluster.rows.arrival_ps[row] / MS for row in rows(cluster)]


def gave_up_ms(cluster: Cluster) -> dict[int, float]:
    assert isinstance(cluster.sender, Clients)
    assert cluster.sender.deadlines is not None
    return {row: at_ps / MS for row, at_ps in cluster.sender.deadlines.gave_up_ps.items()}


def wasted(cluster: Cluster) -> dict[int, int]:
    assert isinstance(cluster.sender, Clients)
    assert cluster.sender.deadlines is not None
    return cluster.sender.deadlines.wasted_tokens()


def test_who_gives_up_leaves_its_seat_at_the_end_of_the_step_in_flight() -> None:
    # Tokens at 10, 20, 30; it times out at 35, in the middle of a fourth step. Five prompt tokens and three more were
    # computed. Then the second has the slot, and its two tokens at 50 and 60.
    cluster = serve(one(batch=1), trace([0.0, 0.03], [5, 5], [10, 2]), e2e_ms=35)
    assert fates(cluster) == ["timed_out", "finished"]
    assert gave_up_ms(cluster) == {0: 35}
    assert wasted(cluster) == {0: 8}
    assert instants(cluster, "scheduled_ps") == [0, 40]
    assert instants(cluster, "first_token_ps") == [10, 50]
    assert instants(cluster, "finish_ps") == [-1, 60]
    assert cluster.recorder.reasons[cluster.recorder.columns["status_reason"][0]] == "no whole answer within 0.035 s"


def test_a_deadline_is_met_by_a_token_of_that_very_instant() -> None:
    assert fates(serve(one(), trace([0.0], [5], [3]), ttft_ms=10, e2e_ms=30)) == ["finished"]


def test_a_deadline_at_the_end_of_a_step_inside_a_stretch_needs_no_further_step() -> None:
    cluster = serve(one(), trace([0.0], [5], [10]), e2e_ms=30)
    assert wasted(cluster) == {0: 7}
    assert int(cluster.recorder.step_runs(0)["n_steps"].sum()) == 3


def test_who_waits_leaves_the_queue_and_costs_nothing() -> None:
    cluster = serve(one(batch=1), trace([0.0, 0.0], [5, 5], [4, 4]), ttft_ms=25)
    assert fates(cluster) == ["finished", "timed_out"]
    assert wasted(cluster) == {1: 0}
    assert int(cluster.recorder.step_runs(0)["n_steps"].sum()) == 4


def test_a_prompt_half_done_is_given_up_with_what_was_computed() -> None:
    # Four tokens a step; at 25 the third step is in flight.
    cluster = serve(one(budget=4), trace([0.0], [20], [2]), ttft_ms=25)
    assert wasted(cluster) == {0: 12}
    assert cluster.replicas[0].pool.free_blocks == 1000


def test_a_token_counts_when_the_client_has_it() -> None:
    # Its first token is computed at 10 and arrives at 18, 3 too late; it leaves at 20, after a second token.
    cluster = serve(one(), trace([0.0], [5], [4]), ttft_ms=15, front_end=EIGHT_LATER)
    assert fates(cluster) == ["timed_out"]
    assert instants(cluster, "first_token_ps") == [-1]
    assert wasted(cluster) == {0: 6}


def test_an_answer_on_its_way_to_a_client_that_gives_up_was_computed_for_nobody() -> None:
    # Computed at 20, received at 28; the client waits until 25.
    cluster = serve(one(), trace([0.0], [5], [2]), e2e_ms=25, front_end=EIGHT_LATER)
    assert fates(cluster) == ["timed_out"]
    assert instants(cluster, "first_token_ps") == [10]
    assert instants(cluster, "finish_ps") == [-1]
    assert wasted(cluster) == {0: 6}


def test_a_padded_batch_goes_on_at_full_cost_as_long_as_one_waits_for_it() -> None:
    # Both start at 20, when the batch is full. The first times out at 45 and is computed to the end, which is that of
    # the second, at 60; five prompt tokens and two more were computed by 50.
    batch = one(scheduler=Dynamic(batch_size=2, window_s=1.0, stream=True))
    cluster = serve(batch, trace([0.0, 0.02], [5, 5], [9, 4], [9, 9]), e2e_ms=45)
    assert fates(cluster) == ["timed_out", "finished"]
    assert instants(cluster, "finish_ps") == [-1, 60]
    steps = cluster.recorder.step_runs(0)
    assert steps["decode_requests"][1:].tolist() == [2] * (len(steps) - 1)
    assert int(steps["n_steps"].sum()) == 4
    assert wasted(cluster) == {0: 7}


def test_a_padded_batch_that_nobody_waits_for_is_over() -> None:
    batch = one(scheduler=Static(batch_size=2))
    cluster = serve(batch, trace([0.0, 0.0], [5, 5], [9, 3], [9, 9]), e2e_ms=45)
    assert fates(cluster) == ["timed_out", "timed_out"]  # answers would have left whole at 90
    assert int(cluster.recorder.step_runs(0)["n_steps"].sum()) == 5
    assert wasted(cluster) == {0: 9, 1: 7}  # the second had all its tokens at 30


def test_who_is_gone_before_the_front_end_lets_it_in_never_comes_to_a_replica() -> None:
    intake = FrontEnd(receive_ps=20 * MS)
    cluster = serve(one(), trace([0.0] * 3, [5] * 3, [1] * 3), ttft_ms=50, front_end=intake)
    assert fates(cluster) == ["finished", "finished", "timed_out"]  # they leave the front end at 20, 40 and 60
    assert instants(cluster, "scheduled_ps") == [20, 40, -1]


def test_what_is_on_the_link_arrives_before_anybody_lets_go_of_it() -> None:
    # Handed over at 10, with 20 ms on the link; the client times out at 15.
    pools = [replace(one(), role="prefill"), replace(one(), role="decode")]
    cluster = serve(pools, trace([0.0], [5], [4]), e2e_ms=15, link=SLOW_LINK)
    assert fates(cluster) == ["timed_out"]
    assert instants(cluster, "transfer_ps") == [20]
    assert wasted(cluster) == {0: 5}
    assert [replica.pool.free_blocks for replica in cluster.replicas] == [1000, 1000]
    assert len(cluster.recorder.step_runs(1)) == 0


def test_who_was_handed_over_and_has_no_blocks_yet_gives_up_those_it_came_from() -> None:
    # One slot on the decode side, until 50; the second would be fetched then, but its client also timed out at 45.
    decode = replica_setup(Chunked(max_num_seqs=1), LineCost(step=10 * MS), n_blocks=1000, block_size=1)
    pools = [replace(one(), role="prefill"), replace(decode, role="decode")]
    cluster = serve(pools, trace([0.0, 0.0], [5, 5], [9, 4]), e2e_ms=45, link=LinkSpec(1e-9, 0))
    assert fates(cluster) == ["timed_out", "timed_out"]
    assert wasted(cluster) == {0: 9, 1: 5}
    assert instants(cluster, "transfer_ps")[1] == 0
    assert cluster.replicas[0].pool.free_blocks == 1000


def test_who_gave_up_asks_again_after_waits_that_grow() -> None:
    # One slot for 200 ms. The second times out at 30, retries at 30 + 20, times out at 80, retries at 80 + 40, times
    # out at 150, and may not retry a third time.
    backoff = Backoff(3, 20 * MS, 2.0, 1000 * MS)
    cluster = serve(one(batch=1), trace([0.0, 0.0], [5, 5], [20, 1]), ttft_ms=30, backoff=backoff)
    assert fates(cluster) == ["finished", "timed_out", "timed_out", "timed_out"]
    assert sent_ms(cluster) == [0, 0, 50, 120]
    assert cluster.sender.attempts.tolist() == [1, 1, 2, 3]  # type: ignore[union-attr]
    assert [cluster.rows.original(row) for row in rows(cluster)] == [0, 1, 1, 1]


def test_no_wait_is_longer_than_the_longest() -> None:
    backoff = Backoff(10, 20 * MS, 2.0, 50 * MS)
    assert [backoff.wait_ps(0, attempt) / MS for attempt in (1, 2, 3, 9)] == [20, 40, 50, 50]


def test_jitter_shortens_waits_by_up_to_its_share_and_depends_on_the_request_alone() -> None:
    backoff = Backoff(3, 100 * MS, 1.0, 100 * MS, jitter=0.25, seed=7)
    waits = [backoff.wait_ps(row, 1) / MS for row in range(1000)]
    assert 75 <= min(waits) < 76 and 99 < max(waits) <= 100
    assert waits == [backoff.wait_ps(row, 1) / MS for row in range(1000)]


def test_in_a_closed_loop_who_gives_up_asks_its_next_question() -> None:
    # The first client's long answer times out at 45 and leaves at 50; its next request has waited since 45.
    cluster = serve(one(batch=1), trace([0.0] * 3, [5] * 3, [10, 2, 1]), e2e_ms=45, concurrency=1)
    assert sent_ms(cluster) == [0, 45, 70]
    assert fates(cluster) == ["timed_out", "finished", "finished"]


def test_who_is_refused_costs_nothing_and_says_why() -> None:
    cluster = serve(one(), trace([0.0, 0.001, 0.002], [5] * 3, [4] * 3), admission=QueueLength(max_outstanding=2))
    assert fates(cluster) == ["finished", "finished", "rejected"]
    assert cluster.recorder.reasons[cluster.recorder.columns["status_reason"][2]] == "refused: the queue is full"


def test_who_is_refused_asks_again_and_may_then_be_let_in() -> None:
    # One request per 20 ms: the second is refused at 0 and at 15, and admitted at 30.
    backoff = Backoff(5, 15 * MS, 1.0, 15 * MS)
    cluster = serve(one(), trace([0.0, 0.0], [5] * 2, [1] * 2), backoff=backoff, admission=TokenBucket(50.0, 1))
    assert fates(cluster) == ["finished", "rejected", "rejected", "finished"]
    assert sent_ms(cluster) == [0, 0, 15, 30]


def test_a_prompt_that_could_never_be_served_is_not_tried_again() -> None:
    cluster = serve(one(), trace([0.0], [2000], [1]), backoff=Backoff(3, MS, 1.0, MS))
    assert fates(cluster) == ["rejected"]


def test_a_policy_that_answers_nonsense_is_told_so() -> None:
    class Yes(Admission):
        def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> str | None:
            return True  # type: ignore[return-value]

    with pytest.raises(PolicyError, match=r"Yes\.decide: must return None or a reason as text, got True"):
        serve(one(), trace([0.0], [5], [1]), admission=Yes())
