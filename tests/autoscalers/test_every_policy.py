"""What holds of every autoscaler: it is read as it is spelled out, copies well, and keeps its bounds on any pool."""

import pickle
from random import Random

import pytest

from simserve import plugins
from simserve.autoscalers.base import Autoscaler, common_interval_s
from simserve.state.pool_view import MemberView, PoolView
from simserve.state.queries import METRICS
from tests.autoscalers.pools import KV, RUNNING, WAITING, member, pool

SPECS = [
    {"kind": "hpa", "metrics": [{"metric": WAITING, "target": 5}, {"metric": KV, "target": 0.7}], "max_replicas": 8},
    {
        "kind": "keda",
        "triggers": [{"query": "sum(gateway_queue_size) or vector(0)", "threshold": 5}],
        "max_replicas": 8,
    },
    {"kind": "kpa", "target": 10, "max_replicas": 8, "min_replicas": 1},
    {"kind": "ray_serve", "max_replicas": 8, "downscale_delay_s": 60},
    {"kind": "wva", "max_replicas": 8, "min_replicas": 2},
    {"kind": "target", "metric": f"avg_over_time({WAITING}[1m])", "target": 5, "max_replicas": 8},
    {
        "kind": "dynamo_planner",
        "optimization_target": "latency",
        "prefill_tokens_per_s": 3000,
        "load_predictor": "kalman",
    },
    {"kind": "schedule", "steps": [{"at_s": 50, "replicas": 8}, {"at_s": 90, "replicas": 1}], "period_s": 600},
]


def built(spec: dict[str, object]) -> Autoscaler:
    policy: Autoscaler = plugins.build("autoscalers", spec)
    policy.begin()
    return policy


def random_pool(stream: Random, now_s: float, n_wanted: int) -> PoolView:
    members: list[MemberView] = []
    for _ in range(n_wanted):
        phase = stream.choices(["ready", "loading", "pending"], [8, 1, 1])[0]
        samples = {WAITING: stream.choice([0, 3, 80]), RUNNING: stream.choice([0, 9, 99]), KV: stream.random()}
        samples["prompt_tokens_waiting"] = 0.0
        is_scraped = phase == "ready" and stream.random() < 0.9
        members.append(member(samples if is_scraped else None, now_s, phase))  # type: ignore[arg-type]
    return pool(members, now_s, n_wanted, {"gateway_queue_size": stream.choice([0, 0, 40])})


def walk(policy: Autoscaler) -> list[int]:
    """Return the replicas over an hour of random pools."""
    stream, n_replicas, history = Random(1), 2, []
    for tick in range(240):
        n_replicas = policy.desired_replicas(random_pool(stream, tick * 15.0, n_replicas))
        history.append(n_replicas)
    return history


def test_every_policy_is_here() -> None:
    assert plugins.names("autoscalers") == sorted(str(spec["kind"]) for spec in SPECS)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["kind"])
def test_a_policy_is_read_as_it_is_spelled_out(spec: dict[str, object]) -> None:
    policy = built(spec)
    assert built({"kind": spec["kind"], **plugins.spelled_out(policy)}) == policy
    assert {*policy.metric_names} <= {*METRICS}
    assert policy.interval_s >= 0.1


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["kind"])
def test_a_policy_keeps_its_bounds_and_decides_the_same_again_and_in_a_copy(spec: dict[str, object]) -> None:
    policy = built(spec)
    history = walk(policy)
    assert policy.min_replicas <= min(history) < max(history) <= policy.max_replicas
    copy: Autoscaler = pickle.loads(pickle.dumps(policy))
    for each in (policy, copy):
        each.begin()
        assert walk(each) == history


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["kind"])
def test_every_argument_has_its_meaning(spec: dict[str, object]) -> None:
    description = plugins.describe("autoscalers", str(spec["kind"]))
    assert description.text
    assert [argument.name for argument in description.arguments if not argument.meaning] == []


def test_two_loops_are_asked_at_the_longest_interval_that_meets_both() -> None:
    assert [common_interval_s(60, 15), common_interval_s(20, 15), common_interval_s(0.5, 15)] == [15, 5, 0.5]
