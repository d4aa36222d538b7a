"""KEDA: zero to one by its own polls, one to many by the Kubernetes autoscaler."""

import pytest

from simserve import plugins
from simserve.autoscalers.base import Behavior, RatePolicy, ScaleDown, ScaleUp
from simserve.autoscalers.keda import Keda, Trigger
from simserve.errors import PolicyError
from simserve.state.pool_view import PoolView
from tests.autoscalers.pools import KV, WAITING, even, member, pool

QUEUE = "sum(gateway_queue_size) or vector(0)"


def queued(n_replicas: int, n_waiting: float, now_s: float) -> PoolView:
    """Return a pool with requests that wait at the gateway."""
    return pool([member()] * n_replicas, now_s, gateway={"gateway_queue_size": n_waiting})


def followed(
    policy: Keda, waiting: list[tuple[float, float]], end_s: float, n_replicas: int
) -> list[tuple[float, int]]:
    """Return the changes of the replicas, at (instant, requests that wait from then on)."""
    policy.begin()
    changes = []
    for tick in range(round(end_s / policy.interval_s)):
        now_s = tick * policy.interval_s
        n_waiting = next(n for at_s, n in reversed(waiting) if at_s <= now_s)
        after = policy.desired_replicas(queued(n_replicas, n_waiting, now_s))
        changes += [(now_s, after)] * (after != n_replicas)
        n_replicas = after
    return changes


def test_the_first_replica_comes_at_a_poll_and_the_rest_from_the_kubernetes_autoscaler() -> None:
    policy = Keda([Trigger(QUEUE, 10)], max_replicas=8)
    assert policy.interval_s == 15
    assert followed(policy, [(0, 0), (35, 45)], 120, 0) == [(60, 1), (75, 5)]


def test_the_last_replica_goes_when_no_poll_was_active_for_the_cooldown() -> None:
    policy = Keda([Trigger(QUEUE, 10)], max_replicas=8, behavior=Behavior(scale_down=ScaleDown(0)))
    # Active until the poll at 90; the Kubernetes autoscaler goes to one at once, zero waits for more than 300 s.
    assert followed(policy, [(0, 20), (100, 0)], 600, 1) == [(0, 2), (105, 1), (420, 0)]


def test_before_any_active_poll_the_initial_cooldown_counts() -> None:
    assert followed(Keda([Trigger(QUEUE, 10)], initial_cooldown_period_s=100), [(0, 0)], 600, 1) == [(120, 0)]
    assert followed(Keda([Trigger(QUEUE, 10)]), [(0, 0)], 600, 1) == [(30, 0)]


def test_a_trigger_is_active_above_its_activation_threshold() -> None:
    policy = Keda([Trigger(QUEUE, 10, activation_threshold=5)])
    assert followed(policy, [(0, 5), (60, 6)], 90, 0) == [(60, 1)]


def test_an_idle_pool_goes_below_its_minimum_and_comes_back_to_it() -> None:
    policy = Keda([Trigger(QUEUE, 10)], min_replicas=2, idle_replica_count=0, cooldown_period_s=60)
    assert followed(policy, [(0, 1), (50, 0), (200, 1)], 300, 2) == [(120, 0), (210, 2)]


def test_with_a_minimum_nothing_goes_to_zero() -> None:
    assert followed(Keda([Trigger(QUEUE, 10)], min_replicas=1), [(0, 0)], 900, 1) == []


def test_a_short_poll_is_asked_for_as_often() -> None:
    policy = Keda([Trigger(QUEUE, 10)], polling_interval_s=5)
    assert policy.interval_s == 5
    assert followed(policy, [(0, 0), (7, 30)], 40, 0) == [(10, 1), (15, 3)]


def test_a_cached_metric_is_that_of_the_last_poll() -> None:
    cached = Keda([Trigger(QUEUE, 10, use_cached_metrics=True)])
    assert followed(cached, [(0, 10), (5, 30)], 60, 1) == [(30, 3)]
    assert followed(Keda([Trigger(QUEUE, 10)]), [(0, 10), (5, 30)], 60, 1) == [(15, 3)]


def test_a_signal_without_a_fresh_sample_removes_nothing() -> None:
    policy = Keda([Trigger(f"sum({WAITING})", 10)], behavior=Behavior(scale_down=ScaleDown(0)))
    policy.begin()
    stale = pool([member({WAITING: 1}, at_s=0)] * 4, now_s=600)
    assert policy.desired_replicas(stale) == 4
    policy.begin()
    assert policy.desired_replicas(pool([member({WAITING: 1}, at_s=600)] * 4, now_s=600)) == 1


def test_one_silent_trigger_keeps_the_replicas_up() -> None:
    policy = Keda(
        [Trigger(f"sum({WAITING})", 10), Trigger(f"avg({KV})", 0.8)], behavior=Behavior(ScaleUp(), ScaleDown(0))
    )
    policy.begin()
    assert policy.desired_replicas(even(4, WAITING, 1)) == 4
    policy.begin()
    assert policy.desired_replicas(even(4, WAITING, 15)) == 6


def test_a_value_is_compared_as_a_whole() -> None:
    policy = Keda([Trigger(f"max({WAITING})", 10, metric_type="value")])
    policy.begin()
    assert policy.desired_replicas(even(2, WAITING, 20)) == 4


# llm-d's guide of token-aware scaling: seconds of prefill backlog, at 1.5 s a replica, with prompts of 8,192 tokens.
PREFILL_TOKENS_PER_S, PROMPT_TOKENS = 2696, 8192
BACKLOG = f"(sum({WAITING}) * {PROMPT_TOKENS} / {PREFILL_TOKENS_PER_S}) or vector(0)"


def token_aware() -> Keda:
    slow = ScaleUp(policies=[RatePolicy("pods", 1, 180)])
    return Keda([Trigger(BACKLOG, 1.5)], min_replicas=1, max_replicas=4, behavior=Behavior(slow))


@pytest.mark.parametrize(("rate_per_s", "n_replicas"), [(0.15, 1), (0.30, 1), (0.50, 2), (1.40, 4)])
def test_prompt_tokens_in_flight_give_the_replicas_of_the_guide(rate_per_s: float, n_replicas: int) -> None:
    """Work flows in as a fluid: what is in service at once is the load in replicas, what does not fit piles up."""
    policy, n_now, history, backlog_s = token_aware(), 1, [], 0.0
    policy.begin()
    load = rate_per_s * PROMPT_TOKENS / PREFILL_TOKENS_PER_S
    assert load == pytest.approx({0.15: 0.456, 0.30: 0.912, 0.50: 1.519, 1.40: 4.254}[rate_per_s], abs=1e-3)
    for tick in range(80):
        n_requests = (load + backlog_s) * PREFILL_TOKENS_PER_S / PROMPT_TOKENS
        n_now = policy.desired_replicas(even(n_now, WAITING, n_requests / n_now, 15.0 * tick))
        backlog_s = max(0.0, backlog_s + 15 * (load - n_now))
        history.append(n_now)
    assert history[-1] == max(history) == n_replicas


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"triggers": []}, "triggers: "),
        ({"triggers": [{"query": "up", "threshold": 1}]}, "unknown metric 'up'"),
        ({"triggers": [{"query": "histogram_quantile(0.9, x)", "threshold": 1}]}, "write `metrics:`"),
        ({"triggers": [{"query": WAITING}]}, "threshold: is missing"),
        ({"min_replicas": 101}, "min_replicas must be at most max_replicas"),
        ({"idle_replica_count": 0}, "idle_replica_count must be below min_replicas"),
        ({"idle_replica_count": 1, "min_replicas": 2}, "idle_replica_count: must be"),
        ({"cooldown_period_s": -1}, "cooldown_period_s: must be at least 0"),
        ({"pollingInterval": 5}, "did you mean polling_interval_s?"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", {"kind": "keda", "triggers": [{"query": WAITING, "threshold": 5}]} | changes)
    assert message in str(caught.value)


def test_a_run_starts_without_the_memory_of_the_last() -> None:
    policy = plugins.build("autoscalers", {"kind": "keda", "triggers": [{"query": QUEUE, "threshold": 5}]})
    runs = [followed(policy, [(0, 20), (100, 0)], 900, 0) for _ in range(2)]
    assert runs[0] == runs[1] != []
    assert policy.metric_names == {"gateway_queue_size"}
