"""Evictions from nodes that are drained or reclaimed, under disruption budgets; and GPUs that are being repaired."""

from typing import Any

import pandas as pd
import pytest

from simserve import simulate
from simserve.metrics.results import Results
from tests.engine.test_scaling import FAST, members, scenario, steps


def run(pool: dict[str, Any], *failures: dict[str, Any], gpus_per_node: int = 2, **more: Any) -> Results:
    """Return what happens to replicas that start in 6 s when nodes fail, by default at 12 s."""
    failing = [{"at_s": 12, **each} for each in failures]
    placed = {"gpus_per_node": gpus_per_node}
    return simulate(scenario({"startup": FAST, **pool}, failures=failing, placement=placed, **more))


def leaving(table: pd.DataFrame) -> list[float]:
    return sorted(table["draining_s"].dropna())


def test_replicas_of_a_drained_node_leave_and_others_start_elsewhere_without_a_loss() -> None:
    results = run({"replicas": 3, "spares": {"warm": 1}}, {"what": "drain", "member": 2})
    table = members(results)
    assert table["draining_s"][:4].isna().tolist() == [True, True, False, True]
    assert table["why"][2] == "at the start; evicted (drain)"
    assert table["why"].tolist()[3:] == [
        "a warm spare; evicted (drain)",
        "replaces one after a drain eviction",
        "a warm spare",
    ]
    assert table["gone_s"][3] == table["ordered_s"][4] == table["ordered_s"][5] == 12
    assert (results.requests["status"] == "finished").all()
    scaling = results.summary["scaling"]
    assert (scaling["n_scalings"], scaling["n_failures"]) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "draining_s"),
    [
        ({}, [12, 12]),
        ({"max_unavailable": 2}, [12, 12]),
        ({"max_unavailable": 1}, [12, 18]),
        ({"min_available": 2}, [12, 18]),
        ({"min_available": 1}, [12, 12]),
        ({"max_unavailable": 0}, []),
        ({"min_available": 3}, []),
        ({"min_available": 2, "max_unavailable": 0}, []),
    ],
)
def test_evictions_keep_to_the_disruption_budget(limits: dict[str, int], draining_s: list[float]) -> None:
    """One of two replicas on the node goes, and the other once a replacement serves after 6 s."""
    table = members(run({"replicas": 3, "shutdown": limits}, {"what": "drain", "member": 0}))
    assert leaving(table) == pytest.approx(draining_s)
    assert len(table) == 3 + len(draining_s)


def test_a_replica_that_loads_may_go_if_enough_others_are_ready() -> None:
    """At 12 s the second loads on the node to be drained, and the third is pending there."""
    pool = {"autoscaler": steps((9, 2), (11, 3), interval_s=0.1), "startup": FAST | {"provision_s": 2}}
    enough = members(run(pool | {"shutdown": {"min_available": 1}}, {"what": "drain", "member": 1}, gpus_per_node=3))
    assert enough["gone_s"].tolist()[1:3] == [12, 12]
    assert enough["draining_s"][0] == pytest.approx(12 + 8, abs=1e-3)  # once one serves elsewhere
    missing = members(run(pool | {"shutdown": {"min_available": 2}}, {"what": "drain", "member": 1}, gpus_per_node=3))
    assert missing["gone_s"][2] == 12
    assert leaving(missing) == pytest.approx([20, 28], abs=1e-3)  # the loading one was ready by then, but all needed


@pytest.mark.parametrize(("limits", "left_s"), [({}, 12), ({"min_available": 1}, 12.5)])
def test_what_is_left_on_a_reclaimed_node_at_the_end_of_the_notice_fails(limits: Any, left_s: float) -> None:
    failure = {"what": "spot", "notice_s": 0.5}
    results = run({"shutdown": limits}, failure, rate_per_s=20.0, n=400)
    table, failed = members(results), results.requests["status"] == "failed"
    assert table["draining_s"][0] == table["ordered_s"][1] == left_s
    assert table["gone_s"][0] == 12.5
    assert table["why"][0] == "at the start; evicted (spot); its node is gone"
    assert 0 < failed.sum() < 30 and set(results.requests["replica"][failed]) == {0}


def test_the_notice_of_a_reclaimed_node_is_that_of_aws() -> None:
    table = members(run({"shutdown": {"max_unavailable": 0}}, {"what": "spot"}, n=600))
    assert table["gone_s"][0] == 12 + 120


@pytest.mark.parametrize(
    ("failure", "budget", "ordered_s"),
    [
        ({"what": "gpu"}, 2, [22]),
        ({"what": "gpu", "repair_s": 8}, 2, [30]),
        ({"what": "gpu", "repair_s": 8}, 3, [22]),
        ({"what": "node"}, 2, [22, 22]),
        ({"what": "node", "repair_s": 8}, 2, [30, 30]),
        ({"what": "node", "repair_s": 8}, 3, [22, 30]),
        ({"what": "rack", "repair_s": 8, "detect_s": 0}, 4, [12, 12]),
        ({"what": "spot", "repair_s": 8, "notice_s": 1e-3}, 2, [20, 20]),
        ({"what": "drain", "repair_s": 8}, 3, [12, 20]),
    ],
)
def test_gpus_that_failed_come_back_to_the_budget_when_they_are_repaired(
    failure: dict[str, Any], budget: int, ordered_s: list[float]
) -> None:
    """A failure at 12 s is known at 22 s; of two replicas on a node, one or both wait for GPUs."""
    table = members(run({"replicas": 2}, failure, gpu_budget=budget))
    assert table["ordered_s"].tolist()[2:] == pytest.approx(ordered_s, abs=1)


def test_free_gpus_of_a_node_that_fails_are_not_in_the_budget_either() -> None:
    failure = {"what": "node", "repair_s": 8, "member": 0}
    table = members(run({"replicas": 3}, failure, gpu_budget=4, gpus_per_node=4))
    assert table["ordered_s"].tolist()[3:] == [30, 30, 30]
    scaled = {"replicas": 1, "autoscaler": steps((26, 5), interval_s=0.1)}
    table = members(run(scaled, failure, gpu_budget=6, gpus_per_node=4))
    assert table["ordered_s"].tolist()[1:] == pytest.approx([22, 26, 30, 30, 30], abs=0.2)


def test_a_replica_on_two_nodes_returns_the_gpus_of_the_one_that_stands() -> None:
    pool = {"replicas": 1, "parallel": {"tensor": 4}}
    failure = {"what": "node", "repair_s": 8, "member": 0}
    assert members(run(pool, failure, gpu_budget=6))["ordered_s"].tolist() == [0, 22]
    assert members(run(pool, failure, gpu_budget=5))["ordered_s"].tolist() == [0, 30]
