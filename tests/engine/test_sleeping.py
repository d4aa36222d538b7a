"""Replicas that sleep instead of ending, with their GPUs or without, and wake before others start."""

from typing import Any

import pandas as pd
import pytest

from simserve import Scenario, simulate
from tests.engine.test_scaling import FAST, members, scenario, steps

SLEEPS = {"sleeping": 1, "wake_s": 2}
WAVE = steps((10, 2), (22, 1), (40, 2), interval_s=0.1)
"""One, two, one and two replicas."""


def pool(autoscaler: dict[str, Any] = WAVE, **more: Any) -> dict[str, Any]:
    return {"autoscaler": autoscaler, "startup": FAST | {"provision_s": 5}, "spares": SLEEPS | more}


def since(table: pd.DataFrame, replica: int) -> dict[str, float]:
    """Return the life of a replica."""
    row = table.iloc[replica]
    return {name: row[f"{name}_s"] for name in ("ordered", "called", "ready", "draining", "gone")}


def test_a_replica_that_is_let_go_sleeps_and_wakes_before_others_start() -> None:
    results = simulate(scenario(pool(), n=400))
    table = members(results)
    before, after = since(table, 1), since(table, 2)
    assert before["called"] == before["ordered"] == pytest.approx(before["ready"] - 11, abs=1e-3)
    assert after["ordered"] == before["gone"] == pytest.approx(22.5, abs=0.5)
    assert after["called"] == pytest.approx(40, abs=0.11)
    assert after["ready"] == pytest.approx(after["called"] + 2)
    assert table["why"].tolist()[1:] == ["schedule: 1 -> 2; schedule: 2 -> 1", "a sleeping spare; schedule: 1 -> 2"]
    fleet, scaling = results.summary["fleet"], results.summary["scaling"]
    assert fleet["standby_gpu_s"] == pytest.approx(after["called"] - after["ordered"])
    assert fleet["starting_gpu_s"] == pytest.approx(11 + 2, abs=1e-3)
    assert (scaling["n_scalings"], scaling["n_reversals"]) == (3, 2)


def test_without_its_gpu_one_sleeps_for_nothing_and_wakes_once_that_is_free() -> None:
    """Pool b has the GPU from 25 s to 45 s, so that the first pool waits for it from 40 s on."""
    both = scenario(pool(holds_gpus=False), n=400, gpu_budget=3).to_dict()
    other = {"name": "b", "autoscaler": steps((25, 2), (45, 1), interval_s=0.1), "startup": FAST}
    both["cluster"]["pools"].append(other)
    results = simulate(Scenario.from_dict(both))
    table = members(results)
    assert table["pool"].tolist() == ["serve", "b", "serve", "b", "serve"]
    awake, b = since(table, 4), since(table, 3)
    assert awake["ordered"] == awake["called"] == b["gone"] > 45
    assert awake["ready"] == pytest.approx(awake["ordered"] + 2)
    assert table["why"][4] == "a sleeping spare; schedule: 1 -> 2"
    assert results.summary["fleet"]["standby_gpu_s"] == 0


def test_another_starts_where_a_sleeping_one_has_lost_its_gpu_for_long() -> None:
    both = scenario(pool(holds_gpus=False), n=400, placement={"gpus_per_node": 3}).to_dict()
    other = {"name": "b", "autoscaler": steps((25, 2), interval_s=0.1), "startup": FAST}
    both["cluster"]["pools"].append(other)
    table = members(simulate(Scenario.from_dict(both)))
    assert since(table, 4)["ready"] == pytest.approx(since(table, 4)["ordered"] + 11, abs=1e-3)


def test_no_more_sleep_than_may_and_those_that_load_end() -> None:
    table = members(simulate(scenario(pool(steps((10, 3), (30, 1), (40, 3), (45, 1), interval_s=0.1)), n=400)))
    asleep = table[table["why"].str.startswith("a sleeping spare")]
    assert len(asleep) == 2  # of the two at 30 s, and of the one that was awake again, and one that loads, at 45 s
    assert table["gone_s"].isna().tolist() == [True, False, False, False, False, True]
    assert since(table, 4)["ready"] != since(table, 4)["ready"]  # never


@pytest.mark.parametrize(("what", "after_s"), [("gpu", 2), ("process", 6)])
def test_a_sleeping_one_replaces_a_failed_one_unless_that_restarts(what: str, after_s: float) -> None:
    failure = {"what": what, "at_s": 30, "member": 0, "detect_s": 1}
    table = members(simulate(scenario(pool(steps((10, 2), (22, 1), interval_s=0.1)), n=400, failures=[failure])))
    assert table["ready_s"].max() == pytest.approx(31 + after_s, abs=1e-3)


@pytest.mark.parametrize("holds_gpus", [True, False])
@pytest.mark.parametrize("at_s", [22.2, 30.0])
def test_what_fails_asleep_or_before_does_not_wake(at_s: float, holds_gpus: bool) -> None:
    failure = {"what": "node", "at_s": at_s, "member": 0, "detect_s": 1}
    load = scenario(pool(holds_gpus=holds_gpus), rate_per_s=8, n=800, failures=[failure])
    table = members(simulate(load))
    assert (table["gone_s"] > 0).sum() == (3 if holds_gpus and at_s == 30 else 2)
    last = table[table["gone_s"].isna()]
    assert (last["ready_s"] - last["ordered_s"]).tolist() == pytest.approx([11, 11], abs=1e-3)


def test_those_of_an_old_version_do_not_wake() -> None:
    for holds_gpus in (True, False):
        load = scenario(pool(holds_gpus=holds_gpus), n=400, rollout={"at_s": 25})
        table = members(simulate(load))
        woken = table[(table["called_s"] > table["ordered_s"]) | table["why"].str.contains("sleeping spare; schedule")]
        assert woken.empty and table["gone_s"].isna().sum() == 2
        assert set(table["pool"][table["gone_s"].isna()]) == {"serve-new"}
