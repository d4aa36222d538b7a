"""Engine and oracle agree while members join, drain and fail, in every combination of mechanisms."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, run_both
from tests.test_oracle_patience import admissions, patiences
from tests.test_oracle_routers import delays, routers
from tests.test_oracle_sessions import STOPS, beside, dependent
from tests.test_oracle_together import CONCURRENCY, SLOWLY, WORLDS, World, check, loads, separate
from tests.worlds import ROUTERS, changes, front_ends, setups, traces


@st.composite
def crowded(draw: st.DrawFn, loads: st.SearchStrategy[Trace]) -> Trace:
    """Let requests come so fast that many are there when a member ends."""
    load = draw(loads)
    return replace(load, arrival_s=load.arrival_s * draw(st.sampled_from([1.0, 1e-2, 1e-3, 1e-5])))


@SLOWLY
@given(setups(), st.sampled_from(ROUTERS), crowded(traces()), st.data())
def test_plain_replicas(replicas: list[ReplicaSetup], router: Any, load: Trace, data: st.DataObject) -> None:
    cluster, truth = run_both(replicas, router, load, None, changes=data.draw(changes(replicas, load)))
    assert_agreement([each.setup for each in cluster.members], cluster, truth)


@SLOWLY
@given(separate(), routers(), st.data(), st.none() | delays())
def test_hand_overs(world: World, router: Any, data: st.DataObject, delay: Delay | None) -> None:
    load = data.draw(crowded(loads(world)))
    check(world, load, router, None, FrontEnd(), delay=delay, changes=data.draw(changes(world.setups, load)))


@SLOWLY
@given(WORLDS, routers(), st.data(), CONCURRENCY, front_ends(), st.none() | delays())
def test_clients_that_wait(
    world: World,
    router: Any,
    data: st.DataObject,
    concurrency: int | None,
    front_end: FrontEnd,
    delay: Delay | None,
) -> None:
    load, admission = data.draw(crowded(loads(world))), None if concurrency else data.draw(admissions())
    script = data.draw(changes(world.setups, load))
    check(world, load, router, concurrency, front_end, delay=delay, admission=admission, changes=script)


@SLOWLY
@given(WORLDS, routers(), st.data(), CONCURRENCY, front_ends(), st.none() | delays())
def test_clients_that_give_up(
    world: World,
    router: Any,
    data: st.DataObject,
    concurrency: int | None,
    front_end: FrontEnd,
    delay: Delay | None,
) -> None:
    load = data.draw(crowded(loads(world)))
    limits = {"patience": data.draw(patiences()), "admission": data.draw(admissions())}
    script = data.draw(changes(world.setups, load))
    check(world, load, router, concurrency, front_end, delay=delay, changes=script, **limits)


@SLOWLY
@given(WORLDS, routers(), st.data(), CONCURRENCY, front_ends(), st.none() | delays())
def test_sessions(
    world: World,
    router: Any,
    data: st.DataObject,
    n_users: int | None,
    front_end: FrontEnd,
    delay: Delay | None,
) -> None:
    load, n_timed = data.draw(beside(dependent(loads(world))))
    patience, admission, stop_ps = data.draw(st.none() | patiences()), data.draw(admissions()), data.draw(STOPS)
    limits = {"patience": patience, "admission": admission, "n_timed": 0 if n_users is None else n_timed}
    script = data.draw(changes(world.setups, load))
    check(world, load, router, n_users, front_end, delay=delay, stop_ps=stop_ps, changes=script, **limits)
