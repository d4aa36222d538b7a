"""Student's t against scipy and against tables."""

import math

import pytest
from scipy.special import stdtr, stdtrit

from simserve.metrics.student import cdf, quantile


@pytest.mark.parametrize("n_free", [1, 2, 3, 4, 7, 8, 31, 128])
def test_it_is_scipys(n_free: int) -> None:
    for t in (-30.0, -2.0, -0.1, 0.0, 0.7, 3.0, 12.0):
        assert cdf(t, n_free) == pytest.approx(stdtr(n_free, t), rel=1e-9, abs=1e-12)
    assert (cdf(math.inf, n_free), cdf(-math.inf, n_free)) == (1.0, 0.0)
    for share in (0.9, 0.95, 0.975, 0.9995):
        assert quantile(share, n_free) == pytest.approx(stdtrit(n_free, share), rel=1e-9)


def test_quantiles_are_those_of_the_tables() -> None:
    assert quantile(0.95, 7) == pytest.approx(1.895, abs=5e-4)
    assert quantile(0.975, 8) == pytest.approx(2.306, abs=5e-4)


@pytest.mark.parametrize("n_free", [1, 2, 7, 8, 31])
def test_a_quantile_is_the_least_value_with_its_share(n_free: int) -> None:
    for t in (0.1, 0.7, 1.5, 2.0, 12.0):
        share = cdf(t, n_free)
        assert quantile(share, n_free) <= t
        assert cdf(quantile(share, n_free), n_free) >= share
