"""A schedule: once, and repeated."""

import pytest

from simserve import plugins
from simserve.autoscalers.schedule import Schedule, ScheduleStep
from simserve.errors import PolicyError
from tests.autoscalers.pools import begun, member, pool

STEPS = [ScheduleStep(100, 4), ScheduleStep(200, 1)]


def at(policy: Schedule, now_s: float, n_now: int = 2) -> int:
    return begun(policy).desired_replicas(pool([member()] * n_now, now_s))


def test_replicas_follow_the_clock_and_stay_before_the_first_step() -> None:
    assert [at(Schedule(STEPS), now_s) for now_s in (0, 99, 100, 199.9999999, 200, 5000)] == [2, 2, 4, 1, 1, 1]


def test_a_schedule_repeats_and_its_last_step_lasts_into_the_next_period() -> None:
    policy = Schedule(STEPS, period_s=300)
    assert [at(policy, now_s) for now_s in (50, 150, 250, 350, 450, 550)] == [2, 4, 1, 1, 4, 1]


def test_bounds_are_those_of_the_steps() -> None:
    policy = plugins.build("autoscalers", {"kind": "schedule", "steps": [{"at_s": 0, "replicas": 3}]})
    assert (policy.min_replicas, policy.max_replicas, policy.interval_s) == (3, 3, 1)
    assert policy.metric_names == ()
    assert plugins.spelled_out(policy) == {"steps": [{"at_s": 0, "replicas": 3}], "period_s": None, "interval_s": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": []}, "steps: "),
        ({"steps": [{"at_s": 5, "replicas": 1}, {"at_s": 5, "replicas": 2}]}, "in the order of at_s"),
        ({"steps": [{"at_s": 5, "replicas": 0}]}, "replicas above 0"),
        ({"steps": [{"at_s": -5, "replicas": 1}]}, "must be at least 0"),
        ({"steps": [{"at_s": 5, "replicas": 1.5}]}, "whole number"),
        ({"period_s": 5}, "at_s must be below period_s, got 5.0 of 5.0"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", {"kind": "schedule", "steps": [{"at_s": 5, "replicas": 1}]} | changes)
    assert message in str(caught.value)
