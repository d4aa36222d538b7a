"""Engine and oracle agree while members join, drain and fail; test_oracle_together.py adds clients and sessions."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Patience
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, run_both
from tests.effort import examples
from tests.test_oracle_patience import patiences
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


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("n_layers", [None, 1, 3], ids=["push", "by_chunk", "by_layer"])
@given(world=separate(("pushed",)), router=routers(), data=st.data(), patience=st.none() | patiences())
def test_prompts_that_are_pushed(
    world: World, router: Any, data: st.DataObject, patience: Patience | None, n_layers: int | None
) -> None:
    assert world.link is not None
    load = data.draw(rushed(loads(world)))
    scene = Scene(replace(world, link=replace(world.link, n_layers=n_layers)), router, None, FrontEnd(), None)
    scene.check(load, changes=data.draw(changes(world.setups, load)), patience=patience)
