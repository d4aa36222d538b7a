"""What a load's runs attained, together."""

import math

import pytest

from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.figures import Summary
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import mean_of
from tests.summaries import summary_of


def run(n_met: int, n_arrived: int, low: float | None = None, high: float | None = None) -> Summary:
    frac = n_met / n_arrived if n_arrived else None
    attained = {"n_met": n_met, "n_arrived": n_arrived, "frac": frac, "low_frac": low, "high_frac": high}
    return summary_of({"slo_attainment": attained, "requests": {"arrived": n_arrived}})


def test_runs_attain_what_all_their_requests_do_with_the_interval_of_their_mean() -> None:
    result = LoadPoint(1.0, (run(80, 100), run(180, 200), run(270, 300))).attained
    mean = mean_of([0.8, 0.9, 0.9])
    assert (result.value, result.low, result.high) == (mean.value, mean.low, 1.0)
    assert mean.high > 1


def test_one_run_has_the_interval_within_it() -> None:
    result = LoadPoint(1.0, (run(95, 100, 0.9, 0.98),)).attained
    assert (result.value, result.low, result.high) == (0.95, 0.9, 0.98)


def test_one_run_that_is_too_short_for_batches_has_the_interval_of_independent_requests() -> None:
    """Wilson's for 9 of 10: (0.9 + 0.19207 +- 1.96 sqrt(0.009 + 0.0096)) / 1.38415."""
    result = LoadPoint(1.0, (run(9, 10),)).attained
    assert (result.low, result.high) == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_the_rate_of_a_load_is_its_nominal_one_whatever_its_seeds_drew() -> None:
    load = NominalLoad(kind="requests", nominal_per_s=10.0, drawn_per_s=9.0, off_frac=-0.1)
    point = LoadPoint(1.0, (run(9, 10).model_copy(update={"offered_per_s": 9.0, "load": load}),) * 2)
    assert point.drawn_per_s == 9.0
    assert point.offered_per_s == pytest.approx(10.0)
    assert point.load.off_frac == pytest.approx(-0.1)


@pytest.mark.parametrize("n_runs", [1, 2])
def test_where_nobody_arrived_nothing_was_attained(n_runs: int) -> None:
    result = LoadPoint(1.0, (run(0, 0),) * n_runs).attained
    assert math.isnan(result.value)
    assert not result.has_interval


def test_a_run_without_arrivals_leaves_the_share_of_the_others() -> None:
    assert LoadPoint(1.0, (run(9, 10), run(0, 0))).attained.value == 0.9
