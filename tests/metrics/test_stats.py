"""Distributions, and intervals for shares of outcomes that hang together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.metrics.stats import T_95, distribution, interpolated, level_name, share_interval, wilson


def chain(n: int, stay: float, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """0/1 outcomes that keep their value with a probability, half of them 1 in the long run."""
    change = np.random.default_rng(seed).random(n) > stay
    return (np.cumsum(change) % 2).astype(np.float64)


def test_percentiles_and_spread_are_those_of_numpy() -> None:
    found = distribution(np.array([4.0, 1.0, 3.0, 2.0]))
    assert (found.n, found.mean, found.highest) == (4, 2.5, 4.0)
    assert found.std == pytest.approx(1.118034)  # of the population: sqrt(5 / 4)
    assert found.percentiles[50.0] == 2.5
    assert found.percentiles[90.0] == pytest.approx(3.7)  # 0.7 of the way from the third to the fourth


def test_levels_are_named_as_vllm_does() -> None:
    assert [level_name(level) for level in (50.0, 99.0, 99.9)] == ["p50", "p99", "p99.9"]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=2), st.floats(0, 100))
def test_interpolation_is_that_of_numpy_to_the_last_bit(values: list[float], level: float) -> None:
    low, high = sorted(values)
    assert interpolated(low, high, level / 100) == np.percentile([low, high], level)


def test_too_few_outcomes_have_no_interval() -> None:
    assert share_interval(np.ones(63)) is None
    assert share_interval(np.ones(64)) is not None


def test_when_all_meet_the_interval_still_says_how_little_is_known() -> None:
    found = share_interval(np.ones(1000))
    assert found is not None
    assert found.high_frac == 1.0
    assert found.low_frac == pytest.approx(1000 / (1000 + 1.959964**2))  # Wilson with no miss: n / (n + z²)


def test_wilson_is_the_textbooks() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_student_quantiles_are_those_of_the_distribution() -> None:
    from scipy.stats import t

    assert {n: pytest.approx(t.ppf(0.975, n - 1), abs=1e-6) for n in T_95} == T_95


def test_outcomes_that_hang_together_have_a_wider_interval_than_independent_ones() -> None:
    n = 20_000
    widths = []
    for stay in (0.5, 0.99):
        found = share_interval(chain(n, stay, seed=1))
        assert found is not None
        widths.append(found.high_frac - found.low_frac)
    low, high = wilson(0.5, n)
    assert widths[0] == pytest.approx(high - low, rel=0.5)
    assert widths[1] > 4 * (high - low)  # the variance of the mean is (1 + r) / (1 - r) = 99 times as large


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    intervals = [share_interval(chain(4000, 0.9, seed)) for seed in range(200)]
    held = sum(found is not None and found.low_frac <= 0.5 <= found.high_frac for found in intervals)
    assert held >= 180  # 190 expected; Wilson's own would hold it in about 130


def test_outcomes_that_never_mix_are_called_correlated() -> None:
    found = share_interval(np.repeat([1.0, 0.0], 2000))
    assert found is not None
    assert found.correlated
