"""Every request's time is split as the oracle does that looks at every instant, and the parts add up to its E2E."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve import load_scenario, simulate
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.replica_setup import ReplicaSetup
from simserve.metrics.integrals import Waits, kept_out_ps
from simserve.metrics.time_split import PARTS
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.tables.columns import Categorical, Columns
from simserve.units import array_to_ps
from simserve.workload.trace import Trace
from tests.agreement import assert_times_are_split, request_table, run_both
from tests.doubles import MS, LineCost, plain_blocks, replica_setup, serve, trace
from tests.effort import examples
from tests.metrics.stories import in_pieces
from tests.oracle import OracleRun
from tests.oracle_replica import OracleReplica
from tests.oracle_time import Account
from tests.test_oracle_handoff import layered
from tests.test_oracle_host_tier import offloading, swapping
from tests.test_oracle_speculation import speculating
from tests.worlds import ROUTERS, caching, disaggregated, front_ends, links, setups, shared_prompts, traces

SLOWLY = settings(max_examples=examples(60))
NO_FRONT_END = FrontEnd()
SHORT = {
    "agents": "workload.duration_s=100",
    "chat_burst": "workload.duration_s=100",
    "mixed_pool": "workload.n_requests=600",
    "overload": "workload.duration_s=100",
    "speculation": "workload.n_requests=600",
    "tenants": "workload.duration_s=100",
    "two_nodes": "workload.n_requests=600",
}
"""Scenarios, and what makes them short."""


BLOCKED_BY = ("budget", "seats")


def blocked(replica: list[int], cause: list[int], **times_s: list[float]) -> Columns:
    """Rows of replicas with the index of what blocked the head of the queue; -1: nothing."""
    codes = Categorical(np.array(cause, np.int32), BLOCKED_BY)
    return {"replica": np.array(replica), "blocked_by": codes} | {
        name: np.array(column) for name, column in times_s.items()
    }


def test_what_blocked_the_queue_by_hand() -> None:
    """Replica 0 computes rows of 10 s, blocked by the budget, by nothing, by seats; then it stalls until 50 s and has a
    row that seats block. Replica 1 is blocked by the budget in its only row.
    """
    steps = blocked([0, 0, 0, 0, 1], [0, -1, 1, 1, 0], end_s=[10.0, 20.0, 30.0, 60.0, 10.0])
    start_ps = array_to_ps(np.array([0.0, 10, 20, 50, 0]))
    stalls = blocked([0], [0], at_s=[30.0])
    waits_s = [(0, 0, 12), (0, 4, 8), (0, 12, 18), (0, 8, 25), (0, 25, 35), (0, 45, 70), (1, 5, 30), (0, 5, 5)]
    replica, begin, end = (np.array(column) for column in zip(*waits_s, strict=True))
    waits = Waits(replica, array_to_ps(begin * 1.0), array_to_ps(end * 1.0))
    for in_piece in (2, 1000):
        with in_pieces(in_piece):
            seats, blocks, budget = (each // 10**12 for each in kept_out_ps(steps, start_ps, stalls, waits))
        assert budget.tolist() == [10, 4, 0, 2, 5, 5, 5, 0]
        assert seats.tolist() == [0, 0, 0, 5, 5, 10, 0, 0]
        assert not blocks.any()


def changes_unasked(replica: OracleReplica) -> bool:
    """What keeps the head of its queue out has changed from one step to the next though all went on as before.

    A policy that is asked every step, as here, says so; the engine asks again only when something happens.
    """
    return any(
        before.blocked_by != after.blocked_by
        and before.decoded == after.decoded
        and not (before.computed or after.computed)
        for before, after in pairwise(replica.steps)
    )


def waits_together(parts: dict[str, int]) -> dict[str, int]:
    """Whatever kept it out, in one."""
    waits_ps = sum(ps for name, ps in parts.items() if name.startswith("queue_"))
    return {name: ps for name, ps in parts.items() if not name.startswith("queue_")} | {"queue": waits_ps}


def assert_split(
    cluster: Cluster, truth: OracleRun, front_end: FrontEnd = NO_FRONT_END, how: Disaggregation | None = None
) -> None:
    """As the oracle's account of each picosecond, and exactly the whole."""
    requests = request_table(cluster, how)[0]
    row_of = np.arange(cluster.rows.capacity)[cluster.sender.rows_sent].tolist()  # the table is in the order of sending
    parts = {name: array_to_ps(np.nan_to_num(requests[name])) for name in PARTS}
    finished = np.flatnonzero(requests["status"].is_("finished")).tolist()
    assert len(finished) == sum(life.finish_ps >= 0 for life in truth.lives.values())
    for place in finished:
        mine = {name: int(ps[place]) for name, ps in parts.items() if ps[place]}
        account = Account(truth, truth.lives[row_of[place]], front_end, how)
        theirs = account.parts()
        if changes_unasked(account.computed_at):
            mine, theirs = waits_together(mine), waits_together(theirs)
        assert mine == theirs
    total_ps = np.sum(list(parts.values()), axis=0)
    assert (total_ps[finished] == array_to_ps(requests["e2e_s"][finished])).all()
    assert all(np.isnan(requests["decode_s"][row]) for row in range(len(total_ps)) if row not in finished)


@SLOWLY
@given(setups(), st.sampled_from(ROUTERS), traces(), st.none() | st.integers(1, 5), front_ends())
@in_pieces()
def test_of_replicas_pipelines_and_ranks(
    replicas: list[ReplicaSetup], router: Any, load: Trace, concurrency: int | None, front_end: FrontEnd
) -> None:
    cluster, truth = run_both(replicas, router, load, concurrency, front_end)
    assert_split(cluster, truth, front_end)


def test_a_client_that_is_refused_sends_before_those_that_wait_for_their_last_token() -> None:
    """Rows are numbered when an answer ends, and the table has them in the order of sending."""
    scheduler, cost = PrefillFirst(max_num_batched_tokens=25, max_num_seqs=1), LineCost(step=5 * MS)
    setup = replace(replica_setup(scheduler, cost, max_model_len=60), n_blocks=60, layers=plain_blocks(1))
    load, front_end = trace([0.0] * 12, [1] * 7 + [60] + [1] * 4, [1] * 12), FrontEnd(respond_ps=MS)
    cluster, truth = run_both([setup] * 3, RoundRobin, load, 4, front_end)
    assert not isinstance(cluster.sender.rows_sent, slice) and cluster.sender.rows_sent.tolist() != [*range(12)]
    assert_split(cluster, truth, front_end)


@SLOWLY
@given(disaggregated(), links(), traces(), st.none() | st.integers(1, 5), st.booleans())
@in_pieces()
def test_of_prefill_and_decode_replicas(
    replicas: list[ReplicaSetup], link: LinkSpec, load: Trace, concurrency: int | None, is_pushed: bool
) -> None:
    cluster, truth = run_both(replicas, RoundRobin, load, concurrency, link=link, is_pushed=is_pushed)
    how = Disaggregation(RoundRobin(), link, is_pushed)
    assert_split(cluster, truth, NO_FRONT_END, how)


@SLOWLY
@given(disaggregated(), layered(), traces())
@in_pieces()
def test_of_prompts_that_are_sent_as_they_are_computed(
    replicas: list[ReplicaSetup], link: LinkSpec, load: Trace
) -> None:
    cluster, truth = run_both(replicas, RoundRobin, load, None, link=link, is_pushed=True)
    how = Disaggregation(RoundRobin(), link, is_pushed=True)
    assert_split(cluster, truth, NO_FRONT_END, how)


@SLOWLY
@given(caching().filter(lambda result: result[0].role == "both"), st.data())
@in_pieces()
def test_of_prompts_that_are_cached(replicas: list[ReplicaSetup], data: st.DataObject) -> None:
    load = data.draw(shared_prompts())
    cluster, truth = run_both(replicas, RoundRobin, load, None)
    assert_split(cluster, truth)


@SLOWLY
@given(swapping(), traces())
@in_pieces()
def test_of_requests_that_are_swapped(replicas: list[ReplicaSetup], load: Trace) -> None:
    cluster, truth = run_both(replicas, RoundRobin, load, None)
    assert_split(cluster, truth)


@SLOWLY
@given(offloading().filter(lambda result: result[0].role == "both"), st.data())
@in_pieces()
def test_of_prefixes_that_are_read_from_host_memory(replicas: list[ReplicaSetup], data: st.DataObject) -> None:
    load = data.draw(shared_prompts())
    cluster, truth = run_both(replicas, RoundRobin, load, None)
    assert_split(cluster, truth)


@settings(SLOWLY, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(speculating(setups()), traces(), st.none() | st.integers(1, 5))
@in_pieces()
def test_where_tokens_are_proposed(replicas: list[ReplicaSetup], load: Trace, concurrency: int | None) -> None:
    cluster, truth = run_both(replicas, RoundRobin, load, concurrency)
    assert_split(cluster, truth)


@pytest.mark.parametrize(
    "name", ["agents", "chat_burst", "mixed_pool", "overload", "speculation", "tenants", "two_nodes"]
)
def test_the_parts_of_whole_scenarios_are_the_whole_and_means_of_them_the_means_of_latencies(name: str) -> None:
    results = simulate(load_scenario(f"scenarios/{name}.yaml", overrides=["measure.replays=0", SHORT[name]]))
    requests = results.columns["requests"]
    finished = requests["status"].is_("finished")
    assert_times_are_split(requests, results.facts)
    chosen = finished & requests["in_window"]
    slowest = results.summary["time_split"]["slowest"]
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        of = slowest[latency]
        values = requests[latency][chosen]
        values = np.sort(values[~np.isnan(values)])
        assert of["n"] == -(-len(values) // 100)
        assert of["from_s"] == values[-of["n"]]
        assert sum(of["all"].values()) == pytest.approx(values.mean(), rel=1e-9)
        assert sum(of["mean"].values()) == pytest.approx(values[-of["n"] :].mean(), rel=1e-9)


def test_an_eviction_in_the_midst_of_a_prompt_by_hand() -> None:
    """Steps of 10 ms and 5 tokens, 4 blocks of 4. The second prompt gets 1 token at 0 ms and 4 at 10 ms. At 20 ms
    it finds no block and gives its two back; it begins again at 30, 60 and 80 ms, as it loses its blocks to the first
    request at 50 ms and finds none again at 70 ms. When that one is done, at 90 ms, it computes to the end.
    """
    scheduler = Chunked(max_num_batched_tokens=5, scheduler_reserve_full_isl=False)
    setup = replica_setup(scheduler, LineCost(step=10 * MS), n_blocks=4, block_size=4)
    cluster = serve(setup, trace([0.0, 0.0], [4, 12], [9, 1]))
    requests = request_table(cluster)[0]
    first, second = ({name: requests[name][row] for name in PARTS if requests[name][row]} for row in (0, 1))
    assert first == {"prefill_s": 0.01, "decode_s": 0.08}
    assert second == {"prefill_s": 0.02, "preempted_s": 0.03, "recompute_s": 0.06}


def test_what_a_prompt_adds_to_the_steps_of_others_by_hand() -> None:
    """A step takes 10 ms and 1 ms a token. The first request decodes alone for 11 ms a step; the second comes in its
    first decode step, with 5 tokens that make the step after it 16 ms long.
    """
    setup = replica_setup(cost=LineCost(step=10 * MS, token=MS))
    cluster = serve(setup, trace([0.0, 0.02], [4, 5], [4, 1]))
    requests = request_table(cluster)[0]
    first, second = ({name: requests[name][row] for name in PARTS if requests[name][row]} for row in (0, 1))
    assert first == {"prefill_s": 0.014, "decode_s": 0.033, "interference_s": 0.005}
    assert second == {"queue_turn_s": 0.005, "prefill_s": 0.016}
