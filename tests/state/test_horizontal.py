"""The law of the Kubernetes autoscaler, apart from any policy that uses it."""

import pytest

from simserve.autoscalers.base import RatePolicy, ScaleDown, ScaleUp
from simserve.state.horizontal import (
    HorizontalScaler,
    PodSamples,
    Recommendations,
    Tolerance,
    wish_by_average,
    wish_by_pods,
    wish_by_value,
)
from tests.autoscalers.pools import member, pool

TENTH = Tolerance(0.1, 0.1)
NONE = Tolerance(0.0, 0.0)


def test_quantities_are_thousandths_so_that_errors_of_floats_add_no_replica() -> None:
    assert wish_by_average(0.1 + 0.2, 0.1, 1, NONE) == 3
    assert wish_by_average(1.4, 0.7, 1, NONE) == 2
    assert wish_by_average(0.3001, 0.1, 1, NONE) == 4  # 301 thousandths


def test_a_ratio_on_the_edge_of_the_tolerance_keeps_the_replicas() -> None:
    assert [wish_by_average(total, 1, 10, TENTH) for total in (8.9, 9, 11, 11.1)] == [9, 10, 10, 12]


def test_what_cannot_be_read_is_no_wish() -> None:
    assert wish_by_average(None, 1, 2, TENTH) is None
    assert wish_by_value(None, 1, pool([member()]), TENTH) is None
    assert wish_by_pods(PodSamples([], 2, 1), 1, 3, TENTH) is None


@pytest.mark.parametrize(
    ("pods", "n_wished"),
    [
        (PodSamples([2.0, 2.0], 0, 0), 4),
        (PodSamples([2.0, 2.0], 2, 0), 4),  # 1.0 with those filled in: the present number
        (PodSamples([4.0, 4.0], 2, 0), 8),
        (PodSamples([4.0, 4.0], 1, 1), 8),
        (PodSamples([0.2, 0.2], 2, 0), 3),  # (0.4 + 2) / 4 of 4
        (PodSamples([0.2, 0.2], 0, 2), 1),
        (PodSamples([0.2, 0.2], 1, 1), 2),  # (0.4 + 1) / 3 of 3
        (PodSamples([1.2, 1.2], 2, 0), 4),  # 0.6 with those filled in: the direction turned
    ],
)
def test_pods_without_a_sample_are_filled_in(pods: PodSamples, n_wished: int) -> None:
    assert wish_by_pods(pods, 1.0, 4, TENTH) == n_wished


def test_windows_keep_the_number_between_the_extremes_of_their_recommendations() -> None:
    recommendations = Recommendations(up_window_s=20, down_window_s=30)
    assert [recommendations.stabilized(10.0 * tick, 5, wish) for tick, wish in enumerate([5, 7, 8, 3, 4, 2])] == [
        *[5, 5, 7],  # lowest of 20 s: 5; 5 of 0 s; then 7 of 10 s
        *[5, 5, 4],  # highest of 30 s: 8, 8, and 4 of 40 s once 8 of 20 s is out
    ]


def test_what_cannot_be_read_is_not_remembered_and_zero_replicas_stay() -> None:
    scaler = HorizontalScaler(ScaleUp(), ScaleDown(30, [RatePolicy("pods", 1, 15)]), 1, 10)
    assert scaler.decide(0, 0, [5]) == 0
    assert scaler.decide(0, 4, [None]) == 4
    assert [scaler.decide(at_s, 4, [None, 2]) for at_s in (15, 30)] == [4, 4]
    assert [scaler.decide(at_s, 4, [2]) for at_s in (45, 60, 75)] == [4, 4, 3]
