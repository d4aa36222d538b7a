"""Knative's autoscaler: stable and panic windows, worked by hand."""

from typing import Any

import pytest

from simserve import plugins
from simserve.autoscalers.kpa import Kpa
from simserve.errors import PolicyError
from tests.autoscalers.pools import RUNNING, WAITING, even, followed, member, pool


def kpa(max_replicas: int = 50, min_replicas: int = 1, **more: Any) -> Kpa:
    """Return the policy with a target of 10 concurrent requests."""
    return Kpa(max_replicas, min_replicas, target=10, target_utilization_frac=1.0, **more)


def test_the_target_is_seventy_percent_of_a_hundred_or_of_the_limit_of_the_container() -> None:
    policy, limited = Kpa(max_replicas=50), Kpa(max_replicas=50, container_concurrency=10)
    for each, n_replicas in ((policy, 2), (limited, 20)):
        each.begin()
        assert each.desired_replicas(even(2, RUNNING, 70)) == n_replicas


def test_waiting_requests_and_those_at_the_gateway_are_concurrent_too() -> None:
    policy = kpa()
    policy.begin()
    members = [member({RUNNING: 8, WAITING: 2})] * 2
    assert policy.desired_replicas(pool(members, gateway={"gateway_queue_size": 9})) == 3


def test_outside_a_panic_the_mean_of_the_stable_window_counts() -> None:
    history = followed(kpa(), RUNNING, [30] * 30 + [50] * 60, 3)
    assert history[29] == 3
    assert history[30:60:10] == [4, 4, 5]  # the mean of 60 s is 30.7, 37.3, 44
    assert history[60:] == [5] * 30


def test_a_panic_begins_at_twice_the_ready_replicas_and_lasts_one_stable_window_after_the_last() -> None:
    """The panic window is 6 s, of three ticks; the stable window of 60 s has thirty."""
    history = followed(kpa(), RUNNING, [20] * 30 + [80] * 5 + [20] * 70, 2)
    # 40 then 60 then 80 in the panic window: 4 of 2 begins a panic, 6 and 8 follow.
    assert history[29:33] == [2, 4, 6, 8]
    # 6 of 4 and 8 of 6 are no panic, so it is renewed last at tick 30 and ends after 60 s; until then nothing goes.
    assert history[30 + 30] == 8
    # The stable means are then 26, 24, 22 and 20, and half of 8 are kept at first.
    assert history[61:65] == [4, 3, 3, 2]
    assert history[-1] == 2


def test_down_is_at_most_by_half_at_a_time_and_up_by_its_rate() -> None:
    assert followed(kpa(), RUNNING, [10], 16) == [8]
    assert followed(kpa(max_scale_up_rate=3.0), RUNNING, [1000], 2) == [6]


def test_zero_replicas_come_after_an_empty_stable_window_and_the_grace_period() -> None:
    history = followed(kpa(min_replicas=0), RUNNING, [5] + [0] * 45, 1)
    # The window is empty from 60 s on, and the grace period takes 30 s.
    assert history == [1] * 45 + [0]


def test_from_zero_the_requests_at_the_gateway_count() -> None:
    policy = kpa(min_replicas=0)
    policy.begin()
    assert policy.desired_replicas(pool([], gateway={"gateway_queue_size": 0})) == 0
    assert policy.desired_replicas(pool([], now_s=2, gateway={"gateway_queue_size": 30})) == 2  # a mean of 15


def test_without_any_sample_the_replicas_stay() -> None:
    policy = kpa()
    policy.begin()
    assert policy.desired_replicas(pool([member(phase="loading")] * 3)) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_replicas": 9}, "min_replicas must be at most max_replicas"),
        ({"max_replicas": 0}, "must be at least 1"),
        ({"target_utilization_frac": 70}, "must be at most 1"),
        ({"panic_threshold_frac": 1}, "must be more than 1"),
        ({"stable_window_s": 5}, "must be at least 6"),
        ({"container_concurrency": -1}, "must be at least 0"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", {"kind": "kpa", "max_replicas": 8} | changes)
    assert message in str(caught.value)


def test_a_run_starts_without_the_memory_of_the_last() -> None:
    policy = kpa()
    assert followed(policy, RUNNING, [100] * 5, 1) == followed(policy, RUNNING, [100] * 5, 1) == [10] * 5
    assert policy.metric_names == {RUNNING, WAITING, "gateway_queue_size"}
