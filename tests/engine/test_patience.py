"""Clients that time out, retry or are refused, on cases small enough to work by hand. A step takes 10 ms."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from simserve.admission.base import Admission, QueueView
from simserve.admission.queue_length import QueueLength
from simserve.admission.token_bucket import TokenBucket
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Backoff, Offered, Patience, RetryBudget
from simserve.engine.recorder import STATUS
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.session_sender import SessionSender
from simserve.engine.tabulate import attempt_columns, tabulate
from simserve.errors import PolicyError
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.base import Scheduler
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.dynamic import Dynamic
from simserve.schedulers.static import Static
from simserve.state.request import Request
from simserve.workload.trace import Trace
from tests.conservation import wasted_tokens
from tests.doubles import MS, LineCost, instants, replica_setup, trace
from tests.engine.test_sessions import waiting

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
    goes_on: bool = False,
    drain_ms: int | None = None,
) -> Cluster:
    ttft_ps, e2e_ps = (None if limit is None else round(limit * MS) for limit in (ttft_ms, e2e_ms))
    cluster = Cluster(
        setups if isinstance(setups, list) else [setups],
        RoundRobin(),
        Offered(load, concurrency, patience=Patience(ttft_ps, e2e_ps, backoff, goes_on)),
        0,
        front_end,
        None if link is None else Disaggregation(RoundRobin(), link),
        admission=admission,
    )
    run_cluster(cluster, None if drain_ms is None else drain_ms * MS)
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
    assert isinstance(cluster.sender, SessionSender)
    assert cluster.sender.deadlines is not None
    return {row: at_ps / MS for row, at_ps in cluster.sender.deadlines.gave_up_ps.items()}


def wasted(cluster: Cluster) -> dict[int, int]:
    wasted = wasted_tokens(cluster)
    return {row: wasted[row] for row in gave_up_ms(cluster)}


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


def test_without_a_token_a_request_is_not_sent_again() -> None:
    # Four wait for one slot and time out after 15 ms. The bucket holds two tokens, and each first attempt adds half
    # of one to what is left: of those sent at 0, two take both; the third, at 20, adds the half that the fourth, at 40,
    # makes whole, and so the fourth retries and the third does not.
    backoff = Backoff(3, 100 * MS, 1.0, 100 * MS, budget_frac=0.5, budget_burst=2)
    load = trace([0.0, 0.0, 0.0, 0.02, 0.04], [5] * 5, [99, 1, 1, 1, 1])
    cluster = serve(one(batch=1), load, ttft_ms=15, backoff=backoff, drain_ms=200)
    assert sent_ms(cluster) == [0, 0, 0, 20, 40, 115, 115, 155]
    assert cluster.sender.attempts.tolist() == [1] * 5 + [2] * 3  # type: ignore[union-attr]
    assert [cluster.rows.original(row) for row in rows(cluster)] == [0, 1, 2, 3, 4, 1, 2, 4]


def test_ten_tenths_of_a_token_are_one() -> None:
    budget = RetryBudget(0.1, 1)
    assert (budget.take(), budget.take()) == (True, False)
    for _ in range(9):
        budget.add()
    assert not budget.take()
    budget.add()
    assert (budget.take(), budget.take()) == (True, False)


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


CHAIN = {1: [0], 2: [1]}
FORK = {1: [0], 2: [0], 3: [1, 2]}


def test_a_session_ends_with_a_turn_that_timed_out() -> None:
    # The second turn is sent at 20 and abandoned at 45; the third is never sent.
    cluster = serve(one(), waiting(trace([0.0] * 3, [5] * 3, [1, 9, 2]), CHAIN, {1: 10, 2: 10}), e2e_ms=25)
    assert fates(cluster) == ["finished", "timed_out"]
    assert gave_up_ms(cluster) == {1: 45}


def test_a_client_that_goes_on_thinks_from_when_it_gave_up() -> None:
    # The third turn is sent at 45 + 10, after the step in flight.
    load = waiting(trace([0.0] * 3, [5] * 3, [1, 9, 2]), CHAIN, {1: 10, 2: 10})
    cluster = serve(one(), load, e2e_ms=25, goes_on=True)
    assert fates(cluster) == ["finished", "timed_out", "finished"]
    assert sent_ms(cluster) == [0, 20, 55]
    assert instants(cluster, "finish_ps") == [10, -1, 75]


@pytest.mark.parametrize(("goes_on", "result"), [(False, [0, 10]), (True, [0, 10, 20])])
def test_a_turn_that_is_not_admitted_is_like_one_that_timed_out(goes_on: bool, result: list[int]) -> None:
    load = waiting(trace([0.0] * 3, [5] * 3, [1] * 3), CHAIN, {2: 10})  # one request per 20 ms
    cluster = serve(one(), load, admission=TokenBucket(50.0, 1), goes_on=goes_on)
    assert sent_ms(cluster) == result
    assert fates(cluster) == ["finished", "rejected", "finished"][: len(result)]


def test_a_turn_waits_for_the_attempt_that_is_answered() -> None:
    # One slot, taken by the first row until 100. The second times out at 30, and at 80 when sent again at 50; its third
    # attempt, at 110, is answered at 120, and the next turn sent at 130.
    load = waiting(trace([0.0] * 3, [5] * 3, [10, 1, 1]), {2: [1]}, {2: 10})
    cluster = serve(one(batch=1), load, ttft_ms=30, backoff=Backoff(3, 20 * MS, 1.5, 30 * MS))
    requests = tabulate(cluster, np.zeros(1, np.int32), ("serve",)).requests
    assert sent_ms(cluster) == [0, 0, 50, 110, 130]
    assert fates(cluster) == ["finished", "timed_out", "timed_out", "finished", "finished"]
    assert requests["attempt"].tolist() == [1, 1, 2, 3, 1]
    assert requests["request_id"].tolist() == [0, 1, 1, 1, 2]
    assert requests["session_requests"].tolist() == [1, 2, 2, 2, 2]
    assert requests["first_sent_s"].tolist() == [0, 0, 0, 0, 0.13]
    assert requests["gave_up_s"].tolist()[1:3] == [0.03, 0.08]


def test_a_branch_of_an_ended_session_is_not_sent_again() -> None:
    # One branch can never be served; the other is in flight and times out at 35, with attempts left.
    load = waiting(trace([0.0] * 4, [5, 2000, 5, 5], [1, 1, 9, 1]), FORK)
    cluster = serve(one(), load, e2e_ms=25, backoff=Backoff(3, 20 * MS, 1.0, 20 * MS))
    assert rows(cluster) == [0, 1, 2]
    assert fates(cluster) == ["finished", "rejected", "timed_out"]


def test_an_ended_session_drops_its_attempts_to_come_and_the_drain_begins() -> None:
    # One slot, taken by the last row from 10 on. A branch times out at 35 and would be sent again at 85; the other is
    # refused at 40, so that nothing is left to send.
    load = waiting(trace([0.0] * 5, [5, 2000, 5, 5, 5], [1, 1, 1, 1, 99]), FORK, {1: 30})
    cluster = serve(one(batch=1), load, ttft_ms=25, backoff=Backoff(3, 50 * MS, 1.0, 50 * MS), drain_ms=100)
    assert rows(cluster) == [0, 4, 2, 1]
    assert cluster.clock.now_ps == 140 * MS


def test_a_turn_after_an_answer_and_a_branch_given_up_waits_for_the_later() -> None:
    # One branch is computed at 38, and its client has it at 46; the other is given up at 40. Thinking begins at 46.
    load = waiting(trace([0.0] * 4, [5] * 4, [1, 2, 2, 1]), FORK, {3: 5})
    cluster = serve(one(batch=1), load, ttft_ms=22, goes_on=True, front_end=EIGHT_LATER)
    assert fates(cluster) == ["finished", "finished", "timed_out", "finished"]
    assert sent_ms(cluster) == [0, 18, 18, 51]


def test_a_user_whose_session_ended_begins_the_next() -> None:
    # The second turn times out at 35, and at 80 when sent again at 55; then its user thinks for 6 ms.
    load = waiting(trace([0.0] * 3, [5] * 3, [1, 9, 1]), {1: [0]}, {2: 6})
    cluster = serve(one(), load, e2e_ms=25, concurrency=1, backoff=Backoff(2, 20 * MS, 1.0, 20 * MS))
    assert sent_ms(cluster) == [0, 10, 55, 86]
    assert fates(cluster) == ["finished", "timed_out", "timed_out", "finished"]


def test_a_drain_limit_counts_from_the_last_first_attempt() -> None:
    # One slot. The second row times out at 25, and again after 75, 125, ...; the third is sent at 200.
    load, again = trace([0.0, 0.0, 0.2], [5] * 3, [99, 1, 1]), Backoff(9, 25 * MS, 1.0, 25 * MS)
    cluster = serve(one(batch=1), load, ttft_ms=25, backoff=again, drain_ms=100)
    assert sent_ms(cluster) == [0, 0, 50, 100, 150, 200, 200, 250, 250, 300, 300]
    assert cluster.clock.now_ps == 300 * MS


def test_users_draw_further_sessions_between_retries() -> None:
    # The first user's sessions take 20, 10, 20, ... ms, one after another; the second is refused every 15 ms.
    chunk, drawn = trace([0.0] * 2, [5] * 2, [2, 1]), []
    patience = Patience(backoff=Backoff(9, 15 * MS, 1.0, 15 * MS))

    def draw_more(n_rows: int) -> Trace:
        drawn.append(n_rows)
        return chunk

    offered = Offered(chunk, 2, draw_more, 100 * MS, patience)
    cluster = Cluster([one()], RoundRobin(), offered, 0, admission=QueueLength(max_outstanding=1))
    run_cluster(cluster)
    assert sent_ms(cluster) == [0, 0, 15, 20, 30, 40, 45, 50, 60, 70, 75, 80, 90]
    assert attempt_columns(cluster)["attempt"].tolist() == [1, 1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1, 7]
    assert cluster.rows.outputs[rows(cluster)].tolist() == [2, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1]
    assert drawn == [2, 4, 6]
