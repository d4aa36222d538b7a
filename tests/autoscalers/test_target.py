"""A plain target: flapping by noise and by a bare threshold, and what ends either."""

from itertools import pairwise
from random import Random

import pytest

from simserve import plugins
from simserve.autoscalers.target import Target
from simserve.errors import PolicyError
from tests.autoscalers.pools import KV, WAITING, begun, even, followed, member, pool


def test_replicas_are_the_total_over_the_target() -> None:
    policy = begun(Target(WAITING, 10, max_replicas=9))
    assert [policy.desired_replicas(even(2, WAITING, value)) for value in (5, 5.1, 20, 90)] == [1, 2, 4, 9]
    assert begun(Target(KV, 0.1, max_replicas=9)).desired_replicas(even(1, KV, 0.3)) == 3  # 2.9999999999999996 or so


def test_without_a_sample_the_replicas_stay() -> None:
    assert begun(Target(WAITING, 10, max_replicas=9)).desired_replicas(pool([member()] * 3)) == 3


def kv_of(n_replicas: int) -> float:
    """Return the KV cache use of each replica: 0.7 of two, and no more than all of one."""
    return min(1.0, 1.4 / n_replicas)


def workers(policy: Target) -> list[int]:
    """Return the replicas at a constant load that fills 0.7 of two (dynamo#9294)."""
    policy.begin()
    history = [2]
    for tick in range(20):
        history.append(policy.desired_replicas(even(history[-1], KV, kv_of(history[-1]), 15.0 * tick)))
    return history


def test_a_bare_threshold_oscillates_and_the_guard_does_not() -> None:
    bare = Target(KV, 0.9, max_replicas=4, down_below=0.8, down_only_if_load_fits=False)
    assert workers(bare) == [2, 1] * 10 + [2]
    assert workers(Target(KV, 0.9, max_replicas=4, down_below=0.8)) == [2] * 21


def test_the_guard_lets_go_what_fits() -> None:
    guarded = Target(KV, 0.9, max_replicas=4, down_below=0.8)
    assert followed(guarded, KV, [1.4] * 3, 4) == [3, 2, 2]
    assert followed(guarded, KV, [0.9] * 3, 3) == [2, 1, 1]


def noisy_totals() -> list[float]:
    """Return a queue of 30 with noise of 30% each way (llm-d-autoscaling#1427)."""
    stream = Random(0)
    return [30 * (1 + 0.3 * stream.choice([-1, 1])) for _ in range(240)]


def test_noise_of_the_queue_flips_the_replicas_and_a_window_ends_it() -> None:
    bare = followed(Target(WAITING, 5, max_replicas=20), WAITING, noisy_totals(), 8)
    assert set(bare) == {5, 8}  # 21 and 39 over 5
    assert sum(before != after for before, after in pairwise(bare)) > 80
    steady = followed(Target(WAITING, 5, max_replicas=20, scale_down_window_s=300), WAITING, noisy_totals(), 8)
    assert set(steady) == {8}


def test_windows_delay_either_direction() -> None:
    policy = Target(WAITING, 10, max_replicas=9, scale_up_window_s=30, scale_down_window_s=60)
    assert followed(policy, WAITING, [20, 40, 40, 40, 10, 10, 10, 10, 10], 2) == [2, 2, 4, 4, 4, 4, 4, 1, 1]


def test_a_forecast_adds_replicas_a_start_ahead() -> None:
    """A queue that grows by 5 each 15 s: the trend of two starts of 30 s is 10 more than is there."""
    ramp = [5.0 * step for step in range(1, 30)]
    late = followed(Target(WAITING, 5, max_replicas=99), WAITING, ramp, 1)
    early = followed(Target(WAITING, 5, max_replicas=99, forecast="kalman", lead_s=30), WAITING, ramp, 1)
    same = followed(Target(WAITING, 5, max_replicas=99, forecast="constant", lead_s=30), WAITING, ramp, 1)
    assert late == same == list(range(1, 30))
    assert [after - before for before, after in zip(late[9:], early[9:], strict=True)] == pytest.approx([2] * 20, abs=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_replicas": 9}, "min_replicas must be at most max_replicas"),
        ({"target": 0}, "target: must be more than 0"),
        ({"down_below": 6}, "down_below must be at most the target 5.0, got 6.0"),
        ({"metric": "queue"}, "unknown metric 'queue'"),
        ({"forecast": "prophet"}, "forecast: must be one of constant, kalman or arima, got 'prophet'"),
        ({"scale_up_window_s": -5}, "must be at least 0"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", {"kind": "target", "metric": WAITING, "target": 5, "max_replicas": 8} | changes)
    assert message in str(caught.value)


def test_a_run_starts_without_the_memory_of_the_last() -> None:
    policy = Target(WAITING, 10, max_replicas=9, scale_down_window_s=300)
    assert [followed(policy, WAITING, [80, 10], 2) for _ in range(2)] == [[8, 8]] * 2
    assert policy.metric_names == {WAITING}
