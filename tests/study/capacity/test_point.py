"""What a load's runs attained, together."""

import math
from typing import Any

import pytest

from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import mean_of


def run(n_met: int, n_arrived: int, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"slo_attainment": {"n_met": n_met, "n_arrived": n_arrived, "low_frac": low, "high_frac": high}}


def test_runs_attain_what_all_their_requests_do_with_the_interval_of_their_mean() -> None:
    result = LoadPoint(1.0, (run(80, 100), run(180, 200), run(270, 300))).attained
    assert result.value == 530 / 600
    mean = mean_of([0.8, 0.9, 0.9])
    assert (result.low, result.high) == (mean.low, 1.0)
    assert mean.high > 1


def test_one_run_has_the_interval_within_it() -> None:
    result = LoadPoint(1.0, (run(95, 100, 0.9, 0.98),)).attained
    assert (result.value, result.low, result.high) == (0.95, 0.9, 0.98)


def test_one_run_that_is_too_short_for_an_interval_has_none() -> None:
    assert not LoadPoint(1.0, (run(9, 10),)).attained.has_interval


@pytest.mark.parametrize("n_runs", [1, 2])
def test_where_nobody_arrived_nothing_was_attained(n_runs: int) -> None:
    result = LoadPoint(1.0, (run(0, 0),) * n_runs).attained
    assert math.isnan(result.value)
    assert not result.has_interval


def test_a_run_in_which_nobody_arrived_leaves_the_share_but_no_interval() -> None:
    result = LoadPoint(1.0, (run(9, 10), run(0, 0))).attained
    assert result.value == 0.9
    assert not result.has_interval
