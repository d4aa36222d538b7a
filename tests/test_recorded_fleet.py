"""A recorded fleet, simulated whole: from its load jobs and manifests alone, with replicas of its own."""

import csv
import json
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from tests.autoscalers.pools import FLEET, KV, WAITING, needs_fleet
from tests.effort import runs
from tests.recorded_jobs import Job, Steps, drawn, fleet, replica_seconds, replicas, sent_s, served

RECORDED_REPLICA_S = 2650.0
SAME_S = 45.0
"""Simulated and recorded instants differ by less."""
STARTS_S = (0.0, 150.0, 254.0)
"""Starts of the jobs after that of the first: the second as the notes of the data say, the third as the timeline shows
it, where the KV cache in use rises beyond what two jobs need. Both are late for their settings, 120 and 240 s."""
LASTS_S = 360.0
"""Each job sent for six minutes (5,400 prompts at 15 requests/s)."""


class Row(NamedTuple):
    """A row of the timeline."""

    at_s: float
    replicas: int
    desired: int
    kv_frac: float


class Changes(NamedTuple):
    """When a fleet grew and shrank, in seconds from the first row."""

    up_s: float
    """From one replica."""
    jump_s: float
    """Beyond two."""
    back_s: float
    """To one again."""


@cache
def timeline() -> list[Row]:
    """Return the recorded run, from its first row."""
    with (FLEET / "hpa_timeline.csv").open() as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["timestamp"]).timestamp() for row in rows]
    return [
        Row(at_s - times[0], int(row["replicas"]), int(row["desired_replicas"]), float(row["kv_cache_usage"]))
        for at_s, row in zip(times, rows, strict=True)
    ]


def jobs_of_the_run() -> list[Job]:
    """Return its three load jobs. The first begins between the last row without and the first row with a load."""
    settings = json.loads((FLEET / "settings.json").read_text(encoding="utf-8"))
    (text,) = settings["hpa_run"].values()
    rates = []
    for job in yaml.safe_load(text)["jobs"]:
        given = settings["load_jobs"][job["manifest"].rpartition("/")[2]]
        assert (int(given["seed"]), int(given["max-concurrency"])) == (12345, 512)
        rates.append(float(given["request-rate"]))
    assert rates == [10, 15, 12]
    place = next(place for place, row in enumerate(timeline()) if row.kv_frac > 0)
    first_s = (timeline()[place - 1].at_s + timeline()[place].at_s) / 2
    return [Job(first_s + s, rate, round(rate * LASTS_S)) for s, rate in zip(STARTS_S, rates, strict=True)]


HPA: dict[str, Any] = {  # hpa-vllm-combined.yaml
    "kind": "hpa",
    "max_replicas": 10,
    "metrics": [{"metric": WAITING, "target": 20}, {"metric": KV, "target": 0.5}],
    "behavior": {
        "scale_up": {
            "policies": [
                {"type": "percent", "value": 100, "period_s": 15},
                {"type": "pods", "value": 4, "period_s": 15},
            ]
        },
        "scale_down": {
            "stabilization_window_s": 0,
            "policies": [{"type": "pods", "value": 1, "period_s": 15}],
            "select_policy": "min",
        },
    },
}


def changes(steps: Steps) -> Changes:
    """Return when a fleet grew and shrank."""
    up_s = next(at_s for at_s, n in steps if n > 1)
    jump_s = next(at_s for at_s, n in steps if n > 2)
    return Changes(up_s, jump_s, steps[-1][0])


def recorded_changes() -> Changes:
    """Return when the recorded fleet grew and shrank: the rows that first say what was desired."""
    rows = timeline()
    return changes(
        [(0.0, 1), *((after.at_s, after.desired) for row, after in pairwise(rows) if row.desired != after.desired)]
    )


@cache
def simulated(n_runs: int) -> list[Steps]:
    """Return the replicas of the simulated run, for so many seeds."""
    return [replicas(served(fleet(HPA, seed), drawn(jobs_of_the_run(), seed))) for seed in range(n_runs)]


def test_a_client_sends_as_answers_allow() -> None:
    due_s = np.array([0.0, 0.0, 1.0, 2.0, 9.0])
    assert sent_s(due_s, np.array([4.0, 3.0, 5.0, 1.0, 1.0]), 2).tolist() == [0, 0, 3, 4, 9]
    assert sent_s(due_s, np.ones(5), 9).tolist() == due_s.tolist()


@needs_fleet
def test_the_recorded_run_is_read_as_its_description_says() -> None:
    rows = timeline()
    assert recorded_changes() == (338, 402, 657)
    total = sum(row.replicas * (after.at_s - row.at_s) for row, after in pairwise(rows))
    assert total == pytest.approx(RECORDED_REPLICA_S, rel=0.01)


@needs_fleet
def test_the_fleet_of_the_recorded_run_costs_as_many_replica_seconds() -> None:
    end_s = timeline()[-1].at_s
    costs = [replica_seconds(steps, end_s) for steps in simulated(runs(20, 3))]
    assert np.median(costs) == pytest.approx(RECORDED_REPLICA_S, rel=0.2)


@needs_fleet
def test_the_fleet_grows_and_shrinks_when_the_recorded_one_did() -> None:
    for steps in simulated(runs(20, 3)):
        assert changes(steps) == pytest.approx(recorded_changes(), abs=SAME_S)
        assert max(n for _, n in steps) == 10
        assert next(n for _, n in steps if n > 2) == 6
        assert steps[-1][1] == 1
