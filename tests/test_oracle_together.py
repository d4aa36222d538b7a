"""Engine and oracle agree on several mechanisms at once, in every combination allowed."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.cluster import Cluster
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.link import LinkSpec
from simserve.engine.offered import Offered
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.splitters.base import Splitter
from simserve.workload.trace import Trace
from tests.agreement import assert_agreement, assert_times_are_split, own, request_table, run_both, run_watched
from tests.conservation import assert_tokens_are_conserved
from tests.effort import examples
from tests.oracle_fleet import Change
from tests.test_oracle_handoff import layered
from tests.test_oracle_host_tier import assert_tiers_agree, by_pool, can_have_a_tier, crowded, short_of_blocks, tiers
from tests.test_oracle_patience import UNIT, admissions, assert_all_is_given_back, assert_clients_agree, patiences
from tests.test_oracle_routers import delays, of_sessions, routers
from tests.test_oracle_sessions import STOPS, beside, dependent
from tests.test_oracle_speculation import can_speculate, speculating
from tests.worlds import (
    cached,
    can_be_disaggregated,
    changes,
    disaggregated,
    front_ends,
    grouped,
    mixing,
    ordered,
    setups,
    shared_prompts,
    split,
    splitters,
    tagged,
    traces,
)

SLOWLY = settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class World:
    """Replicas, and the hand-off between them."""

    setups: list[ReplicaSetup]
    link: LinkSpec | None = None
    is_pushed: bool = False
    splitter: Splitter | None = None

    @property
    def caches_prefixes(self) -> bool:
        """Any replica does."""
        return any(setup.caches_prefixes for setup in self.setups)


@st.composite
def together(draw: st.DrawFn, kinds: tuple[str, ...] = ("ordered", "speculating", "tiered", "plain")) -> World:
    """Draw "both" replicas: ordered or not, with host memory or not, and perhaps speculation and caches."""
    kind = draw(st.sampled_from(kinds))
    plain = setups()
    caches = draw(st.booleans())
    if caches:
        plain = plain.filter(lambda result: result[0].scheduler.shares_blocks)
    if kind == "tiered":
        plain = plain.filter(lambda result: can_have_a_tier(result, caches))
    result = draw(ordered(plain) if kind == "ordered" or draw(st.booleans()) else plain)
    if kind == "speculating" or draw(st.booleans()):
        result = [draw(perhaps_speculating(result[0]))] * len(result)
    if caches:
        result = draw(cached(result))
    if kind == "tiered":
        result = [draw(short_of_blocks(st.just(result[0]), 60 if caches else 40))] * crowded(result)
        swaps = not result[0].scheduler.reserves and draw(st.booleans())
        tier = draw(tiers(swaps=swaps, offloads=caches))
        result = [replace(setup, host_tier=tier) for setup in result]
    result = draw(perhaps_grouped(result))
    if any(not can_be_disaggregated(setup.scheduler) for setup in result) or draw(st.booleans()):
        return World(result)
    other = draw(st.sampled_from([None, None, 0, len(result) - 1]))  # keys and values that others cannot use
    result = [replace(each, has_common_kv=place != other) for place, each in enumerate(result)]
    return World(result, replace(draw(layered()), n_layers=None))


@st.composite
def separate(draw: st.DrawFn, kinds: tuple[str, ...] = ("pushed", "ordered", "tiered", "plain")) -> World:
    """Draw prefill and decode pools; ordered or with host memory, and perhaps caches; perhaps others."""
    kind, is_split = draw(st.sampled_from(kinds)), draw(st.booleans())
    plain, is_pushed = split() if is_split else disaggregated(), kind == "pushed" or draw(st.booleans())
    result = draw(ordered(plain) if kind == "ordered" or draw(st.booleans()) else plain)
    link = draw(layered()) if is_pushed and draw(st.booleans()) else replace(draw(layered()), n_layers=None)
    if kind == "tiered" or draw(st.booleans()):
        result = draw(cached(result))
    if kind == "tiered":
        tier, other = draw(tiers(swaps=False, offloads=True)), draw(tiers(swaps=True, offloads=draw(st.booleans())))
        by_role = {"prefill": tier, "decode": draw(st.sampled_from([None, tier, other])), "both": None}
        result = by_pool([replace(s, host_tier=by_role[s.role]) for s in result])
        result = [draw(short_of_blocks(st.just(s))) if s.role == "decode" else s for s in result]
    result = draw(perhaps_grouped([draw(perhaps_speculating(s)) for s in result]))
    return World(result, link, is_pushed, draw(st.one_of(splitters(), mixing())) if is_split else None)


def perhaps_grouped(result: list[ReplicaSetup]) -> st.SearchStrategy[list[ReplicaSetup]]:
    """Let layers keep different tokens in half of the cases."""
    return st.just(result) | grouped(st.just(result))


@st.composite
def perhaps_speculating(draw: st.DrawFn, setup: ReplicaSetup) -> ReplicaSetup:
    """Add speculation if possible."""
    can = can_speculate([setup]) and draw(st.booleans())
    return draw(speculating(st.just([setup])))[0] if can else setup


@st.composite
def loads(draw: st.DrawFn, world: World) -> Trace:
    """Draw requests with priority, tenant and session; prompts share prefixes where a replica caches."""
    plain = shared_prompts() if world.caches_prefixes else traces()
    return draw(of_sessions(draw(tagged(plain))))


@dataclass(frozen=True)
class Scene:
    """Replicas, and what is before them."""

    world: World
    router: Any
    concurrency: int | None
    front_end: FrontEnd
    delay: Delay | None

    def check(self, load: Trace, **limits: Any) -> None:
        """Compare all records, and check that no block is left allocated."""
        world, arguments = self.world, {"delay": self.delay} | limits
        arguments |= {"link": world.link, "is_pushed": world.is_pushed, "splitter": world.splitter}
        cluster, truth = run_both(world.setups, self.router, load, self.concurrency, self.front_end, **arguments)
        assert_agreement([each.setup for each in cluster.members], cluster, truth)
        assert_clients_agree(cluster, truth)
        assert_all_is_given_back(cluster)
        assert_tiers_agree(cluster, truth, load)


WORLDS = st.one_of(together(), separate())
ORDERED = st.one_of(together(("ordered",)), separate(("ordered",)))
CONCURRENCY = st.none() | st.integers(1, 5)
MEMBERS = pytest.mark.parametrize("members", ["stay", "change"])
"""Whether members join, drain and fail meanwhile."""


@st.composite
def scenes(draw: st.DrawFn, worlds: st.SearchStrategy[World] = WORLDS) -> Scene:
    """Draw all but the load and its clients."""
    delay = st.none() | delays()
    return Scene(draw(worlds), draw(routers()), draw(CONCURRENCY), draw(front_ends()), draw(delay))


@st.composite
def rushed(draw: st.DrawFn, loads: st.SearchStrategy[Trace]) -> Trace:
    """Let requests come so fast that many are there when a member ends."""
    load = draw(loads)
    return replace(load, arrival_s=load.arrival_s * draw(st.sampled_from([1.0, 1e-2, 1e-3, 1e-5])))


@st.composite
def loads_and_changes(draw: st.DrawFn, world: World, members: str) -> tuple[Trace, list[Change] | None]:
    """Draw a load, and the changes of members during it, if there are to be any."""
    if members == "stay":
        return draw(loads(world)), None
    load = draw(rushed(loads(world)))
    return load, draw(changes(world.setups, load))


@SLOWLY
@MEMBERS
@given(scene=scenes(), data=st.data())
def test_clients_that_give_up_and_ask_again_wherever_they_may(scene: Scene, data: st.DataObject, members: str) -> None:
    limits = {"patience": data.draw(patiences()), "admission": data.draw(admissions())}
    load, script = data.draw(loads_and_changes(scene.world, members))
    scene.check(load, changes=script, **limits)


@SLOWLY
@given(scenes(ORDERED), st.data())
def test_clients_that_give_up_where_requests_pass_each_other(scene: Scene, data: st.DataObject) -> None:
    limits = {"patience": data.draw(patiences()), "admission": data.draw(admissions())}
    scene.check(data.draw(loads(scene.world)), **limits)


@SLOWLY
@MEMBERS
@given(scene=scenes(), data=st.data())
def test_sessions(scene: Scene, data: st.DataObject, members: str) -> None:
    load, n_timed = data.draw(beside(dependent(loads(scene.world))))
    patience, admission, stop_ps = data.draw(st.none() | patiences()), data.draw(admissions()), data.draw(STOPS)
    limits = {"patience": patience, "admission": admission, "n_timed": 0 if scene.concurrency is None else n_timed}
    script = None if members == "stay" else data.draw(changes(scene.world.setups, load))
    scene.check(load, stop_ps=stop_ps, changes=script, **limits)


@SLOWLY
@MEMBERS
@given(scene=scenes(), data=st.data())
def test_clients_that_wait(scene: Scene, data: st.DataObject, members: str) -> None:
    admission = None if scene.concurrency else data.draw(admissions())
    load, script = data.draw(loads_and_changes(scene.world, members))
    scene.check(load, admission=admission, changes=script)


@SLOWLY
@given(WORLDS, routers(), st.data(), CONCURRENCY, st.booleans(), st.integers(0, 40), UNIT)
def test_a_run_that_is_cut_short_has_lost_nobody(
    world: World,
    router: Any,
    data: st.DataObject,
    concurrency: int | None,
    are_sessions: bool,
    drain_units: int,
    unit_ps: int,
) -> None:
    patience = data.draw(patiences())
    load = data.draw(dependent(loads(world)) if are_sessions else loads(world))
    how = None if world.link is None else Disaggregation(router(), world.link, world.is_pushed, world.splitter)
    offered = Offered(load, concurrency, patience=patience)
    cluster = Cluster(
        own(world.setups), router(), offered, 7, disaggregation=how, delay=data.draw(st.none() | delays())
    )
    run_watched(cluster, drain_units * unit_ps)  # the run checks that no request is lost
    if not any(setup.scheduler.runs_to_completion for setup in world.setups):
        assert_tokens_are_conserved(cluster)  # what a batch pads is not recorded
    requests, facts = request_table(cluster, how)
    assert_times_are_split(requests, facts)
    assert (np.isnan(requests["finish_s"]) == ~requests["status"].is_("finished")).all()
    assert (requests["cached_tokens"] < requests["prompt_tokens"]).all()
