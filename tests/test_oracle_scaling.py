"""Engine and oracle agree while autoscalers and failures change a fleet: the oracle is told what they did."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.autoscalers.base import Autoscaler
from simserve.autoscalers.dynamo_planner import DynamoPlanner
from simserve.engine.frontend import FrontEnd
from simserve.engine.losses import Rescue
from simserve.engine.offered import Patience
from simserve.engine.placement import Placement
from simserve.engine.pods import PoolPlan
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.rollout import RollOut
from simserve.engine.routing_view import Delay
from simserve.engine.scaling import Scaling
from simserve.scenario.fleet import Failure, Passing, Scrape, Shutdown, Spares, Startup, Weights
from simserve.scenario.rollout import Canary, RolloutSection
from simserve.state.pool_view import COUNTERS, GAUGES, PoolView
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
    min_replicas, max_replicas, metric_names = 1, 9, (*GAUGES, *COUNTERS)

    def begin(self) -> None:
        self.n_asked = 0

    def desired_of_pools(self, pools: Sequence[PoolView]) -> Sequence[int]:
        self.n_asked += 1
        return [self.counts[(min(self.n_asked, 20) + place) % len(self.counts)] for place in range(len(pools))]


class Planner(DynamoPlanner):
    """Decides eighty times; a load that is cut and comes again could let it flap without end."""

    n_asked = 0

    def desired_of_pools(self, pools: Sequence[PoolView]) -> Sequence[int]:
        self.n_asked += 1
        return super().desired_of_pools(pools) if self.n_asked < 80 else [pool.wanted for pool in pools]


@st.composite
def planners(draw: st.DrawFn, unit_s: float, n_gpus: int) -> Planner:
    """Draw a planner with thresholds that small worlds reach; its intervals are shorter than a scenario may write."""
    planner = Planner(
        optimization_target="load",
        max_gpu_budget=MOST * n_gpus,
        prefill_scale_up_queue_tokens=draw(st.sampled_from((1, 40))),
        prefill_scale_down_queue_tokens=draw(st.sampled_from((0, 0.5))),
        decode_scale_up_kv_rate=draw(st.sampled_from((0.2, 0.6))),
        decode_scale_down_kv_rate=draw(st.sampled_from((0.05, 0.19))),
        prefill_tokens_per_s=draw(st.sampled_from((None, 1e2, 1e4, 1e6))),
        decode_tokens_per_s=draw(st.sampled_from((None, 1e2, 1e4, 1e6))),
        load_predictor=draw(st.sampled_from(("constant", "kalman"))),
    )
    planner.interval_s = planner.load_adjustment_interval_s = draw(st.sampled_from((3, 7))) * unit_s
    planner.throughput_adjustment_interval_s = 29 * unit_s
    return planner


def share(draw: st.DrawFn, setups: list[ReplicaSetup], autoscalers: list[Autoscaler | None], planner: Planner) -> None:
    """Let one policy scale several pools, or a planner the first prefill and decode pool, or one of both roles."""
    how, roles = draw(st.sampled_from(("own", "own", "shared", "planner", "planner"))), [each.role for each in setups]
    if how == "shared" and autoscalers[0] is not None:
        autoscalers[:] = [autoscalers[0]] * len(autoscalers)
    elif how == "planner":
        for role in ("prefill", "decode") if "prefill" in roles else ("both",):
            autoscalers[roles.index(role)] = planner


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
        weights=Weights.model_construct(
            source=draw(st.sampled_from(("disk", "network"))),
            bytes_per_s=1 / unit_s,
            shared_bytes_per_s=draw(st.sampled_from((None, 0.7 / unit_s, 2 / unit_s))),
        ),
    )


@st.composite
def passing(draw: st.DrawFn, unit_s: float, setups: list[ReplicaSetup], *, has_link: bool) -> Passing:
    """Draw replicas that are slow, or links that carry less, for a time or for good."""
    what: Any = draw(st.sampled_from(("slow", "link") if has_link else ("slow",)))
    speeds = (0.5, 0.3, 1 / 7, 0.9, 1.0, *((0.0, 0.0) if what == "link" else ()))
    speed_frac = draw(st.sampled_from(speeds))
    for_s = draw(st.integers(1, 40)) * unit_s if speed_frac == 0 or draw(st.booleans()) else None
    when: Any = {"at_s": draw(st.integers(0, 30)) * unit_s}
    if draw(st.booleans()):
        when = {"mtbf_s": draw(st.integers(2, 60)) * unit_s}
    pool = draw(st.none() | st.integers(0, len(setups) - 1).map(lambda i: f"p{i}"))
    return Passing.model_construct(what=what, pool=pool, speed_frac=speed_frac, for_s=for_s, **when)


@st.composite
def failures(draw: st.DrawFn, unit_s: float) -> Failure:
    how: dict[str, Any] = {
        "what": draw(st.sampled_from(("process", "gpu", "node", "rack", "drain", "spot"))),
        "detect_s": draw(st.integers(0, 9)) * unit_s,
        "notice_s": draw(st.integers(1, 20)) * unit_s,
        "repair_s": draw(st.none() | st.integers(0, 20).map(lambda n: n * unit_s)),
    }
    if draw(st.booleans()):
        return Failure.model_construct(at_s=draw(st.integers(0, 90)) * unit_s, **how)
    return Failure.model_construct(mtbf_s=draw(st.integers(200, 2000)) * max(unit_s, 2e-5), **how)


@st.composite
def roll_outs(draw: st.DrawFn, plans: list[PoolPlan], unit_s: float) -> RollOut:
    """Draw a roll-out of a pool to the setup of one of the same role, perhaps its own."""
    pool = draw(st.integers(0, len(plans) - 1))
    same = [plan for plan in plans if plan.setup.role == plans[pool].setup.role]
    max_surge, max_unavailable = draw(st.sampled_from(((0, 1), (1, 0), (1, 1), (3, 2))))
    by_share, by_traffic = ((0.3, None), (1.0, None)), ((None, 0.1), (None, 0.5), (0.3, 0.5), (0.6, 0.9))
    kinds = draw(st.sampled_from((by_share, by_traffic, by_traffic)))
    steps = [
        Canary(share=share, traffic_frac=traffic_frac, for_s=draw(st.integers(0, 20)) * unit_s)
        for share, traffic_frac in draw(st.lists(st.sampled_from(kinds), max_size=3))
    ]
    section = RolloutSection(
        at_s=draw(st.integers(0, 60)) * unit_s,
        max_surge=max_surge,
        max_unavailable=max_unavailable,
        canary=tuple(steps),
    )
    new = draw(st.sampled_from(same))
    number = len(plans) + plans.index(new)  # distinct from those at the start, of which it has the setup
    return RollOut(section, replace(new, name="new", setup=replace(new.setup, pool=number)), pool)


@st.composite
def scalings(draw: st.DrawFn, setups: list[ReplicaSetup], span_s: float, *, has_link: bool) -> Scaling:
    """Draw autoscalers, starts, stops and failures; each replica of a world has a pool of its own."""
    unit_s = max(draw(st.sampled_from(UNITS_S)), span_s / 100)
    plans, autoscalers = [], list[Autoscaler | None]()
    for i, setup in enumerate(setups):
        grace_s = draw(st.none() | st.integers(0, 30).map(lambda n: n * unit_s))
        shutdown = Shutdown.model_construct(
            drain=draw(st.booleans()),
            pre_stop_s=0.0,
            timeout_s=draw(st.none() | st.integers(0, 30).map(lambda n: n * unit_s)),
            grace_s=grace_s,
            min_available=draw(st.sampled_from((None, None, 1, 2))),
            max_unavailable=draw(st.sampled_from((None, None, 0, 1))),
        )
        spares = Spares(
            warm=draw(st.sampled_from((0, 0, 1, 2))),
            cold=draw(st.sampled_from((0, 0, 1))),
            sleeping=draw(st.sampled_from((0, 0, 1, 3))),
            wake_s=draw(st.integers(0, 9)) * unit_s,
            holds_gpus=draw(st.booleans()),
        )
        n_gpus, startup = draw(st.integers(1, 4)), draw(startups(unit_s))
        plans.append(PoolPlan(f"p{i}", setup, 1, n_gpus, draw(st.sampled_from((0.0, 3.0))), startup, shutdown, spares))
        counts = draw(st.lists(st.integers(1, MOST), min_size=1, max_size=5))
        wavering = Wavering(counts, draw(st.sampled_from((3, 7, 29))) * unit_s)
        autoscalers.append(draw(st.sampled_from((None, wavering, wavering))))
    share(draw, setups, autoscalers, draw(planners(unit_s, sum(plan.n_gpus for plan in plans))))
    resends, moves = draw(st.booleans()), all(setup.scheduler.stream for setup in setups) and draw(st.booleans())
    return Scaling(
        plans,
        autoscalers,
        draw(st.integers(0, 99)),
        Placement(draw(st.sampled_from((2, 8))), draw(st.sampled_from((None, 1, 2)))),
        Scrape.model_construct(interval_s=draw(st.sampled_from((4, 13))) * unit_s, delay_s=unit_s, noise_frac=0.1),
        [
            *draw(st.lists(failures(unit_s), max_size=2)),
            *draw(st.lists(passing(unit_s, setups, has_link=has_link), max_size=3)),
        ],
        draw(st.sampled_from((None, sum((MOST + plan.spares.n) * plan.n_gpus for plan in plans)))),
        Rescue(resends, moves, draw(st.sampled_from((2, 3, 9))), draw(st.booleans()), moves and draw(st.booleans())),
        draw(st.none() | roll_outs(plans, unit_s)),
    )


def check(world: World, router: Any, data: st.DataObject, delay: Delay | None, patience: Patience | None) -> None:
    load = data.draw(rushed(loads(world)))
    own = replace(world, setups=[replace(each, pool=i) for i, each in enumerate(world.setups)])
    limits_ps = () if patience is None else filter(None, (patience.ttft_ps, patience.e2e_ps))
    span_s = max(float(load.arrival_s[-1]), to_s(max(limits_ps, default=0)))  # ticks go on while clients may give up
    waits_s = 0.3 if patience is not None and patience.backoff is not None else 0.0
    scaling = data.draw(scalings(own.setups, max(span_s, waits_s), has_link=world.link is not None))
    Scene(own, router, None, FrontEnd(), delay).check(load, control=scaling, patience=patience)
    check_gpus(scaling)


def check_gpus(scaling: Scaling) -> None:
    """Hold that each GPU is free, taken or under repair in the end, on its node and in the budget."""
    deployments, changes = scaling._deployments, scaling
    site = deployments[0]._site
    n_taken = Counter[int]()
    for pod in (pod for each in deployments for pod in each.there):
        n_taken.update(pod.taken)
    most = dict.fromkeys(site.placement.free, changes.placement.gpus_per_node)
    there = {node: n + n_taken[node] for node, n in site.placement.free.items()}
    if changes.gpu_budget is not None and site.free_gpus is not None:
        most[-1] = changes.gpu_budget
        there[-1] = site.free_gpus + n_taken.total() + sum(site.held.values())
    assert min(site.placement.free.values(), default=0) >= 0 and (site.free_gpus or 0) >= 0
    if any(each.what == "gpu" and each.repair_s is not None for each in changes.failures):
        assert all(n <= most[node] for node, n in there.items())
    else:
        assert there == most


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
