"""Distributions and percentiles."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simserve.metrics.stats import distribution, interpolated, level_name, with_intervals


def test_percentiles_and_spread_are_those_of_numpy() -> None:
    result = distribution(np.array([4.0, 1.0, 3.0, 2.0]))
    assert (result.n, result.mean, result.highest) == (4, 2.5, 4.0)
    assert result.std == pytest.approx(1.118034)  # of the population: sqrt(5 / 4)
    assert result.percentiles[50.0] == 2.5
    assert result.percentiles[90.0] == pytest.approx(3.7)  # 0.7 of the way from the third to the fourth


def test_levels_are_named_as_vllm_does() -> None:
    assert [level_name(level) for level in (50.0, 99.0, 99.9)] == ["p50", "p99", "p99.9"]


def test_no_values_have_no_percentiles() -> None:
    result = distribution(np.empty(0))
    assert result.n == 0
    assert np.isnan([result.mean, result.std, result.highest, *result.percentiles.values()]).all()


@example([0.1, 0.7], 50.0)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=2), st.floats(0, 100))
def test_interpolation_is_that_of_numpy_to_the_last_bit(values: list[float], level: float) -> None:
    low, high = sorted(values)
    assert interpolated(low, high, level / 100) == np.percentile([low, high], level)


def test_with_intervals_the_distribution_is_the_same() -> None:
    values = np.random.default_rng(2).exponential(1.0, 1500)
    plain, result = distribution(values), with_intervals(values, 1.0)
    assert (result.n, result.percentiles, result.highest) == (plain.n, plain.percentiles, plain.highest)
    assert (result.mean, result.std) == pytest.approx((plain.mean, plain.std))
    assert plain.intervals == {}
    assert list(result.intervals) == ["mean", "p50", "p90", "p95", "p99", "p99.9"]
    assert result.intervals["p99"] is not None
    assert result.intervals["p99.9"] is None
