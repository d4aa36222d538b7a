"""Members that join and leave, worked out by hand: one request at a time, prompts of 1 ms a token, 1 ms an answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.admission.queue_length import QueueLength
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Backoff, Offered, Patience
from simserve.engine.recorder import FINISHED, REJECTED, TIMED_OUT
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.tabulate import member_facts
from simserve.errors import PolicyError
from simserve.routers.base import Router
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.continuous import Continuous
from simserve.splitters.base import Splitter, Where
from simserve.state.request import Request
from simserve.state.view import LoadView
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import assert_agreement, own, run_both
from tests.conservation import assert_tokens_are_conserved, wasted_tokens
from tests.doubles import MS, LineCost, instants, plain_blocks, replica_setup, trace
from tests.oracle_fleet import Change, Kind, Script

ONE_AT_A_TIME = replica_setup(Continuous(max_num_seqs=1), LineCost(token=MS))
TOGETHER = replica_setup(Continuous(max_num_seqs=9), LineCost(token=MS))


def run(
    setups: ReplicaSetup | list[ReplicaSetup], load: Trace, *changes: Change, router: Router | None = None, **more: Any
) -> Cluster:
    several = setups if isinstance(setups, list) else [setups]
    offered = Offered(load, patience=more.pop("patience", None))
    script = Script(changes, own(several))
    cluster = Cluster(own(several), router or RoundRobin(), offered, router_seed=0, control=script, **more)
    run_cluster(cluster)
    return cluster


def lives(cluster: Cluster) -> list[tuple[float | None, ...]]:
    """Return when each member was ordered, ready, draining and gone, in milliseconds."""
    instants = ((each.ordered_ps, each.ready_ps, each.draining_ps, each.gone_ps) for each in cluster.members)
    return [tuple(None if at_ps is None else at_ps / MS for at_ps in each) for each in instants]


def test_a_member_that_drains_finishes_what_it_has_and_gets_no_more() -> None:
    """Two prompts of 5 ms are there at 1 ms; the third comes when only the second member takes requests."""
    load = trace([0.0, 0.0, 0.002], [5, 5, 5], [1, 1, 1])
    cluster = run(ONE_AT_A_TIME, load, Change(MS, "join", 0), Change(MS, "drain", 0))
    assert instants(cluster, "finish_ps") == [5, 10, 7]
    assert cluster.recorder.columns["replica"].tolist() == [0, 0, 1]
    assert lives(cluster) == [(0, 0, 1, 10), (1, 1, None, None)]
    assert [each.why for each in member_facts(cluster)] == ["at the start; drained", "ordered"]


def test_requests_wait_at_the_gateway_for_a_member_and_go_out_in_order_of_arrival() -> None:
    """The only member drains at once; the next one is ordered at 2 ms and takes 6 ms to be ready."""
    load = trace([0.001, 0.004, 0.008], [3, 2, 4], [1, 1, 1])
    cluster = run(ONE_AT_A_TIME, load, Change(0, "drain", 0), Change(2 * MS, "join", 0, 6 * MS))
    assert instants(cluster, "scheduled_ps") == [8, 11, 13]
    assert instants(cluster, "finish_ps") == [11, 13, 17]
    assert lives(cluster) == [(0, 0, 0, 0), (2, 8, None, None)]


def test_without_any_member_requests_are_unfinished_and_say_where_they_wait() -> None:
    cluster = run(ONE_AT_A_TIME, trace([0.001], [3], [1]), Change(0, "drain", 0))
    assert cluster.recorder.n_with(0) == 1
    assert cluster.recorder.reasons[-1] == "waits at the gateway: no replica is ready"


def test_a_client_may_give_up_at_the_gateway() -> None:
    late = (Change(0, "drain", 0), Change(9 * MS, "join", 0))
    cluster = run(ONE_AT_A_TIME, trace([0.001, 0.007], [3, 3], [1, 1]), *late, patience=Patience(ttft_ps=5 * MS))
    assert instants(cluster, "finish_ps") == [-1, 12]
    assert cluster.recorder.n_with(3) == 1


def test_a_member_that_is_not_ready_yet_is_gone_at_once() -> None:
    load = trace([0.001], [3], [1])
    cluster = run(ONE_AT_A_TIME, load, Change(0, "join", 0, 6 * MS), Change(2 * MS, "drain", 1))
    assert lives(cluster) == [(0, 0, None, None), (0, None, None, 2)]
    assert instants(cluster, "finish_ps") == [4]


def test_admission_decides_when_there_is_a_member_to_look_at() -> None:
    """Three wait for the member that is ready at 5 ms; it may have one."""
    late = (Change(0, "drain", 0), Change(5 * MS, "join", 0))
    load = trace([0.001, 0.002, 0.003], [3, 3, 3], [1, 1, 1])
    cluster = run(ONE_AT_A_TIME, load, *late, admission=QueueLength(max_outstanding=1))
    assert instants(cluster, "finish_ps") == [8, -1, -1]
    assert cluster.recorder.n_with(2) == 2


def test_a_request_waits_on_its_prefill_replica_while_no_decode_replica_is_ready() -> None:
    """Prefilled at 3 ms; the decode replica that is ready at 7 ms fetches it in 1 ms and needs 1 ms a token."""
    roles: list[ReplicaSetup] = [replace(TOGETHER, role="prefill"), replace(TOGETHER, role="decode")]
    link = Disaggregation(RoundRobin(), LinkSpec(0.0, MS - 1))  # and 1 ps on the link
    late = (Change(0, "drain", 1), Change(7 * MS, "join", 1))
    cluster = run(roles, trace([0.0], [3], [3]), *late, disaggregation=link)
    assert instants(cluster, "first_token_ps") == [3]
    assert instants(cluster, "finish_ps") == [10]
    assert cluster.recorder.columns["replica"].tolist() == [2]


class Clings(Router):
    """Always picks the first view that it has ever seen."""

    first: Any = None

    def pick(self, request: Request, views: Any) -> Any:
        self.first = self.first or views[0]
        return self.first


def test_a_router_that_keeps_the_view_of_a_draining_member_is_named() -> None:
    load = trace([0.0, 0.003], [9, 9], [1, 1])
    with pytest.raises(PolicyError, match=r"Clings\.pick: .* got 'a view of replica 0', at 0\.003000 s"):
        run([ONE_AT_A_TIME, ONE_AT_A_TIME], load, Change(MS, "drain", 0), router=Clings())


def test_a_failed_member_loses_its_step_and_the_gateway_sends_again_what_has_no_token() -> None:
    """At 8 ms the first has 2 of its 9 tokens, and the second is in its prefill, while the third waits for a slot."""
    load = trace([0.0, 0.0055, 0.006], [5, 30, 5], [9, 1, 1], [9, 1, 1])
    one = replica_setup(Continuous(max_num_seqs=2), LineCost(token=MS))
    late = (Change(8 * MS, "resend", 0), Change(9 * MS, "join", 0))
    cluster = run(one, load, *late)
    columns = cluster.recorder.columns
    assert columns["status"].tolist() == [4, 1, 1]
    assert instants(cluster, "first_token_ps") == [5, 44, 44]
    assert instants(cluster, "scheduled_ps") == [0, 9, 9]
    assert columns["replica"].tolist() == [0, 1, 1]
    assert cluster.recorder.reasons[-1] == "its replica was lost: a process failed"
    assert lives(cluster)[0] == (0, 0, None, 8)
    assert cluster.losses.failed_ps == {0: 8 * MS}
    assert wasted_tokens(cluster) == {0: 6, 1: 0, 2: 0}  # the step that computes the second prompt is lost


def test_a_tenant_that_came_back_just_before_the_failure_is_not_lifted() -> None:
    """Tenants are lifted when a step is planned, and a member that failed plans none. Each prompt takes 1 ms."""
    one_at_a_time = replica_setup(Chunked(max_num_seqs=1, policy="vtc"), LineCost(token=MS))
    load = replace(trace([0.0, 0.0, 0.0, 0.0, 0.0025], [1] * 5, [1] * 5), tenant=np.array([*"abaab"]))
    changes = [Change(3 * MS, "fail", 0), Change(3 * MS, "join", 0)]
    cluster, truth = run_both([one_at_a_time], RoundRobin, load, None, changes=changes)
    assert_agreement([each.setup for each in cluster.members], cluster, truth)
    counters = truth.replicas[0].vtc
    assert counters is not None
    assert counters.counters == {"a": 6, "b": 3}  # an input token weighs 1 and an output token 2


def test_requests_that_were_lost_fail_for_their_clients_who_may_retry() -> None:
    patience = Patience(backoff=Backoff(2, 3 * MS, 1.0, 3 * MS))
    late = (Change(2 * MS, "fail", 0), Change(2 * MS, "join", 0))
    cluster = run(ONE_AT_A_TIME, trace([0.0, 0.0], [5, 4], [1, 1]), *late, patience=patience)
    assert cluster.recorder.columns["status"].tolist()[:4] == [4, 4, 1, 1]
    assert instants(cluster, "finish_ps")[:4] == [-1, -1, 10, 14]


def test_keys_and_values_that_have_arrived_outlive_their_prefill_replica() -> None:
    """Both prompts are computed at 6 ms; the first has arrived when the prefill replica fails at 7.5 ms."""
    roles: list[ReplicaSetup] = [replace(TOGETHER, role="prefill"), replace(TOGETHER, role="decode")]
    link = Disaggregation(RoundRobin(), LinkSpec(0.2e-3, 0))  # 0.6 ms a prompt, one after the other
    load = trace([0.0, 0.0], [3, 3], [9, 9])
    cluster = run(roles, load, Change(7 * MS, "fail", 0), disaggregation=link)
    assert cluster.recorder.columns["status"].tolist() == [1, 4]
    decode = cluster.replicas[1]
    assert (decode.pool.free_blocks, decode.load.n_outstanding, decode.batch.n_away) == (decode.pool.total_blocks, 0, 0)


def test_the_blocks_of_requests_that_lose_their_decode_replica_are_freed_in_the_order_of_computation() -> None:
    """Prompts of a block each are computed at 4 and 8 ms. When the decode replica fails, the first is on its way, and
    the second waits for a slot. Of the three blocks on the prefill replica one is empty; a prompt of two takes that and
    the first one's, so the last finds the second one's."""
    policy = Chunked(max_num_batched_tokens=20, max_num_seqs=9)
    setup = replace(
        TOGETHER,
        scheduler=policy,
        n_blocks=3,
        layers=plain_blocks(4),
        max_model_len=12,
        caches_prefixes=True,
    )
    one_slot = replace(setup, role="decode", scheduler=replace(policy, max_num_seqs=1))
    roles: list[ReplicaSetup] = [replace(setup, role="prefill"), one_slot]
    prefixes = Prefixes.from_ids(4, np.array([1, 2, 2], np.int64), np.array([0, 1, 2, 2, 3]))
    load = replace(trace([0.0, 0.004, 0.02, 0.04], [4, 4, 8, 5], [2, 2, 1, 1]), prefixes=prefixes)
    link = Disaggregation(RoundRobin(), LinkSpec(0.1, 0))
    cluster = run(roles, load, Change(10 * MS, "fail", 1), disaggregation=link)
    assert cluster.recorder.columns["status"].tolist() == [4, 4, 1, 1]
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 0, 0, 4]


class AllButFive(Splitter):
    """Only prompts of five tokens are decoded elsewhere."""

    keeps = True

    def where(self, request: Request, prefill: Sequence[LoadView], local: Sequence[LoadView]) -> Where:
        return "apart" if request.prompt_tokens == 5 else "prefill"


def test_a_lost_prompt_frees_its_blocks_where_its_chunk_ends_after_what_decoding_requests_free() -> None:
    """In the step from 20 to 30 ms the first request decodes its last token, and a prompt is computed of which the
    decode replica fails. Of 12 blocks 11 were used; a prompt of 7 takes the empty one and six of the first request, so
    the last prompt finds all of the lost one that it may."""
    policy = Chunked(max_num_batched_tokens=100, max_num_seqs=9)
    setup = replica_setup(policy, LineCost(step=10 * MS), n_blocks=12, block_size=1)
    roles: list[ReplicaSetup] = [replace(setup, role="prefill", caches_prefixes=True), replace(setup, role="decode")]
    ids = np.array([1, 2, 3, 4, 11, 12, 13, 14, 15, 11, 12, 13, 14, 15, 16], np.int64)
    load = trace([0.0, 0.015, 0.04, 0.06], [4, 5, 7, 6], [3, 2, 1, 1])
    load = replace(load, prefixes=Prefixes.from_ids(1, ids, np.array([0, 4, 9, 9, 15])))
    link, lost = LinkSpec(1e-9, 0), Change(25 * MS, "fail", 1)
    cluster, truth = run_both(
        roles, RoundRobin, load, None, link=link, is_pushed=True, splitter=AllButFive(), changes=[lost]
    )
    assert_agreement(roles, cluster, truth)
    assert cluster.recorder.columns["status"].tolist() == [1, 4, 1, 1]
    assert cluster.recorder.columns["cached_tokens"].tolist() == [0, 0, 0, 5]


IN_CHUNKS = replica_setup(Chunked(max_num_batched_tokens=4, max_num_seqs=4), LineCost(step=10 * MS))
HOW = pytest.mark.parametrize("n_layers", [None, 1, 4], ids=["push", "by_chunk", "by_layer"])


def lose_decode_replica(n_layers: int | None, kind: Kind, *others: Change, **more: Any) -> Cluster:
    """Lose it at 15 ms: of a prompt of 10, computed from 1 ms on, 4 tokens are done, and 4 are in a step until 21."""
    roles: list[ReplicaSetup] = [replace(IN_CHUNKS, role="prefill"), replace(TOGETHER, role="decode")]
    link = Disaggregation(RoundRobin(), LinkSpec(1e-9, MS, n_layers=n_layers), is_pushed=True)
    changes = [Change(15 * MS, kind, 1), *others]
    cluster = run(roles, trace([0.0], [10], [3]), *changes, disaggregation=link, **more)
    assert_tokens_are_conserved(cluster)
    return cluster


@HOW
def test_the_chunk_in_flight_of_a_prompt_that_loses_its_decode_replica_is_wasted(n_layers: int | None) -> None:
    cluster = lose_decode_replica(n_layers, "fail")
    assert wasted_tokens(cluster) == {0: 8}
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0]


@HOW
def test_or_is_computed_again_if_the_gateway_sends_the_request_again(n_layers: int | None) -> None:
    cluster = lose_decode_replica(n_layers, "resend", Change(15 * MS, "join", 1))
    assert cluster.recorder.columns["status"].tolist() == [FINISHED]
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [8]
    assert wasted_tokens(cluster) == {0: 0}


@HOW
def test_or_is_wasted_once_if_its_client_has_just_given_up(n_layers: int | None) -> None:
    cluster = lose_decode_replica(n_layers, "fail", patience=Patience(ttft_ps=13 * MS))
    assert cluster.recorder.columns["status"].tolist() == [TIMED_OUT]
    assert wasted_tokens(cluster) == {0: 8}


@HOW
def test_a_chunk_that_its_own_replica_loses_was_never_computed(n_layers: int | None) -> None:
    cluster = lose_decode_replica(n_layers, "fail", Change(18 * MS, "fail", 0))
    assert wasted_tokens(cluster) == {0: 4}


def test_what_was_computed_for_a_request_is_wasted_if_no_other_replica_can_serve_it() -> None:
    """At 25 ms two chunks of 4 are computed; the replica that is left is too small for a prompt of 30."""
    roles = [IN_CHUNKS, replace(IN_CHUNKS, max_model_len=20)]
    cluster = run(roles, trace([0.0], [30], [1]), Change(25 * MS, "resend", 0))
    assert cluster.recorder.columns["status"].tolist() == [REJECTED]
    assert wasted_tokens(cluster) == {0: 8}
    assert_tokens_are_conserved(cluster)
