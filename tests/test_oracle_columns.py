"""Engine and oracle agree on worlds short of blocks, with built-in policies; and laws of the columns that it uses."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.admission.base import Admission, QueueView
from simserve.admission.token_bucket import TokenBucket
from simserve.columns import run as columns
from simserve.columns.entrance import is_own
from simserve.columns.lines import Line
from simserve.columns.live import PASSES, WAITS, Live
from simserve.columns.records import counts
from simserve.columns.run import serve as run_cluster
from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.replica_setup import ReplicaSetup
from simserve.errors import PolicyError, ScenarioError, TraceError
from simserve.integers import NEVER, Heap, Tournament, filled, total, widened
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.state.request import Request
from simserve.state.view import LoadView
from simserve.units import EndsTooLate
from simserve.workload.trace import Dependencies, Trace
from tests.agreement import assert_agreement, engine_steps, own, run_both
from tests.doubles import MS, replica_setup, trace
from tests.effort import examples
from tests.test_oracle_sessions import STOPS, USERS, beside, dependent
from tests.worlds import ROUTERS, disaggregated, front_ends, grouped, links, setups, shared_prompts, traces


@st.composite
def planned_on_columns(draw: st.DrawFn, setup: ReplicaSetup, *, caches: bool) -> ReplicaSetup:
    """Let a replica plan on columns, with few enough blocks that requests are preempted."""
    n_slots = draw(st.integers(1, 6))
    policy = Chunked(
        max_num_batched_tokens=n_slots + draw(st.integers(0, 40)),
        max_num_seqs=n_slots,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 11])),
        scheduler_reserve_full_isl=draw(st.booleans()),
    )
    kept: Any = {"caches_prefixes": caches, "keeps_contents": caches or draw(st.booleans())}
    drawn = setup.scheduler
    fits = drawn.rows_planner() is not None and (drawn.shares_blocks or not caches)
    return replace(setup, scheduler=drawn if fits and draw(st.booleans()) else policy, **kept)


@st.composite
def on_columns(draw: st.DrawFn) -> tuple[list[ReplicaSetup], Trace]:
    """Draw replicas that columns serve, and a load for them."""
    (setup, *others), caches = draw(setups()), draw(st.booleans())
    setup = draw(planned_on_columns(setup, caches=caches))
    loads = shared_prompts() if caches else traces()
    return [setup] * (1 + len(others)), draw(st.one_of(loads, dependent(loads)))


@st.composite
def grouped_on_columns(draw: st.DrawFn) -> tuple[list[ReplicaSetup], Trace]:
    """Let layers keep different tokens."""
    setups, load = draw(on_columns())
    return draw(grouped(st.just(setups))), load


@st.composite
def apart_on_columns(draw: st.DrawFn) -> tuple[list[ReplicaSetup], Trace]:
    """Draw prefill and decode replicas that columns serve, and a load for them."""
    pools, caches = draw(disaggregated()), draw(st.booleans())
    caching = {"prefill": caches, "decode": caches and draw(st.booleans())}
    sides = {each.role: draw(planned_on_columns(each, caches=caching[each.role])) for each in pools}
    result = [sides[each.role] for each in pools]
    limit = min(each.max_model_len for each in result)
    result = [replace(each, max_model_len=draw(st.sampled_from([limit, each.max_model_len]))) for each in result]
    loads = shared_prompts() if caches else traces()
    return result, draw(st.one_of(loads, dependent(loads)))


@st.composite
def timed(draw: st.DrawFn, load: Trace, n_users: int | None, stop_ps: int | None) -> tuple[Trace, int, int | None]:
    """Draw sessions with times of their own beside users; the oracle ends loads without any with their last row."""
    load, n_timed = draw(beside(st.just(load))) if n_users else (load, 0)
    return load, n_timed, None if load.dependencies is None and not n_timed else stop_ps


@settings(max_examples=examples(400))
@given(on_columns() | grouped_on_columns(), st.sampled_from(ROUTERS), USERS, front_ends(), STOPS, st.data())
def test_engine_and_oracle_agree(
    world: tuple[list[ReplicaSetup], Trace],
    router: Any,
    n_users: int | None,
    front_end: FrontEnd,
    stop_ps: int | None,
    data: st.DataObject,
) -> None:
    setups, load = world
    load, n_timed, stop_ps = data.draw(timed(load, n_users, stop_ps))
    how: Any = {"stop_ps": stop_ps, "n_timed": n_timed}
    assert_agreement(setups, *run_both(setups, router, load, n_users, front_end, **how))


@st.composite
def grouped_apart(draw: st.DrawFn) -> tuple[list[ReplicaSetup], Trace]:
    """Let layers of prefill and decode replicas keep different tokens."""
    setups, load = draw(apart_on_columns())
    return draw(grouped(st.just(setups))), load


@settings(max_examples=examples(400))
@given(
    apart_on_columns() | grouped_apart(),
    links(),
    st.booleans(),
    st.sampled_from(ROUTERS),
    USERS,
    front_ends(),
    STOPS,
    st.data(),
)
def test_engine_and_oracle_agree_on_hand_overs(
    world: tuple[list[ReplicaSetup], Trace],
    link: LinkSpec,
    is_pushed: bool,
    router: Any,
    n_users: int | None,
    front_end: FrontEnd,
    stop_ps: int | None,
    data: st.DataObject,
) -> None:
    setups, load = world
    load, n_timed, stop_ps = data.draw(timed(load, n_users, stop_ps))
    sent: Any = {"stop_ps": stop_ps, "n_timed": n_timed}
    assert_agreement(setups, *run_both(setups, router, load, n_users, front_end, link, is_pushed=is_pushed, **sent))


@settings(max_examples=examples(200))
@given(
    on_columns() | apart_on_columns(),
    st.sampled_from(ROUTERS),
    st.none() | st.integers(1, 7),
    st.integers(0, 40),
    st.sampled_from([10**6, 10**8, 10**10]),
    links(),
    st.booleans(),
)
def test_a_run_that_is_cut_short_is_the_beginning_of_the_whole_one(
    world: tuple[list[ReplicaSetup], Trace],
    router: Any,
    concurrency: int | None,
    drain_units: int,
    unit_ps: int,
    link: LinkSpec,
    is_pushed: bool,
) -> None:
    setups, load = world
    is_apart = any(setup.role != "both" for setup in setups)
    hows = [Disaggregation(router(), link, is_pushed) if is_apart else None for _ in range(2)]
    offered = Offered(load, concurrency)
    whole, cut = (Cluster(own(setups), router(), offered, 7, disaggregation=how) for how in hows)
    run_cluster(whole)
    run_cluster(cut, drain_units * unit_ps)
    end_ps = cut.clock.now_ps
    for name in ("first_token_ps", "finish_ps"):
        ended = whole.recorder.columns[name]
        assert np.where(ended <= end_ps, ended, -1).tolist() == cut.recorder.columns[name].tolist(), name
    for replica in range(len(whole.replicas)):
        steps = [each for each in engine_steps(whole, replica) if each["end_ps"] <= end_ps]
        assert [(each["start_ps"], each["end_ps"], each["kv_tokens"]) for each in steps] == [
            (each["start_ps"], each["end_ps"], each["kv_tokens"]) for each in engine_steps(cut, replica)
        ]


@settings(max_examples=examples(200))
@given(on_columns() | grouped_on_columns() | apart_on_columns(), st.sampled_from(ROUTERS), links(), st.booleans())
def test_a_built_in_policy_plans_alike_for_requests_in_columns_and_in_views(
    world: tuple[list[ReplicaSetup], Trace], router: Any, link: LinkSpec, is_pushed: bool
) -> None:
    setups, load = world
    recorded = []
    for plans_rows in (is_own, lambda policy: False):
        how = Disaggregation(router(), link, is_pushed) if any(setup.role != "both" for setup in setups) else None
        cluster = Cluster(own(setups), router(), Offered(load), 7, disaggregation=how)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "is_own", plans_rows)
            run_cluster(cluster)
        recorder = cluster.recorder
        rows = [[*recorder.step_runs(i).tolist(), *recorder.spans(i).tolist()] for i in range(len(cluster.replicas))]
        recorded.append((rows, {name: column.tolist() for name, column in recorder.columns.items()}))
    assert recorded[0] == recorded[1]


class Third(LeastOutstanding):
    """A router that breaks a rule with its third request, and derives from one that columns need not ask."""

    n_picks = 0

    def pick(self, request: Request, views: Sequence[LoadView]) -> LoadView:
        self.n_picks += 1
        return None if self.n_picks == 3 else super().pick(request, views)  # type: ignore[return-value]


def test_a_router_of_ones_own_is_asked_and_its_error_names_the_instant() -> None:
    load = Offered(trace([0.0, 0.5, 1.25], [9, 9, 9], [9, 9, 9]))
    with pytest.raises(PolicyError, match=r"Third.pick: must return one of the views .* at 1\.250000 s"):
        run_cluster(Cluster([replica_setup(Chunked())] * 2, Third(), load, 7))


@pytest.mark.parametrize("admission", [None, TokenBucket(rate_per_s=0.1, burst=1.0)])
def test_a_refused_request_cuts_the_step_run_of_a_lone_replica(admission: Admission | None) -> None:
    """A lone replica cuts its run where the next request comes, before it is known that this one is refused."""
    load = trace([0.0, 0.05], [4, 9 if admission is None else 4], [30, 1])
    setup = replica_setup(PrefillFirst(max_num_batched_tokens=8))
    cluster = Cluster([setup], RoundRobin(), Offered(load), 7, admission=deepcopy(admission))
    run_cluster(cluster)
    assert cluster.recorder.columns["status"].tolist() == [1, 2]
    assert len(cluster.recorder.step_runs(0)) == 3


def test_more_pairs_of_tokens_in_a_step_than_a_machine_integer_holds_are_refused() -> None:
    policy = Chunked(max_num_batched_tokens=2**31, max_num_seqs=1)
    fits = replica_setup(policy, n_blocks=2**30, block_size=16, max_model_len=2**31)
    small = replace(fits, n_blocks=10, max_model_len=2**31 + 1)
    longer = replace(fits, max_model_len=2**31 + 1)
    load = Offered(trace([0.0], [1], [1]))
    for each in (fits, small):
        run_cluster(Cluster([each], RoundRobin(), load, 7))
    rule = "times the 2,147,483,648 tokens that a step may have, it must be at most 4,611,686,018,427,387,904"
    error = f"max_model_len: {rule}, got 2,147,483,649; lower it, or the budget of a step"
    with pytest.raises(ScenarioError, match=error):
        run_cluster(Cluster([longer], RoundRobin(), load, 7))


def test_two_counts_share_a_cell_as_far_as_a_row_holds_them() -> None:
    most = 2**31 - 1
    row = np.array([counts(3, most), counts(most, 0)]).view(np.int32)
    assert row.tolist() == [3, most, most, 0]
    for one, other in ((most + 1, 0), (0, most + 1)):
        with pytest.raises(EndsTooLate):
            counts(one, other)


def test_a_request_after_a_think_time_beyond_64_bits_is_refused() -> None:
    """It would be sent after 160 days; a machine integer of picoseconds holds 106."""
    days_s = 80 * 86_400.0
    links = Dependencies.from_pairs(np.array([1]), np.array([0]), np.array([0.0, days_s]))
    load = Offered(replace(trace([days_s, days_s], [9, 9], [9, 9]), dependencies=links))
    with pytest.raises(TraceError, match="all requests must be sent within 90 days"):
        run_cluster(Cluster([replica_setup(Chunked())], RoundRobin(), load, 7))


@given(st.lists(st.tuples(st.sampled_from(["append", "append_left", "pop_left", "drop", "keep", "clear"]), st.data())))
def test_a_line_is_what_a_list_is_and_nothing_stands_behind_its_last(actions: list[tuple[str, st.DataObject]]) -> None:
    live = Live()
    line, places = Line(live), list[int]()
    for action, data in actions:
        if action.startswith("append"):
            place = live.add(0, 1, 1, 1)
            getattr(line, action)(place)
            places.insert(0 if action == "append_left" else len(places), place)
        elif action == "clear":
            line.clear()
            places.clear()
        elif action == "keep":
            for place in places:
                live.phase[place] = data.draw(st.sampled_from([WAITS, PASSES]))
            line.keep(WAITS)
            places = [place for place in places if live.phase[place] == WAITS]
        elif places and action == "drop":
            line.drop(place := data.draw(st.sampled_from(places)))
            places.remove(place)
        elif places:
            assert line.pop_left() == places.pop(0)
        assert line.places() == places
        assert not places or (line.first(), live.after[places[-1]]) == (places[0], -1)


@given(st.lists(st.integers(0, NEVER - 1)), st.data())
def test_a_heap_gives_the_least(keys: list[int], data: st.DataObject) -> None:
    heap, left = Heap(), list[int]()
    for key in keys:
        heap.push(key)
        left.append(key)
        if data.draw(st.booleans()):
            left.remove(min(left))
            heap.pop()
        assert heap.least() == min(left, default=NEVER)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5) | st.just(NEVER))))
def test_a_tournament_gives_the_first_place_with_the_least(changes: list[tuple[int, int]]) -> None:
    tournament, numbers = Tournament(4), [NEVER] * 9
    for n, (place, number) in enumerate(changes):
        if place >= 4 or n == 5:
            tournament.widen(9)
        tournament.set(place, number)
        numbers[place] = number
        assert tournament.least() == min(numbers)
        assert tournament.first() == (numbers.index(min(numbers)) if min(numbers) < NEVER else 0)


def test_columns_are_as_long_as_asked_and_sum_up() -> None:
    wider = widened(filled(3, NEVER), 2)
    assert list(wider) == [NEVER] * 3 + [-1] * 2
    assert total(filled(5, 7), 1, 4) == 21


def test_a_number_that_no_column_holds_is_refused() -> None:
    with pytest.raises((OverflowError, TypeError)):  # interpreted; compiled
        filled(1, NEVER + 1)


class BlocksSeen(Admission):
    """An admission policy that notes the blocks that each replica holds as requests come, and admits all."""

    def begin(self) -> None:
        """Forget what an earlier run has seen."""
        self.seen: list[tuple[int, ...]] = []

    def decide(self, request: Request, views: Sequence[QueueView], now_ps: int) -> None:
        """Note what is there at this instant, in the middle of step runs."""
        self.seen.append((now_ps, *(view.held_blocks() for view in views)))


def test_an_admission_policy_sees_replicas_as_they_are_as_a_request_comes() -> None:
    load = Offered(trace([0.0, 0.31, 0.77, 1.9], [30, 20, 9, 5], [400, 90, 300, 2]))
    policy = BlocksSeen()
    cluster = Cluster([replica_setup(block_size=1)] * 2, RoundRobin(), load, 7, admission=policy)
    run_cluster(cluster)
    assert [instant for instant, *_ in policy.seen] == [0, 310 * MS, 770 * MS, 1900 * MS]
    assert len({each[1:] for each in policy.seen}) == 4
