"""Recorded signals: what policies see of a fleet that ran elsewhere, row by row."""

from dataclasses import dataclass
from math import nan
from typing import Any

import pytest

from simserve.autoscalers.base import Autoscaler
from simserve.autoscalers.dynamo_planner import DynamoPlanner
from simserve.autoscalers.target import Target
from simserve.engine.scaling import RecordedSignals, resized
from simserve.errors import PolicyError
from simserve.state.pool_view import PoolView, ReplicaFacts
from tests.autoscalers.pools import KV, RUNNING

ARRIVALS = "gateway_arrival_total"


@dataclass
class Looking(Autoscaler):
    """Keeps what it sees."""

    answer: Any = 1
    interval_s: float = 10.0
    min_replicas, max_replicas = 1, 9

    def begin(self) -> None:
        self.seen = list[PoolView]()

    def desired_replicas(self, pool: PoolView) -> int:
        self.seen.append(pool)
        return self.answer  # type: ignore[no-any-return]


def test_pods_without_names_report_the_mean_once_they_have_been_silent() -> None:
    policy = Looking()
    signals = RecordedSignals([0, 10, 20, 30, 40], [1, 3, 3, 1, 2], {(KV, ""): [0.1, 0.2, 0.3, 0.4, nan]}, 10)
    assert signals.desired_by(policy) == [1] * 5
    phases = [[each.phase for each in pool.members] for pool in policy.seen]
    assert phases == [["ready"], ["ready", "loading", "loading"], ["ready"] * 3, ["ready"], ["ready", "loading"]]
    assert policy.seen[2].last(KV) == [0.4, 0.3, 0.3]  # at the end: two of them left after 20 s
    assert policy.seen[4].last(KV) == [0.4]
    assert [pool.wanted for pool in policy.seen] == [1, 3, 3, 1, 2]


def test_pods_with_names_report_where_they_have_a_value() -> None:
    policy = Looking()
    columns = {(KV, "a"): [0.1, 0.2], (KV, "b"): [nan, 0.4], (RUNNING, ""): [3.0, 5.0], (ARRIVALS, ""): [9.0, 12.0]}
    RecordedSignals([0, 10], [2, 3], columns).desired_by(policy)
    first, second = policy.seen
    assert [each.phase for each in first.members] == ["ready", "loading"]
    assert [each.phase for each in second.members] == ["ready", "ready", "loading"]
    assert second.last(KV) == [0.2, 0.4] and second.last(RUNNING) == [5.0, 5.0]
    assert second.gateway.last(ARRIVALS) == 12.0


def test_windows_see_earlier_rows_and_between_two_decisions_the_last_one_stays() -> None:
    rule = Target(f"rate({ARRIVALS}[1m])", 1.0, 9, interval_s=20)
    at_s = [0.0, 10, 20, 30, 40]
    signals = RecordedSignals(at_s, [1] * 5, {(ARRIVALS, ""): [0, 10, 30, 80, 120]})
    assert signals.desired_by(rule) == [1, 1, 2, 2, 3]  # 30 in 20 s, then 120 in 40 s
    assert signals.desired_by(rule) == [1, 1, 2, 2, 3]


def test_a_policy_knows_the_replicas() -> None:
    columns = {(KV, ""): [0.5, 0.5], ("prompt_tokens_waiting", ""): [600.0, 400.0]}
    signals = RecordedSignals([0, 10], [1, 1], columns, replica=ReplicaFacts(kv_tokens=1000))
    assert signals.desired_by(DynamoPlanner()) == [2, 1]  # 1.1 of its KV cache, then 0.9


def test_the_youngest_leave_first() -> None:
    assert resized([1, 2, 3], 2, 9) == [1, 2]
    assert resized([1, 2], 4, 9) == [1, 2, 9, 9]


@pytest.mark.parametrize("answer", [1.5, -1, None])
def test_an_answer_that_is_no_number_of_replicas_is_refused(answer: object) -> None:
    with pytest.raises(PolicyError, match="must return a whole number, 0 or more"):
        RecordedSignals([0], [1], {(KV, ""): [0.1]}).desired_by(Looking(answer))


def test_a_policy_that_raises_is_named() -> None:
    with pytest.raises(PolicyError, match="desired_replicas"):
        RecordedSignals([0], [1], {(KV, ""): [0.1]}).desired_by(Raising())


class Raising(Looking):
    """Fails."""

    def desired_replicas(self, pool: PoolView) -> int:
        raise ZeroDivisionError
