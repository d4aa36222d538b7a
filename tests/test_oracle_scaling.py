"""Engine and oracle agree while autoscalers and failures change a fleet: the oracle is told what they did."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.autoscalers.base import Autoscaler
from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Patience
from simserve.engine.placement import Placement
from simserve.engine.pods import PoolPlan
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay
from simserve.engine.scaling import Changes, Scaling
from simserve.scenario.fleet import Failure, Scrape, Shutdown, Spares, Startup
from simserve.state.pool_view import GAUGES, PoolView
from simserve.units import to_s
from tests.effort import examples
from tests.test_oracle_patience import patiences
from tests.test_oracle_routers import delays, routers
from tests.test_oracle_together import Scene, World, loads, rushed, separate, together

MOST = 4
"""Replicas of a pool, at most; a budget holds as many of all, as else one pool may keep another waiting without end."""
UNITS_S = (5.000003e-6, 17e-6, 170e-6, 1e-3)


@dataclass
class Wavering(Autoscaler):
    """Wants one number of replicas after the other, twenty times, whatever it sees."""

    counts: list[int]
    interval_s: float
    n_asked: int = 0
    min_replicas, max_replicas, metric_names = 1, 9, GAUGES

    def begin(self) -> None:
        self.n_asked = 0

    def desired_replicas(self, pool: PoolView) -> int:
        self.n_asked += 1
        return self.counts[min(self.n_asked, 20) % len(self.counts)]


@st.composite
def startups(draw: st.DrawFn, unit_s: float) -> Startup:
    def phase() -> float:
        return draw(st.sampled_from((0, 0, 1, 5, 13))) * unit_s

    return Startup.model_construct(
        provision_s=phase(),
        image_s=0.0,
        process_s=phase(),
        compile_s=0.0,
        ready_probe_s=phase(),
        weights=Startup().weights,
    )


@st.composite
def failures(draw: st.DrawFn, unit_s: float) -> Failure:
    what: Any = draw(st.sampled_from(("process", "gpu", "node", "rack")))
    detect_s = draw(st.integers(0, 9)) * unit_s
    if draw(st.booleans()):
        return Failure.model_construct(what=what, at_s=draw(st.integers(0, 90)) * unit_s, detect_s=detect_s)
    return Failure.model_construct(
        what=what, mtbf_s=draw(st.integers(200, 2000)) * max(unit_s, 2e-5), detect_s=detect_s
    )


@st.composite
def scalings(draw: st.DrawFn, setups: list[ReplicaSetup], span_s: float) -> Scaling:
    """Draw autoscalers, starts, stops and failures; each replica of a world has a pool of its own."""
    unit_s = max(draw(st.sampled_from(UNITS_S)), span_s / 100)
    plans, autoscalers = [], list[Autoscaler | None]()
    for i, setup in enumerate(setups):
        grace_s = draw(st.none() | st.integers(0, 30).map(lambda n: n * unit_s))
        shutdown = Shutdown.model_construct(drain=draw(st.booleans()), pre_stop_s=0.0, grace_s=grace_s)
        spares = Spares(warm=draw(st.sampled_from((0, 0, 1, 2))), cold=draw(st.sampled_from((0, 0, 1))))
        n_gpus, startup = draw(st.integers(1, 4)), draw(startups(unit_s))
        plans.append(PoolPlan(f"p{i}", setup, 1, n_gpus, 0.0, startup, shutdown, spares))
        counts = draw(st.lists(st.integers(1, MOST), min_size=1, max_size=5))
        wavering = Wavering(counts, draw(st.sampled_from((3, 7, 29))) * unit_s)
        autoscalers.append(draw(st.sampled_from((None, wavering, wavering))))
    return Scaling(
        Changes(
            plans,
            autoscalers,
            draw(st.integers(0, 99)),
            Placement(draw(st.sampled_from((2, 8))), draw(st.sampled_from((None, 1, 2)))),
            Scrape.model_construct(interval_s=draw(st.sampled_from((4, 13))) * unit_s, delay_s=unit_s, noise_frac=0.1),
            draw(st.lists(failures(unit_s), max_size=2)),
            draw(st.sampled_from((None, sum((MOST + plan.spares.n) * plan.n_gpus for plan in plans)))),
            draw(st.booleans()),
            10**9,
        )
    )


def check(world: World, router: Any, data: st.DataObject, delay: Delay | None, patience: Patience | None) -> None:
    load = data.draw(rushed(loads(world)))
    own = replace(world, setups=[replace(each, pool=i) for i, each in enumerate(world.setups)])
    limits_ps = () if patience is None else filter(None, (patience.ttft_ps, patience.e2e_ps))
    span_s = max(float(load.arrival_s[-1]), to_s(max(limits_ps, default=0)))  # ticks go on while clients may give up
    waits_s = 0.3 if patience is not None and patience.backoff is not None else 0.0
    scaling = data.draw(scalings(own.setups, max(span_s, waits_s)))
    Scene(own, router, None, FrontEnd(), delay).check(load, control=scaling, patience=patience)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(together(), routers(), st.data(), st.none() | delays(), st.none() | patiences())
def test_replicas(
    world: World, router: Any, data: st.DataObject, delay: Delay | None, patience: Patience | None
) -> None:
    check(world, router, data, delay, patience)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(separate(), routers(), st.data(), st.none() | delays(), st.none() | patiences())
def test_hand_overs(
    world: World, router: Any, data: st.DataObject, delay: Delay | None, patience: Patience | None
) -> None:
    check(world, router, data, delay, patience)
