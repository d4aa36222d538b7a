"""Views of routers and their age: cases worked by hand."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.columns.run import serve as run_cluster
from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.cluster import Cluster
from simserve.engine.fleet import Fleet
from simserve.engine.offered import Offered
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay, Refresher, RoutingView
from simserve.errors import PolicyError
from simserve.routers.base import Router
from simserve.routers.least_kv import LeastKv
from simserve.routers.least_outstanding import LeastOutstanding
from simserve.routers.prefix_affinity import PrefixAffinity
from simserve.routers.session_affinity import SessionAffinity
from simserve.routers.weighted import Weighted
from simserve.schedulers.base import Scheduler, StepPlan
from simserve.state.request import Request
from simserve.state.view import LoadView, ReplicaView
from simserve.workload.trace import Prefixes, Trace
from tests.agreement import own, request_rows
from tests.doubles import MS, LineCost, replica_setup, trace
from tests.effort import examples
from tests.worlds import ROUTERS, setups, traces

EVERY_MS = LineCost(step=MS)


def run(load: Trace, router: Router, delay: Delay | None, n: int = 2, **setup: Any) -> Cluster:
    several = own([replica_setup(**{"cost": EVERY_MS, **setup})] * n)
    cluster = Cluster(several, router, Offered(load), router_seed=0, delay=delay)
    run_cluster(cluster)
    return cluster


def replicas(load: Trace, router: Router, delay: Delay | None, n: int = 2, **setup: Any) -> list[int]:
    """Return the replica of each request."""
    places: list[int] = run(load, router, delay, n, **setup).recorder.columns["replica"].tolist()
    return places


def at_ms(*arrivals: float, output_tokens: int = 1000) -> Trace:
    n = len(arrivals)
    return trace([ms / 1000 for ms in arrivals], [10] * n, [output_tokens] * n)


def test_until_the_next_refresh_all_go_where_it_was_emptiest() -> None:
    load = at_ms(1, 2, 3, 11, 12, 21)
    assert replicas(load, LeastOutstanding(), None) == [0, 1, 0, 1, 0, 1]
    assert replicas(load, LeastOutstanding(), Delay(10 * MS)) == [0, 0, 0, 1, 1, 1]  # 0:0, then 3:0, then 3:2


def test_a_router_that_counts_its_own_sends_does_not_herd() -> None:
    load = at_ms(1, 2, 3, 11, 12, 21)
    assert replicas(load, LeastOutstanding(), Delay(10 * MS, counts_own_sends=True)) == [0, 1, 0, 1, 0, 1]


def test_what_it_counts_does_not_tell_it_who_has_finished() -> None:
    """The 1 ms and 2 ms requests end after one step; the 3 ms one stays. At 5 ms the truth is 1:0."""
    load = trace([0.001, 0.002, 0.003, 0.005], [10] * 4, [1, 1, 100, 1])
    assert replicas(load, LeastOutstanding(), None) == [0, 0, 0, 1]
    assert replicas(load, LeastOutstanding(), Delay(10 * MS, counts_own_sends=True)) == [0, 1, 0, 1]
    load = trace([0.001, 0.002, 0.003, 0.0055, 0.0056], [10] * 5, [1, 100, 1, 1, 1])
    assert replicas(load, LeastOutstanding(), None) == [0, 0, 1, 1, 0]
    assert replicas(load, LeastOutstanding(), Delay(10 * MS, counts_own_sends=True)) == [0, 1, 0, 1, 0]


def test_a_refresh_comes_after_the_steps_that_end_then_and_before_the_requests_that_come_then() -> None:
    """The first ends at 10 ms, at the refresh, and is not counted. Requests of 10 ms do not see each other."""
    load = trace([0.009, 0.01, 0.01, 0.0105], [10] * 4, [1, 500, 500, 500])
    assert replicas(load, LeastOutstanding(), Delay(10 * MS)) == [0, 0, 0, 0]
    load = trace([0.0095, 0.01, 0.01, 0.0105], [10] * 4, [1, 500, 500, 500])  # its step ends at 10.5 ms
    assert replicas(load, LeastOutstanding(), Delay(10 * MS)) == [0, 1, 1, 1]


def test_blocks_are_those_of_the_step_in_flight_at_the_refresh() -> None:
    """Blocks of 4 tokens. 10 tokens are 3 blocks, and 12 are stored after two more steps; the fourth block begins with
    the step from 4 to 5 ms, so a refresh at 4 ms does not see it, and one at 4.5 ms does."""
    first = trace([0.001, 0.001, 0.0055], [10, 13, 1], [100, 100, 1])

    def last(refresh_ps: int, other_blocks: int) -> int:
        load = replace(first, prompt_tokens=np.array([10, 4 * other_blocks - 3, 1]))
        return replicas(load, Fixed([0, 1], LeastKv()), Delay(refresh_ps), block_size=4)[2]

    # The other replica has n blocks: with one less it is picked, as ties go to the first.
    assert [last(4 * MS, n) for n in (2, 3, 4)] == [1, 0, 0]
    assert [last(4 * MS + MS // 2, n) for n in (2, 3, 4)] == [1, 1, 0]


def test_counted_prompts_fill_blocks_but_no_more_than_there_are() -> None:
    router = Spy(LeastKv())
    load = trace([0.001, 0.001, 0.001], [30, 30, 30], [1, 1, 1])
    replicas(load, router, Delay(10 * MS, counts_own_sends=True), n_blocks=5, block_size=8)
    assert router.seen == [[(0, 0), (0, 0)], [(1, 4), (0, 0)], [(1, 4), (1, 4)]]
    router = Spy(Fixed([0, 0, 0], LeastKv()))
    replicas(load, router, Delay(10 * MS, counts_own_sends=True), n_blocks=5, block_size=8)
    assert router.seen[2] == [(2, 5), (0, 0)]


def test_nothing_is_refreshed_when_nothing_happens() -> None:
    """A day between two requests, and a refresh every microsecond."""
    cluster = run(trace([0.0, 86_400.0], [10, 10], [2, 2]), LeastOutstanding(), Delay(10**6))
    assert cluster.recorder.columns["finish_ps"].tolist() == [2 * MS, 86_400_000 * MS + 2 * MS]


def test_refreshing_does_not_keep_a_stuck_run_alive() -> None:
    cluster = run(at_ms(1, 2), LeastOutstanding(), Delay(MS), scheduler=Never())
    assert any("deadlock" in reason for reason in cluster.recorder.reasons)


@settings(max_examples=examples(200))
@given(setups(), st.sampled_from((*ROUTERS, PrefixAffinity, partial(Weighted, prefix=0.0))), traces())
def test_news_of_the_very_instant_are_the_truth_where_no_two_requests_share_one(
    several: list[ReplicaSetup], router: Any, load: Trace
) -> None:
    disaggregated = replace(load, arrival_s=load.arrival_s + np.arange(len(load)) * 1.37e-7)
    runs = [Cluster(own(several), router(), Offered(disaggregated), 7, delay=delay) for delay in (None, Delay(1))]
    for each in runs:
        run_cluster(each)
    assert request_rows(runs[0]) == request_rows(runs[1])


def test_a_session_stays_where_it_was_until_that_is_too_busy() -> None:
    sessions = ["a", "b", "a", "a", "b", "a", "a"]
    load = replace(at_ms(1, 2, 3, 4, 5, 6, 7), session_id=np.array(sessions))
    assert replicas(load, SessionAffinity(), None) == [0, 1, 0, 0, 1, 0, 0]
    # The last but one sees 3:2, the last 4:2, which exceeds the limit; it moves.
    assert replicas(load, SessionAffinity(max_imbalance=1), None) == [0, 1, 0, 0, 1, 0, 1]


def test_requests_of_no_session_go_to_the_least_busy_and_are_not_remembered() -> None:
    load = replace(at_ms(1, 2, 3, 4), session_id=np.array(["", "", "", ""]))
    assert replicas(load, SessionAffinity(), None) == [0, 1, 0, 1]


def test_an_index_of_own_sends_knows_prompts_and_not_answers() -> None:
    """The last prompt is the first one, its answer and more: of 40 tokens 16 were sent and 32 are cached. Meanwhile
    another request runs on the first replica, so that only a hit leads back there."""
    chains = Prefixes.from_ids(8, np.array([0, 1, 2, 3, 0, 1, 2, 3]), np.array([0, 4, 4, 8]))
    load = replace(trace([0.0, 0.05, 0.051], [16, 10, 40], [17, 100, 5]), prefixes=chains)
    where: dict[tuple[str, float], int] = {}
    indices: tuple[Literal["exact", "own_sends"], ...] = ("exact", "own_sends")
    for index in indices:
        for least_frac in (0.4, 0.5, 0.9):
            router = PrefixAffinity(min_hit_frac=least_frac, index=index)
            setup = replace(replica_setup(cost=EVERY_MS, block_size=8), caches_prefixes=True)
            cluster = Cluster(own([setup] * 2), router, Offered(load), router_seed=0)
            run_cluster(cluster)
            where[index, least_frac] = cluster.recorder.columns["replica"].tolist()[2]
    assert where == {
        ("exact", 0.4): 0,
        ("exact", 0.5): 0,
        ("exact", 0.9): 1,
        ("own_sends", 0.4): 0,
        ("own_sends", 0.5): 1,
        ("own_sends", 0.9): 1,
    }


@pytest.mark.parametrize("router", [LeastOutstanding(), LeastKv(), Weighted(prefix=0.0), SessionAffinity()])
@pytest.mark.parametrize("delay", [None, Delay(5 * MS, counts_own_sends=True)])
def test_a_router_spreads_over_sixty_four_replicas(router: Router, delay: Delay | None) -> None:
    n = 640
    load = trace([0.0001 * i for i in range(n)], [20] * n, [30] * n)
    load = replace(load, session_id=np.array([str(i % 200) for i in range(n)]))
    assert set(replicas(load, router, delay, n=64)) == set(range(64))


@pytest.mark.parametrize("delay", [None, Delay(5 * MS), Delay(5 * MS, counts_own_sends=True)])
def test_members_stay_in_the_order_of_joining(delay: Delay | None) -> None:
    routing_view, replicas = opened(Spy(LeastOutstanding()), delay)
    routing_view.remove(1)
    assert [view.id for view in routing_view.views] == [0, 2]
    routing_view.add(replicas[1])
    routing_view.remove(0)
    assert [view.id for view in routing_view.views] == [2, 1]
    assert routing_view.pick(REQUEST) is replicas[2]


@pytest.mark.parametrize("delay", [None, Delay(5 * MS), Delay(5 * MS, counts_own_sends=True)])
def test_a_router_that_keeps_the_view_of_a_gone_member_is_named(delay: Delay | None) -> None:
    routing_view, replicas = opened(KeepsViews(), delay)
    assert [routing_view.pick(REQUEST) for _ in range(2)] == [replicas[0]] * 2
    routing_view.remove(0)
    with pytest.raises(PolicyError) as error:
        routing_view.pick(REQUEST)
    assert str(error.value) == (
        "tests.engine.test_routing_view:KeepsViews.pick: must return one of the views it was given; a router may not "
        "keep views, got 'a view of replica 0', at 0.000000 s of simulated time; correct the policy"
    )


def test_the_snapshot_of_a_member_that_was_away_is_no_view_of_it() -> None:
    routing_view, replicas = opened(KeepsViews(), Delay(5 * MS))
    routing_view.pick(REQUEST)
    routing_view.remove(0)
    routing_view.add(replicas[0])
    with pytest.raises(PolicyError, match="a router may not keep views, got 'a view of replica 0'"):
        routing_view.pick(REQUEST)


@pytest.mark.parametrize(
    "router",
    [
        *(kind() for kind in ROUTERS),
        PrefixAffinity(index="own_sends"),
        SessionAffinity(),
        Weighted(prefix=0.5, session=0.5),
    ],
)
@pytest.mark.parametrize("delay", [None, Delay(3 * MS), Delay(3 * MS, counts_own_sends=True)])
def test_a_member_gets_requests_only_while_it_is_ready(router: Router, delay: Delay | None) -> None:
    """Requests come every 0.1 ms, with four sessions. Replica 1 is away from 20 to 40 ms, and replica 0 from 30 on."""
    n = 600
    load = trace([i * 1e-4 for i in range(n)], [20] * n, [5] * n)
    chains = Prefixes.from_ids(8, np.arange(2 * n) % 16, np.arange(n + 1) * 2)
    load = replace(load, session_id=np.array([str(i % 4) for i in range(n)]), prefixes=chains)
    setup = replace(replica_setup(cost=EVERY_MS, block_size=8), caches_prefixes=True)

    class Away:
        """A control that hides replicas from the router, and shows one again."""

        shifts = False

        def goes_on(self) -> bool:
            return True

        def begin(self, fleet: Fleet, clock: Clock) -> None:
            routing_view = cluster.intake
            assert isinstance(routing_view, RoutingView)
            for at_ms, change in (
                (20, lambda _: routing_view.remove(1)),
                (30, lambda _: routing_view.remove(0)),
                (40, lambda _: routing_view.add(cluster.replicas[1])),
            ):
                Alarm(clock, change, FLEET_PHASE).set(at_ms * MS)

    cluster = Cluster(own([setup] * 3), router, Offered(load), router_seed=0, delay=delay, control=Away())
    run_cluster(cluster)
    columns = cluster.recorder.columns
    replica, sent_ps = columns["replica"], np.arange(n) * MS // 10
    away = [(1, 20, 40), (0, 30, 1000)]
    for member, from_ms, until_ms in away:
        assert member not in replica[(sent_ps >= from_ms * MS) & (sent_ps < until_ms * MS)]
        assert member in replica[(sent_ps < from_ms * MS)]
    assert (columns["finish_ps"] > 0).all()


def opened(router: Router, delay: Delay | None) -> tuple[RoutingView, list[Replica]]:
    """Return a router with its views of three idle replicas."""
    cluster = Cluster(own([replica_setup()] * 3), LeastKv(), Offered(at_ms(1)), router_seed=0)
    router.begin(None)  # type: ignore[arg-type]  # it draws nothing
    clock = cluster.clock
    view = RoutingView(clock, router) if delay is None else Refresher(clock, delay).routing_view(router)
    for replica in cluster.replicas:
        view.add(replica)
    return view, cluster.replicas


REQUEST = Request(row=0, arrival_ps=0, prompt_tokens=10, max_tokens=10)


class KeepsViews(Router):
    """Returns the first view that it ever saw."""

    def begin(self, stream: Any) -> None:
        self.kept: LoadView | None = None

    def pick(self, request: Request, views: Any) -> LoadView:
        self.kept = self.kept or views[0]
        return self.kept


@dataclass
class Fixed(Router):
    """Sends the first requests to given replicas, and lets another router place the rest."""

    places: list[int]
    then: Router

    def begin(self, stream: Any) -> None:
        self.left = list(self.places)
        self.then.begin(stream)

    def pick(self, request: Any, views: Any) -> LoadView:
        return views[self.left.pop(0)] if self.left else self.then.pick(request, views)


@dataclass
class Spy(Router):
    """Records what it sees."""

    inner: Router

    def begin(self, stream: Any) -> None:
        self.seen: list[list[tuple[int, int]]] = []
        self.inner.begin(stream)

    def pick(self, request: Any, views: Any) -> LoadView:
        self.seen.append([(view.n_outstanding, view.held_blocks()) for view in views])
        return self.inner.pick(request, views)


class Never(Scheduler):
    """Starts nothing."""

    def plan(self, view: ReplicaView) -> StepPlan:
        return StepPlan()
