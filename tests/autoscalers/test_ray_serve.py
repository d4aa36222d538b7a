"""Ray Serve: targets, delays, and the limit cycle of ray#18925."""

from itertools import pairwise
from typing import Any

import pytest

from simserve import plugins
from simserve.autoscalers.ray_serve import RayServe
from simserve.errors import PolicyError
from tests.autoscalers.pools import RUNNING, WAITING, begun, even, followed, member, pool


def at_once(**more: Any) -> RayServe:
    return RayServe(upscale_delay_s=0, downscale_delay_s=0, **more)


def test_replicas_are_the_ongoing_requests_over_the_target() -> None:
    members = [member({RUNNING: 3, WAITING: 2})] * 2
    assert begun(at_once()).desired_replicas(pool(members, gateway={"gateway_queue_size": 1})) == 6  # 11 / 2
    assert begun(at_once()).desired_replicas(even(4, RUNNING, 0.5)) == 1


def test_the_mean_of_the_look_back_period_counts() -> None:
    one = member({RUNNING: 2}, at_s=0)
    for at_s, value in ((10, 2), (20, 2), (30, 20), (40, 20)):
        one.signals.add(RUNNING, at_s, value)
    one.signals.until_s = 40
    assert begun(at_once()).desired_replicas(pool([one], now_s=40)) == 7  # (2 + 20 + 20) / 3 / 2


def test_a_wish_for_more_lasts_thirty_seconds_and_one_for_fewer_ten_minutes() -> None:
    assert followed(RayServe(), RUNNING, [8] * 5, 2) == [2, 2, 2, 4, 4]
    assert followed(RayServe(), RUNNING, [2] * 62, 2) == [2] * 60 + [1, 1]


def test_a_wish_that_is_broken_off_starts_again() -> None:
    assert followed(RayServe(look_back_period_s=5), RUNNING, [8, 8, 4, 8, 8, 8, 8], 2) == [2] * 6 + [4]


def test_factors_smooth_the_distance_to_the_target() -> None:
    assert begun(at_once(upscaling_factor=0.5)).desired_replicas(even(4, RUNNING, 4)) == 6
    assert begun(at_once(downscaling_factor=0.5)).desired_replicas(even(4, RUNNING, 1)) == 3
    assert begun(at_once(downscaling_factor=0.5)).desired_replicas(even(2, RUNNING, 0)) == 1


def test_zero_has_a_delay_of_its_own_and_is_left_at_once() -> None:
    policy = RayServe(min_replicas=0, downscale_delay_s=20, downscale_to_zero_delay_s=40)
    policy.begin()
    history = [policy.desired_replicas(even(1, RUNNING, 0, 10.0 * tick)) for tick in range(5)]
    assert history == [1, 1, 1, 1, 0]
    assert policy.desired_replicas(pool([], 50, gateway={"gateway_queue_size": 0})) == 0
    assert policy.desired_replicas(pool([], 60, gateway={"gateway_queue_size": 1})) == 1


def fluid(policy: RayServe, rate_per_s: float, service_s: float, end_s: float) -> list[int]:
    """Return the replicas over time at a constant rate: a replica serves one request at a time, the rest waits."""
    policy.begin()
    n_replicas, n_waiting, history = 1, 0.0, []
    for tick in range(round(end_s / policy.interval_s)):
        n_busy = min(n_replicas, rate_per_s * service_s + n_waiting)
        ongoing = (n_busy + n_waiting) / n_replicas
        n_replicas = policy.desired_replicas(even(n_replicas, RUNNING, ongoing, tick * policy.interval_s))
        n_waiting = max(0.0, n_waiting + policy.interval_s * (rate_per_s - n_replicas / service_s))
        history.append(n_replicas)
    return history


def test_a_constant_rate_is_a_limit_cycle_where_the_queue_that_asked_for_replicas_drains() -> None:
    """At 1.5 requests/s of 1 s two replicas are needed. They have 1.5 ongoing requests: at a target of 2 one goes."""
    history = fluid(RayServe(downscale_delay_s=60), 1.5, 1.0, 3600)
    ups = [n for n, (before, after) in enumerate(pairwise(history)) if before == 1 < after]
    assert len(ups) > 5
    assert history[ups[0] :].count(1) > 5


def test_a_target_below_the_load_of_a_replica_ends_the_cycle() -> None:
    history = fluid(RayServe(target_ongoing_requests=0.75, downscale_delay_s=60), 1.5, 1.0, 3600)
    assert set(history[-300:]) == {2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_replicas": 101}, "min_replicas must be at most max_replicas"),
        ({"target_ongoing_requests": 0}, "must be more than 0"),
        ({"upscale_delay_s": -1}, "must be at least 0"),
        ({"upscaling_factor": 0}, "must be more than 0"),
        ({"look_back_period": 30}, "did you mean look_back_period_s?"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", {"kind": "ray_serve"} | changes)
    assert message in str(caught.value)


def test_a_run_starts_without_the_memory_of_the_last() -> None:
    policy = RayServe()
    assert [followed(policy, RUNNING, [8] * 3, 2) for _ in range(2)] == [[2, 2, 2]] * 2
    assert policy.metric_names == {RUNNING, WAITING, "gateway_queue_size"}
