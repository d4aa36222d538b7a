"""Engine and oracle agree while replicas are slow and links carry less, again and again: no replica comes or goes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.fleet import Fleet
from simserve.engine.frontend import FrontEnd
from simserve.engine.offered import Patience
from simserve.engine.slowness import Window
from tests.effort import examples
from tests.test_oracle_patience import patiences
from tests.test_oracle_routers import routers
from tests.test_oracle_together import Scene, World, loads, rushed, separate, together

UNITS_PS = (10**6, 5_000_003, 17 * 10**6, 10**9)
SPEEDS = (0.5, 0.3, 1 / 7, 0.9, 1e-3)


@dataclass
class Gray:
    """A control with windows of members, by their place, and of links, by pool."""

    slow: Sequence[tuple[int, Window]]
    weak: Sequence[tuple[int, Window]]
    shifts = False

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        for place, window in self.slow:
            self.let(fleet, clock, place, window)
        for pool in {pool for pool, _ in self.weak}:
            assert fleet.wiring.handoff is not None
            windows = sorted(window for number, window in self.weak if number == pool)
            fleet.wiring.handoff.weaken(pool, iter(windows))

    def let(self, fleet: Fleet, clock: Clock, place: int, window: Window) -> None:
        def act(now_ps: int) -> None:
            assert fleet.serving is not None
            for rank in fleet.members[place].ranks:
                fleet.serving.slow(rank, window)

        Alarm(clock, act, FLEET_PHASE).set(window[0])

    def goes_on(self) -> bool:
        return False


@st.composite
def windows(draw: st.DrawFn, n_places: int, speeds: tuple[float, ...]) -> list[tuple[int, Window]]:
    """Draw windows of some steps each, which may overlap."""
    unit_ps, result = draw(st.sampled_from(UNITS_PS)), []
    for _ in range(draw(st.integers(1, 8))):
        start_ps = draw(st.integers(0, 60)) * unit_ps
        end_ps = start_ps + draw(st.integers(1, 40)) * unit_ps
        result.append((draw(st.integers(0, n_places - 1)), (start_ps, end_ps, draw(st.sampled_from(speeds)))))
    return result


def check(world: World, router: Any, data: st.DataObject, patience: Patience | None) -> None:
    own = replace(world, setups=[replace(each, pool=i) for i, each in enumerate(world.setups)])
    n = len(own.setups)
    slow = data.draw(st.just([]) | windows(n, SPEEDS))
    weak = [] if world.link is None else data.draw(windows(n, (*SPEEDS, 0.0, 0.0)))
    load = data.draw(rushed(loads(own)))
    Scene(own, router, None, FrontEnd(), None).check(load, control=Gray(slow, weak), patience=patience)


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(together(), routers(), st.data(), st.none() | patiences())
def test_slow_replicas(world: World, router: Any, data: st.DataObject, patience: Patience | None) -> None:
    check(world, router, data, patience)


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(separate(), routers(), st.data(), st.none() | patiences())
def test_links_that_carry_less(world: World, router: Any, data: st.DataObject, patience: Patience | None) -> None:
    check(world, router, data, patience)
