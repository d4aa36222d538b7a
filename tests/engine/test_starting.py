"""Starts of several replicas at a time: weights from a store that they share, against one that counts picoseconds."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve import simulate
from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.starting import Loading, Store
from tests.effort import examples
from tests.engine.test_scaling import FAST, members, scenario, steps

WEIGHTS_S = 16.0605
"""Time to load 8.03e9 parameters in bf16 at 1e9 bytes/s."""


def loading(source: str, gpus_per_node: int = 8, **weights: Any) -> list[float]:
    """Return when two replicas are ready that are ordered 10 s apart, since the first began to load."""
    startup = FAST | {"weights": {"from": source, "shared_bytes_per_s": 1e9, **weights}}
    pool = {"autoscaler": steps((10, 2), (20, 3), interval_s=10), "startup": startup}
    table = members(simulate(scenario(pool, n=400, placement={"gpus_per_node": gpus_per_node})))
    assert table["ordered_s"][2] - table["ordered_s"][1] == pytest.approx(10)
    return [*(table["ready_s"] - table["ordered_s"][1] - 6)][1:]


def test_replicas_that_load_at_the_same_time_share_the_rate_of_a_store() -> None:
    """The first has 6.06 GB left when the second comes: it takes 12.12 s for them, in which the second loads as many;
    this one has the rate for itself from then on, and 32.12 GB are loaded in as many seconds."""
    assert loading("network") == pytest.approx([10 + 2 * (WEIGHTS_S - 10), 2 * WEIGHTS_S], abs=2e-3)


def test_a_disk_is_shared_by_the_replicas_of_its_node() -> None:
    assert loading("disk") == pytest.approx([10 + 2 * (WEIGHTS_S - 10), 2 * WEIGHTS_S], abs=2e-3)
    assert loading("disk", gpus_per_node=1) == pytest.approx([WEIGHTS_S, 10 + WEIGHTS_S], abs=2e-3)


def test_none_loads_faster_than_alone() -> None:
    slow = loading("network", bytes_per_s=5e8, shared_bytes_per_s=1e9)
    assert slow == pytest.approx([2 * WEIGHTS_S, 10 + 2 * WEIGHTS_S], abs=2e-3)


def test_a_replica_on_two_nodes_loads_from_both_their_disks() -> None:
    """Half of the weights from each, at half of the rate of the replica, which one disk alone does not have."""
    startup = FAST | {"weights": {"from": "disk", "bytes_per_s": 1e9, "shared_bytes_per_s": 5e8}}
    pool = {"autoscaler": steps((10, 2)), "startup": startup, "parallel": {"tensor": 4}}
    table = members(simulate(scenario(pool, n=400, placement={"gpus_per_node": 2})))
    assert table["ready_s"][1] - table["ordered_s"][1] - 6 == pytest.approx(WEIGHTS_S, abs=4e-3)


def test_a_replica_that_is_lost_or_let_go_leaves_the_rate_to_others() -> None:
    startup = FAST | {"weights": {"from": "network", "shared_bytes_per_s": 1e9}}
    pool = {"autoscaler": steps((10, 3), (20, 2), interval_s=5), "startup": startup}
    table = members(simulate(scenario(pool, n=400)))
    begins_s, leaves_s = table["ordered_s"][1] + 3, table["gone_s"][2]
    loaded_s = (leaves_s - begins_s) / 2  # as if alone
    assert table["ready_s"][1] - leaves_s == pytest.approx(WEIGHTS_S - loaded_s + 3, abs=2e-3)


@dataclass
class Wish:
    """A load that begins at an instant, and perhaps is given up."""

    at_ps: int
    n_bytes: int
    own: Fraction
    gives_up_ps: int | None
    ends_ps: int | None = None


wishes = st.builds(
    Wish,
    st.integers(0, 40),
    st.integers(0, 60),
    st.fractions(Fraction(1, 3), 4, max_denominator=5),
    st.none() | st.integers(0, 90),
)


def level(rate: Fraction, owns: list[Fraction]) -> Fraction:
    """Return the share up to which all are served: the largest that gives away no more than there is."""
    tried = set(owns)
    for n_full in range(len(owns)):
        rest = rate - sum(sorted(owns)[:n_full])
        tried.add(rest / (len(owns) - n_full))
    return max((each for each in tried if sum(min(own, each) for own in owns) <= rate), default=Fraction())


def count(rate: Fraction, loads: list[Wish]) -> list[int | None]:
    """Return when each load ends: step by step, a picosecond at a time."""
    left = [Fraction(load.n_bytes) for load in loads]
    ends: list[int | None] = [None] * len(loads)
    for now_ps in range(3000):
        there = []
        for i, load in enumerate(loads):
            gave_up = load.gives_up_ps is not None and load.at_ps <= load.gives_up_ps <= now_ps
            if load.at_ps <= now_ps and ends[i] is None and not gave_up:
                if left[i] <= 0:
                    ends[i] = now_ps
                else:
                    there.append(i)
        share = level(rate, [loads[i].own for i in there])
        for i in there:
            left[i] -= min(loads[i].own, share)
    return ends


@settings(max_examples=examples(100))
@given(st.fractions(Fraction(1, 3), 5, max_denominator=7), st.lists(wishes, min_size=1, max_size=6))
def test_a_store_ends_each_load_in_the_picosecond_of_one_that_counts_them(rate: Fraction, loads: list[Wish]) -> None:
    clock = Clock()
    nobody: Any = None
    store, ends = Store(clock, rate), list[int | None]([None] * len(loads))
    for i, wish in enumerate(loads):

        def end(i: int = i) -> None:
            ends[i] = clock.now_ps

        load = Loading(nobody, Fraction(wish.n_bytes), wish.own, end)

        def begin(now_ps: int, load: Loading = load) -> None:
            store.change([*store.loads, load])

        def give_up(now_ps: int, load: Loading = load) -> None:
            store.change([each for each in store.loads if each is not load])

        Alarm(clock, begin, FLEET_PHASE).set(wish.at_ps)
        if wish.gives_up_ps is not None and wish.gives_up_ps >= wish.at_ps:
            Alarm(clock, give_up, FLEET_PHASE).set(wish.gives_up_ps)
    clock.run()
    expected = count(rate, loads)
    tie = [wish.gives_up_ps in (end, got) for wish, end, got in zip(loads, expected, ends, strict=True)]
    assert any(tie) or ends == expected
