"""Dynamo's planner: thresholds, its guard, its budget and its forecasts, on pools made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from simserve import plugins
from simserve.autoscalers.dynamo_planner import DynamoPlanner
from simserve.errors import PolicyError
from simserve.state import forecast
from simserve.state.pool_view import MemberView, PoolView, ReplicaFacts
from tests.autoscalers.pools import KV, member, pool, signals

QUEUED = "prompt_tokens_waiting"
PAIR = {"prefill": "p", "decode": "d"}
LONGEST = 8000
"""Longest context of the pools here, in tokens."""


def planner(**given: Any) -> DynamoPlanner:
    policy: DynamoPlanner = plugins.build("autoscalers", {"kind": "dynamo_planner", **given})
    policy.begin()
    return policy


def fleet(role: Any, members: Sequence[MemberView], now_s: float, n_gpus: int = 1) -> PoolView:
    return replace(pool(members, now_s), replica=ReplicaFacts(role, n_gpus, 1, LONGEST, 100_000))


def loaded(role: Any, loads: Sequence[float], now_s: float = 0.0, n_gpus: int = 1) -> PoolView:
    """Return a pool with a load of each replica, sampled now: queued tokens of prefill, a share of KV for others."""
    name, other = (QUEUED, KV) if role == "prefill" else (KV, QUEUED)
    return fleet(role, [member({name: load, other: 0.0}, now_s) for load in loads], now_s, n_gpus)


def decided(policy: DynamoPlanner, role: str, *loads: float) -> int:
    policy.begin()
    return policy.desired_replicas(loaded(role, loads))


@pytest.mark.parametrize(
    ("target", "role", "up", "steady", "down"),
    [
        ("throughput", "prefill", 8000, 7999, 800),
        ("latency", "prefill", 800, 1, 0),
        ("throughput", "decode", 1.01, 1.0, 0.39),
        ("throughput", "both", 1.01, 0.6, 0.39),
        ("latency", "decode", 0.41, 0.4, 0.09),
    ],
)
def test_each_target_has_its_thresholds(target: str, role: str, up: float, steady: float, down: float) -> None:
    policy = planner(optimization_target=target)
    assert [decided(policy, role, load, load) for load in (up, steady, down)] == [3, 2, 1]
    assert [decided(policy, role, load, down) for load in (up, steady)] == [3, 2]  # any is enough up, and all down


def test_queued_tokens_count_as_kv_of_what_decodes() -> None:
    full = member({KV: 0.95, QUEUED: 6000.0})
    assert planner().desired_replicas(fleet("both", [full], 0.0)) == 2
    assert planner().desired_replicas(fleet("prefill", [full], 0.0)) == 1


def test_thresholds_of_your_own() -> None:
    own: dict[str, float] = {"prefill_scale_up_queue_tokens": 1024, "prefill_scale_down_queue_tokens": 0}
    own |= {"decode_scale_up_kv_rate": 0.8, "decode_scale_down_kv_rate": 0.4}
    policy = planner(optimization_target="load", **own)
    assert [decided(policy, "prefill", load, 0) for load in (1024, 1023, 0)] == [3, 2, 1]
    assert [decided(policy, "decode", load, 0) for load in (0.81, 0.8, 0.31)] == [3, 2, 1]


def test_a_replica_goes_only_if_its_load_fits_on_the_others() -> None:
    """dynamo#9294: 0.7 of two workers is below 80%, and 1.4 of one is not. A bare threshold oscillates, as that of
    `target` does in test_target.py."""
    policy = planner(optimization_target="load", decode_scale_up_kv_rate=1.0, decode_scale_down_kv_rate=0.8)
    history = [2]
    for tick in range(20):
        n_now = history[-1]
        history.append(policy.desired_replicas(loaded("decode", [min(1.0, 1.4 / n_now)] * n_now, 5.0 * tick)))
    assert history == [2] * 21
    assert [decided(policy, "decode", load, load) for load in (0.4, 0.39)] == [2, 1]  # 0.8 of one, and less
    assert [decided(policy, "decode", *[load] * 5) for load in (0.64, 0.63)] == [5, 4]


def test_a_start_and_a_replica_without_a_fresh_sample_are_waited_for() -> None:
    policy, full = planner(), member({KV: 0.9, QUEUED: 90_000.0})
    for phase in ("pending", "loading"):
        assert policy.desired_replicas(fleet("both", [full, member(phase=phase)], 0.0)) == 2
        policy.begin()
    busy = [member({KV: 0.9, QUEUED: 90_000.0})]
    assert policy.desired_replicas(fleet("both", busy, 0.0)) == 2
    both = [*busy, member({KV: 0.0, QUEUED: 0.0})]
    assert policy.desired_replicas(fleet("both", both, 5.0)) == 2  # samples of before the change
    busy[0].signals.add(KV, 6.0, 0.9)
    assert policy.desired_replicas(loaded("both", [1.2, 0.1], 10.0)) == 3


def test_one_side_of_a_pair_waits_for_the_other() -> None:
    starting = fleet("decode", [member(phase="loading")], 0.0)
    assert planner(pools=PAIR).desired_of_pools([loaded("prefill", [9000]), starting]) == [1, 1]
    assert planner(pools=PAIR).desired_of_pools([loaded("prefill", [9000]), loaded("decode", [1.1])]) == [2, 2]


def test_a_single_pool_stays_within_its_budget() -> None:
    policy = planner(max_gpu_budget=4)
    assert policy.desired_replicas(loaded("both", [1.1, 1.1], n_gpus=2)) == 2
    assert (policy.most_replicas(2), policy.most_replicas(3)) == (2, 1)


@pytest.mark.parametrize(
    ("n_now", "n_gpus", "result"),
    [
        ((4, 4), (1, 1), [4, 4]),  # both want 5: 5 × 8 / 10, and the rest
        ((2, 5), (1, 1), [2, 6]),  # 3 and 6: floor(3 × 8 / 9), and the rest
        ((1, 6), (1, 1), [1, 7]),  # 2 and 7
        ((6, 1), (1, 1), [6, 2]),
        ((3, 1), (2, 1), [3, 2]),  # 4 and 2 are 10 GPUs: floor(4 × 8 / 10) = 3, and the rest
        ((1, 1), (4, 4), [1, 1]),
    ],
)
def test_a_pair_shares_its_budget(n_now: tuple[int, int], n_gpus: tuple[int, int], result: list[int]) -> None:
    views = [
        loaded("prefill", [9000] * n_now[0], n_gpus=n_gpus[0]),
        loaded("decode", [1.1] * n_now[1], n_gpus=n_gpus[1]),
    ]
    assert planner(pools=PAIR).desired_of_pools(views) == result
    assert planner(pools=PAIR).desired_of_pools(views[::-1]) == result[::-1]


def counted(role: Any, rates_per_s: Sequence[float], n_replicas: int) -> PoolView:
    """Return a pool after intervals of 180 s at these rates, scraped each 15 s: requests of 3,000 and 149 tokens."""
    now_s, n_done, gateway = 180.0 * len(rates_per_s), 0.0, signals()
    members = [member({KV: 0.5, QUEUED: 0.0}, now_s) for _ in range(n_replicas)]
    for each in (gateway, *(one.signals for one in members)):
        each.until_s = now_s
    for place in range(12 * len(rates_per_s) + 1):
        gateway.add("gateway_arrival_total", 15.0 * place, n_done)
        for name, n_tokens in (("request_success", 1), ("prompt_tokens", 3000), ("generation_tokens", 149)):
            for one in members:
                one.signals.add(f"{name}_total", 15.0 * place, n_tokens * n_done / n_replicas)
        n_done += 15 * rates_per_s[min(place // 12, len(rates_per_s) - 1)]
    return replace(pool(members, now_s), gateway=gateway, replica=ReplicaFacts(role, 1, 1, LONGEST, 100_000))


FULL = {"prefill_tokens_per_s": 40_000, "decode_tokens_per_s": 5_000, "load_predictor": "constant"}
"""What one replica handles: 13 requests/s of 3,000 tokens, and 33 of 149."""


def test_one_prefill_replica_becomes_two_when_the_rate_doubles() -> None:
    """1P1D → 2P1D at 10 → 20 requests/s of 3,000 and 150 tokens; the first comes with its prompt."""
    policy = planner(pools=PAIR, **FULL)
    n_now, history = [1, 1], []
    for rates in ([10.0], [10.0, 20.0], [10.0, 20.0, 20.0]):
        views = [counted(role, rates, n) for role, n in zip(("prefill", "decode"), n_now, strict=True)]
        n_now = list(policy.desired_of_pools(views))
        history.append(n_now)
    assert history == [[1, 1], [2, 1], [2, 1]]


def test_a_pool_with_prompts_and_answers_takes_the_larger_need() -> None:
    assert planner(**FULL).desired_replicas(counted("both", [20.0], 1)) == 2
    assert planner(**FULL | {"decode_tokens_per_s": 900}).desired_replicas(counted("both", [20.0], 1)) == 4


def test_without_load_scaling_the_forecast_alone_decides() -> None:
    policy = planner(enable_load_scaling=False, **FULL)
    assert policy.desired_replicas(counted("both", [5.0], 2)) == 1
    assert planner(enable_load_scaling=False, **FULL).desired_replicas(counted("both", [0.0], 3)) == 1  # no load
    assert planner(**FULL).desired_replicas(counted("both", [5.0], 2)) == 2  # 0.5 of two does not fit on one


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimization_target": "sla"}, "must be one of throughput, latency or load, got 'sla'"),
        ({"load_predictor": "prophet"}, "must be one of constant, kalman or arima, got 'prophet'"),
        ({"decode_scale_up_kv_rate": 0.9}, "thresholds are for optimization_target: load"),
        (
            {"optimization_target": "load", "decode_scale_up_kv_rate": 0.3, "decode_scale_down_kv_rate": 0.4},
            "must be above that to scale down, got 0.3 and 0.4",
        ),
        ({"optimization_target": "load", "decode_scale_up_kv_rate": 80}, "must be at most 1, got 80"),
        ({"enable_load_scaling": False}, "needs prefill_tokens_per_s or decode_tokens_per_s"),
        ({"pools": {"prefill": "p"}}, "pools.decode: is missing"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        planner(**given)
    assert message in str(caught.value)


def test_a_forecast_that_lacks_its_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "find_spec", lambda name: None)
    planner()  # it forecasts nothing
    with pytest.raises(PolicyError, match=r'pip install "simserve\[forecast\]", or use kalman'):
        planner(prefill_tokens_per_s=40_000)
