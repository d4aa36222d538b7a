"""Engine and oracle agree while members join, drain and fail; test_oracle_together.py adds clients and sessions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.frontend import FrontEnd
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Patience
from simserve.engine.replica_setup import ReplicaSetup, RoleName
from simserve.engine.routing_view import Delay
from simserve.routers.random import Random
from simserve.routers.round_robin import RoundRobin
from simserve.schedulers.chunked import Chunked
from simserve.schedulers.prefill_first import PrefillFirst
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, run_both
from tests.doubles import LineCost, plain_blocks
from tests.effort import examples
from tests.oracle_fleet import Change
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


def test_what_a_step_computes_for_a_request_that_was_sent_again_is_computed_anew_even_if_its_client_gives_up() -> None:
    roles: tuple[RoleName, RoleName] = ("prefill", "decode")
    policy, cost, blocks = PrefillFirst(None, 1), LineCost(step=5_000_000), plain_blocks(1)
    pools = [ReplicaSetup(policy, cost, 60, blocks, 60, role=role) for role in roles]
    joins = [Change(17_000_000, "join", which) for which in range(2)]
    offered = Trace(np.zeros(4), *np.ones((2, 4), np.int64))
    changed, patience = [Change(17_000_000, "resend", 1), *joins], Patience(None, 17_000_000)
    how: dict[str, Any] = {"link": LinkSpec(1e-9, 0), "is_pushed": True, "changes": changed, "patience": patience}
    cluster, truth = run_both(pools, RoundRobin, offered, None, **how)
    assert_agreement([each.setup for each in cluster.members], cluster, truth)
    assert cluster.recorder.columns["n_recomputed_tokens"].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("n_layers", [1, 3])
def test_stages_of_a_replica_that_failed_push_nothing_for_a_request_that_is_at_its_place_anew(n_layers: int) -> None:
    policy, blocks = Chunked(max_num_batched_tokens=4, max_num_seqs=4), plain_blocks(1)
    stages: list[tuple[RoleName, int]] = [("decode", 1), ("prefill", 2), ("prefill", 2)]
    cost = LineCost(step=5_000_003)
    pools = [ReplicaSetup(policy, cost, 60, blocks, 60, role=role, n_stages=n) for role, n in stages]
    offered = Trace(np.array([0.0] * 6 + [3e-6] * 3), *np.ones((2, 9), np.int64))
    changed = [Change(3_000_000, "resend", 1), *(Change(3_000_000, "join", which) for which in range(2))]
    link = LinkSpec(1e-6, 0, n_layers=n_layers)
    cluster, truth = run_both(pools, Random, offered, None, link=link, is_pushed=True, changes=changed)
    assert_agreement([each.setup for each in cluster.members], cluster, truth)
