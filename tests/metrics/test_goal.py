"""Goals as people say them."""

import pytest

from simserve.errors import SimserveError
from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999, fewest_for, goal_from


@pytest.mark.parametrize(
    ("text", "frac"),
    [
        ("0.99", 0.99),
        (".9", 0.9),
        ("p90", 0.9),
        ("P99", 0.99),
        ("p99.9", 0.999),
        ("99.9%", 0.999),
        ("99%", 0.99),
        ("1%", 0.01),
        ("0.9999", 0.9999),
        ("p99.99", 0.9999),
    ],
)
def test_a_goal_is_a_share_or_a_percentile(text: str, frac: float) -> None:
    assert goal_from(text) == frac


@pytest.mark.parametrize("text", ["", "99", "1", "0", "p100", "p0", "best", "-0.5", "p", "0.99999", "nan", "1e-1"])
def test_what_is_neither_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(
        SimserveError, match=r"--goal: must be a share from 0.01 to 0.9999, or a percentile .*; try p99"
    ):
        goal_from(text)


def test_ten_requests_lie_beyond_a_percentile_that_is_no_guess() -> None:
    assert (fewest_for(50.0), fewest_for(95.0), FEW_FOR_P99, FEW_FOR_P999) == (20, 200, 1000, 10_000)
