"""Engine and oracle agree while members join, drain and fail; test_oracle_together.py adds clients and sessions."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, run_both
from tests.test_oracle_routers import delays, routers
from tests.test_oracle_together import SLOWLY, Scene, World, loads, rushed, separate
from tests.worlds import ROUTERS, changes, setups, traces


@SLOWLY
@given(setups(), st.sampled_from(ROUTERS), rushed(traces()), st.data())
def test_plain_replicas(replicas: list[ReplicaSetup], router: Any, load: Trace, data: st.DataObject) -> None:
    cluster, truth = run_both(replicas, router, load, None, changes=data.draw(changes(replicas, load)))
    assert_agreement([each.setup for each in cluster.members], cluster, truth)


@SLOWLY
@given(separate(), routers(), st.data(), st.none() | delays())
def test_hand_overs(world: World, router: Any, data: st.DataObject, delay: Delay | None) -> None:
    load = data.draw(rushed(loads(world)))
    Scene(world, router, None, FrontEnd(), delay).check(load, changes=data.draw(changes(world.setups, load)))
