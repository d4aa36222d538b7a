"""Requests that pass each other, on cases small enough to work by hand. A step takes 10 ms; a block is one token."""

from dataclasses import replace

import numpy as np
import pytest

from simserve.engine.cluster import Cluster
from simserve.errors import PolicyError
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.schedulers.chunked import Chunked, FairShares
from simserve.state.request import Request
from simserve.state.view import ReplicaView
from simserve.workload.trace import Trace
from tests.doubles import MS, LineCost, instants, replica_setup, serve, trace

TEN_MS = LineCost(step=10 * MS)
CHAT, BATCH = 0, 10


def run(load: Trace, n_blocks: int = 1000, **knobs: object) -> Cluster:
    policy = Chunked(**{"max_num_batched_tokens": 100, "max_num_seqs": 10, "policy": "priority", **knobs})  # type: ignore[arg-type]
    return serve(replica_setup(policy, TEN_MS, n_blocks=n_blocks, block_size=1), load)


def of(load: Trace, *, priority: list[int] | None = None, tenant: str | None = None) -> Trace:
    """Return a load with priorities, or with the letters of a word as tenants."""
    load = load if priority is None else replace(load, priority=np.array(priority))
    return load if tenant is None else replace(load, tenant=np.array(list(tenant)))


def test_the_better_priority_is_first_and_within_it_who_came_first() -> None:
    load = of(trace([0.0, 0.001, 0.002, 0.003], [1] * 4, [1] * 4), priority=[5, 7, 7, -1])
    # The first is in a step until 10; then the slot goes to the fourth, and to the second before the third.
    assert instants(run(load, max_num_seqs=1), "scheduled_ps") == [0, 20, 30, 10]


def test_who_comes_before_a_head_that_is_kept_out_rings_the_bell() -> None:
    # The first holds at most 5 + 20 of 40 blocks, so the second, of 36, waits from 10 on; the third has room at once,
    # but behind the second it would not.
    load = of(trace([0.0, 0.005, 0.042], [5, 36, 5], [20, 1, 1]), priority=[CHAT, BATCH, CHAT])
    assert instants(run(load, n_blocks=40), "scheduled_ps") == [0, 200, 50]
    behind = of(load, priority=[CHAT, CHAT, CHAT])
    assert instants(run(behind, n_blocks=40), "scheduled_ps") == [0, 200, 210]


def test_when_blocks_run_out_the_worst_class_gives_them_back_whoever_was_admitted_last() -> None:
    """A preemption by class, event by event: 10 blocks, a batch request of 4 and a chat of 4 after it.

    At 0 the batch request is prefilled, and from 10 on it decodes; at 10 the chat is, with 4 + 4 + 1 blocks taken. At
    20 both decode, with blocks for one token: the batch request has 5 in the cache, and is preempted. The chat goes on
    with 5, 6, 7 at 30, 40, 50, and ends. Then the batch request, which has had two tokens, recomputes 4 and 2, has its
    third token at 60, and its fourth at 70.
    """
    load = of(trace([0.0, 0.001], [4, 4], [4, 4]), priority=[BATCH, CHAT])
    cluster = run(load, n_blocks=10)
    assert instants(cluster, "scheduled_ps") == [0, 10]
    assert instants(cluster, "first_token_ps") == [10, 20]
    assert cluster.recorder.columns["n_preemptions"].tolist() == [1, 0]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [5, 0]
    assert instants(cluster, "preempted_ps") == [30, 0]
    assert instants(cluster, "finish_ps") == [70, 50]
    # First come, first served: the chat was admitted last and is preempted.
    fcfs = run(load, n_blocks=10, policy="fcfs").recorder.columns
    assert fcfs["n_preemptions"].tolist() == [0, 1]


def test_without_a_threshold_nobody_gives_way_to_who_waits() -> None:
    load = of(trace([0.0, 0.015], [5, 5], [10, 2]), priority=[BATCH, CHAT])
    assert instants(run(load, max_num_seqs=1), "scheduled_ps") == [0, 100]


def test_with_a_threshold_who_waits_takes_the_seat_of_who_is_worse_by_more_than_it() -> None:
    load = of(trace([0.0, 0.015], [5, 5], [10, 2]), priority=[BATCH, CHAT])
    taken = run(load, max_num_seqs=1, priority_preemption_threshold=9)
    assert instants(taken, "scheduled_ps") == [0, 20]
    # The batch request has had two tokens by 20; from 40 on it recomputes 5 + 2, and has its tenth token at 120.
    assert instants(taken, "finish_ps") == [120, 40]
    kept = run(load, max_num_seqs=1, priority_preemption_threshold=10)
    assert instants(kept, "scheduled_ps") == [0, 100]


def test_blocks_are_taken_too_from_as_many_as_it_needs() -> None:
    # At 20 two batch requests hold 6 of 20 blocks each. A chat of 15 must preempt both, one of 13 only the later one.
    load = of(trace([0.0, 0.0, 0.015], [5, 5, 15], [4, 4, 1]), priority=[BATCH, BATCH, CHAT])
    both = run(load, n_blocks=20, priority_preemption_threshold=0)
    assert instants(both, "scheduled_ps") == [0, 0, 20]
    assert both.recorder.columns["n_preemptions"].tolist() == [1, 1, 0]
    one = run(replace(load, prompt_tokens=np.array([5, 5, 13])), n_blocks=20, priority_preemption_threshold=0)
    assert instants(one, "scheduled_ps") == [0, 0, 20]
    assert one.recorder.columns["n_preemptions"].tolist() == [0, 1, 0]


def test_a_half_done_prompt_without_blocks_gives_them_back_rather_than_keep_a_better_one_out() -> None:
    # In steps of 4 tokens a batch prompt of 12 is admitted regardless of its rest, and stands at 8 of 13 blocks when
    # four more are missing: the chat has decoded into them.
    load = of(trace([0.0, 0.001], [3, 12], [9, 1]), priority=[CHAT, BATCH])
    columns = run(load, n_blocks=13, max_num_batched_tokens=4, scheduler_reserve_full_isl=False).recorder.columns
    assert columns["n_preemptions"].tolist()[0] == 0
    assert columns["n_preemptions"].tolist()[1] > 0


def test_tenants_take_turns_by_what_they_were_served() -> None:
    # One slot. A request of a costs 8 + 2 * 1, one of b 3 + 2 * 1. The first leaves a at 10; b has come meanwhile, and
    # is lifted to that. On the tie a came first, and has 20 then; b has 15 after its first, 20 after its second.
    load = of(trace([0.0, 0.0, 0.0, 0.001, 0.001], [8, 8, 8, 3, 3], [1] * 5), tenant="aaabb")
    assert instants(run(load, policy="vtc", max_num_seqs=1), "scheduled_ps") == [0, 10, 40, 20, 30]
    # With a tenth of the weight, b has 60 after its first.
    lighter = run(load, policy="vtc", max_num_seqs=1, vtc=FairShares(tenant_weights={"b": 0.1}))
    assert instants(lighter, "scheduled_ps") == [0, 10, 30, 20, 40]


def test_a_tenant_who_comes_back_has_saved_up_nothing() -> None:
    # One slot, steps of 10 ms. b arrives at 0 and is served at 10, with a at 10 and b at 10 after it. a alone is served
    # from 20 on, 10 at a time, and has 40 at 50; b, back at 45 with three, is lifted to that and takes turns with a,
    # instead of being served three times for the 30 that it missed.
    arrivals = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.045, 0.045, 0.045]
    load = of(trace(arrivals, [8] * 10, [1] * 10), tenant="abaaaaabbb")
    assert instants(run(load, policy="vtc", max_num_seqs=1), "scheduled_ps") == [0, 10, 20, 30, 40, 50, 70, 60, 80, 90]


def test_the_head_changes_when_a_tenant_catches_up_though_nobody_comes_or_goes() -> None:
    # At 10 both tenants stand at 18: b was served 16 + 2 and has left, and a is lifted to that. a, which came first, is
    # the head, and has no room; but it decodes, stands at 20 at 20, and then b is the head, and has room.
    load = of(trace([0.0, 0.0, 0.005, 0.005], [5, 16, 28, 3], [20, 1, 1, 1]), tenant="abab")
    assert instants(run(load, n_blocks=30, policy="vtc"), "scheduled_ps") == [0, 0, 200, 20]


def test_who_is_seen_a_step_later_passes_a_head_that_is_kept_out() -> None:
    # Steps are planned ahead. The batch prompt of 36 of 40 blocks is seen at 20 and blocked; the chat that arrives at
    # 25 is seen at 40, although the plan made at 30, when the second request ended, said that none would start.
    load = of(trace([0.0, 0.0, 0.005, 0.025], [5, 3, 36, 3], [20, 3, 1, 1]), priority=[CHAT, CHAT, BATCH, CHAT])
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=10, policy="priority")
    setup = replace(replica_setup(policy, TEN_MS, n_blocks=40, block_size=1), async_scheduling=True)
    assert instants(serve(setup, load), "scheduled_ps") == [0, 0, 200, 40]


def test_a_policy_may_only_preempt_who_runs() -> None:
    class Wrong(Scheduler):
        def plan(self, view: ReplicaView) -> StepPlan:
            return StepPlan(preempt=[Request(7, 0, 1, 1)])

    with pytest.raises(PolicyError, match=r"Wrong\.plan: must preempt only requests of view\.running, got Request"):
        serve(replica_setup(Wrong()), trace([0.0], [1], [1]))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"vtc": FairShares()}, "vtc goes with policy vtc, got policy fcfs"),
        ({"policy": "vtc", "priority_preemption_threshold": 1}, "goes with policy priority, got policy vtc"),
    ],
)
def test_knobs_of_another_policy_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chunked(**knobs)  # type: ignore[arg-type]
