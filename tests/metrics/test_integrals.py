"""Integrals over rows of steps equal those of plain loops, however the rows lie in pieces."""

from random import Random

import numpy as np
import pytest

from simserve.metrics.integrals import counts, next_starts, places, presence
from simserve.tables.columns import Columns, Floats


def rows_of(rng: Random, n_replicas: int) -> tuple[Columns, list[float]]:
    """Draw rows of replicas, some without any, and the end of each row; some take no time."""
    rows = []
    for replica in range(n_replicas):
        at_s = rng.uniform(0, 3)
        for _ in range(rng.choice([0, 1, rng.randint(2, 12)])):
            end_s = at_s + rng.choice([0.0, 1.0, rng.uniform(0, 2)])
            rows.append((replica, at_s, end_s))
            at_s = end_s + rng.choice([0.5, rng.uniform(0, 2)])
    columns = {"replica": np.array([row[0] for row in rows], np.int32), "start_s": np.array([row[1] for row in rows])}
    return columns, [row[2] for row in rows]


@pytest.mark.parametrize("seed", range(30))
def test_amounts_up_to_an_instant_are_those_of_the_rows_until_then(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    monkeypatch.setattr("simserve.tables.scratch.PIECE_ROWS", rng.choice([1, 3, 100]))
    n_replicas = rng.randint(1, 4)
    steps, until_s = rows_of(rng, n_replicas)
    amounts = np.array([rng.uniform(0, 9) for _ in until_s])
    replicas, starts_s = steps["replica"].tolist(), steps["start_s"].tolist()
    at_s = sorted([rng.uniform(-1, 20) for _ in range(9)] + starts_s[:2] + until_s[:2])
    result = places(steps, np.array(until_s), n_replicas, np.array(at_s))
    expected = np.zeros((n_replicas, len(at_s)))
    for replica, start_s, end_s, amount in zip(replicas, starts_s, until_s, amounts.tolist(), strict=True):
        for place, now_s in enumerate(at_s):
            share = min((now_s - start_s) / (end_s - start_s), 1.0) if end_s > start_s else 1.0
            expected[replica, place] += amount * share if now_s >= start_s else 0.0
    assert result.sums(lambda part: part["amount"], {"amount": amounts}) == pytest.approx(expected)
    gone_s = np.array([rng.uniform(50, 60) for _ in range(n_replicas)])
    following = [
        starts_s[row + 1] if replicas[row : row + 2] == [replica] * 2 else gone_s[replica]
        for row, replica in enumerate(replicas)
    ]
    assert next_starts(steps, gone_s).tolist() == following


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_number_present_is_the_time_of_all_over_that_of_the_interval(seed: int) -> None:
    rng = Random(seed)
    n_intervals, start_s, width_s = rng.randint(1, 5), rng.uniform(0, 3), rng.uniform(0.5, 2)
    edges_s: Floats = start_s + width_s * np.arange(n_intervals + 1.0)
    edges_s[-1] -= rng.choice([0.0, width_s / 3])
    end_s, parts = float(edges_s[-1]), []
    expected, entered = np.zeros((2, n_intervals)), np.zeros((2, n_intervals))
    for _ in range(3):
        enter_s = [rng.choice([np.nan, rng.uniform(start_s, end_s)]) for _ in range(rng.randint(0, 6))]
        leave_s = [rng.choice([np.nan, rng.uniform(start_s if at_s != at_s else at_s, end_s)]) for at_s in enter_s]
        group = [rng.randrange(2) for _ in enter_s]
        parts.append((np.array(enter_s, float), np.array(leave_s, float), np.array(group, np.int64)))
        for came_s, left_s, which in zip(enter_s, leave_s, group, strict=True):
            for i in range(n_intervals):
                low, high = edges_s[i : i + 2]
                stays_s = min(high, np.nan_to_num(left_s, nan=np.inf)) - max(low, came_s)
                expected[which, i] += max(stays_s, 0.0) / (high - low) if came_s == came_s else 0.0
                entered[which, i] += low <= came_s < high
    assert presence(parts, 2, edges_s) == pytest.approx(expected, abs=1e-9)
    came = np.concatenate([part[0] for part in parts])
    groups = np.concatenate([part[2] for part in parts])
    known = ~np.isnan(came)
    assert counts(came[known], groups[known], 2, edges_s).tolist() == entered.tolist()
