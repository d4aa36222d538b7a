"""Gray failures, drawn anew from what a control was given: when each member is slow, and when ports carry less."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Any

from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.scaling import Scaling
from simserve.engine.slowness import Window
from simserve.integers import NEVER
from simserve.scenario.fleet import Passing
from simserve.units import to_ps
from tests.oracle_fleet import Change

Windows = Mapping[int, Sequence[Window]]


def windows_of(
    control: Any, fleet: Sequence[Change], setups: Sequence[ReplicaSetup], end_ps: int, *, is_shared: bool
) -> tuple[Windows, Windows]:
    """Return the windows of members, by their place in the order of joining, and those of links, by pool.

    control: autoscalers and failures, or something with the windows themselves. fleet: what it did to members.
    """
    slow, weak = defaultdict[int, list[Window]](list), defaultdict[int, list[Window]](list)
    changes: Scaling | None = control if isinstance(control, Scaling) else None
    for which, given in ((slow, "slow"), (weak, "weak")):
        for place, window in getattr(control, given, ()) if changes is None else ():
            which[0 if is_shared and which is weak else place].append(window)
    for index, failure in enumerate(() if changes is None else changes.failures):
        if changes is not None and failure.what == "link":
            windows = [*drawn(failure, f"{changes.seed}/{index}/", 0, end_ps)]
            for pool in pools_of(failure, changes):
                weak[0 if is_shared else pool] += windows
        elif changes is not None and failure.what == "slow":
            for place, since_ps, unit in begun(failure, changes, fleet, setups):
                slow[place] += drawn(failure, f"{changes.seed}/{index}/{unit}", since_ps, end_ps)
    return slow, weak


def pools_of(failure: Passing, changes: Scaling) -> set[int]:
    """Return the numbers of the pools that a failure is of, those of new versions included."""
    pools = {i for i, plan in enumerate(changes.plans) if failure.pool in (None, plan.name)}
    new = changes.rollout
    return pools | ({new.plan.setup.pool} if new is not None and new.pool in pools else set())


def drawn(failure: Passing, stream: str, since_ps: int, end_ps: int) -> Iterator[Window]:
    """Yield windows until the end of the run."""
    lasts_ps = NEVER if failure.for_s is None else to_ps(failure.for_s)
    if failure.mtbf_s is None:
        at_ps = to_ps(failure.at_s or 0.0)
        yield at_ps, min(at_ps + lasts_ps, NEVER), failure.speed_frac
        return
    random = Random(f"failures/{stream}")
    while since_ps < end_ps:
        since_ps += to_ps(random.expovariate(1 / failure.mtbf_s))
        yield since_ps, min(since_ps + lasts_ps, NEVER), failure.speed_frac
        since_ps += lasts_ps


def begun(
    failure: Passing, changes: Scaling, fleet: Sequence[Change], setups: Sequence[ReplicaSetup]
) -> Iterator[tuple[int, int, str]]:
    """Yield the places of members that are slow, since when each may be, and the name of its stream."""
    pools = [*range(len(setups)), *(change.which for change in fleet if change.kind == "join")]
    of = {setup.pool: setup for setup in setups}
    versions = {} if changes.rollout is None else {changes.rollout.plan.setup.pool: changes.rollout.plan.setup}
    ids = [0, *accumulate((of | versions)[pool].n_ranks for pool in pools)]
    ready = dict.fromkeys(range(len(setups)), 0) | {each.which: each.at_ps for each in fleet if each.kind == "ready"}
    ours = [place for place in sorted(ready) if pools[place] in pools_of(failure, changes)]
    if failure.mtbf_s is not None:
        yield from ((place, ready[place], f"replica {ids[place]}") for place in ours)
        return
    at_ps = to_ps(failure.at_s or 0.0)
    strikes = {
        to_ps(each.at_s) for each in changes.failures if each.what not in ("slow", "link") and each.at_s is not None
    }
    last_ps = at_ps if at_ps in strikes else at_ps - 1  # replicas are struck before others are chosen to be slow
    left = {each.place for each in fleet if each.kind not in ("join", "ready", "shift") and each.at_ps <= last_ps}
    serving = [place for place in ours if place not in left and (place < len(setups) or ready[place] < at_ps)]
    yield from ((place, 0, "") for place in serving[:1])
