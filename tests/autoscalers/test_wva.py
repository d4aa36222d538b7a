"""llm-d's workload variant autoscaler: its rule, and the decisions of recorded runs."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from simserve import plugins
from simserve.autoscalers.wva import TOKENS, Wva
from simserve.errors import PolicyError
from simserve.state.pool_view import PoolView, ReplicaFacts
from tests.autoscalers.pools import FLEET, KV, WAITING, begun, member, needs_fleet, pool


def peaks(*replicas: tuple[float, float], now_s: float = 0.0, wanted: int | None = None) -> PoolView:
    """Return a pool with the peak KV cache use and queue length of each replica."""
    return counted(pool([member({KV: kv, WAITING: queue}, now_s) for kv, queue in replicas], now_s, wanted))


def counted(view: PoolView) -> PoolView:
    """Return a pool of replicas of 16,000 tokens, 12,800 of which count, with requests of 100 and 50 tokens."""
    requests = {"request_success": 1, "request_arrival": 1, "request_prompt_tokens": 100, "generation_tokens": 50}
    for each in view.members:
        for name, n_tokens in requests.items():
            for at_s, value in ((view.now_s - 60, 0), (view.now_s, n_tokens)):
                each.signals.add(f"{name}_total", at_s, value)
    return replace(view, replica=ReplicaFacts(kv_tokens=16_000))


def published(policy: Wva, view: PoolView) -> int:
    policy.begin()
    return policy.published_replicas(view)


def test_a_replica_is_added_when_the_mean_spare_of_the_unsaturated_ones_is_low() -> None:
    policy = Wva(max_replicas=9)
    assert published(policy, peaks((0.69, 0), (0.69, 0))) == 2
    assert published(policy, peaks((0.72, 0), (0.70, 0))) == 3  # spare 0.09
    assert published(policy, peaks((0.3, 2), (0.3, 3))) == 3  # spare queue 2.5
    assert published(policy, peaks((0.3, 2), (0.3, 2), (0.3, 5))) == 3  # the third is saturated: spare 3


def test_a_replica_is_added_when_all_are_saturated() -> None:
    assert published(Wva(max_replicas=9), peaks((0.8, 0), (0.1, 5))) == 3


def test_a_replica_goes_when_the_rest_keeps_its_spare() -> None:
    policy = Wva(max_replicas=9)
    assert published(policy, peaks((0.35, 0), (0.34, 0))) == 1  # 0.69 on one
    assert published(policy, peaks((0.36, 0), (0.35, 0))) == 2  # 0.71 on one
    assert published(policy, peaks((0.1, 1), (0.1, 1.1))) == 2  # a queue of 2.1 on one
    assert published(policy, peaks((0.1, 0), (0.9, 0))) == 2  # one is unsaturated
    assert published(policy, peaks((0.1, 0))) == 1


def test_nothing_changes_while_a_replica_reports_nothing() -> None:
    full = member({KV: 0.9, WAITING: 9})
    assert published(Wva(max_replicas=9), pool([full, member(phase="loading")])) == 2
    assert published(Wva(max_replicas=9), peaks((0.1, 0), (0.1, 0), (0.1, 0), wanted=2)) == 2


def test_values_are_peaks_of_one_minute() -> None:
    one = member({KV: 0.9, WAITING: 0}, at_s=10)
    for metric, value in ((KV, 0.2), (WAITING, 0.0)):
        one.signals.add(metric, 60, value)
    one.signals.until_s = 60
    assert published(Wva(max_replicas=9), pool([one], now_s=60)) == 2
    assert published(Wva(max_replicas=9), pool([one], now_s=70)) == 1


def test_the_autoscaler_behind_it_waits_four_minutes_either_way_and_wva_waits_for_it() -> None:
    policy, n_replicas, changes = Wva(max_replicas=9), 1, []
    policy.begin()
    assert policy.interval_s == 15
    for tick in range(120):
        now_s = tick * policy.interval_s
        kv = 0.9 if now_s < 600 else 0.05
        after = policy.desired_replicas(peaks(*[(kv, 0)] * n_replicas, now_s=now_s))
        changes += [(now_s, after)] * (after != n_replicas)
        n_replicas = after
    # 2 is published at 0; 3 at 300, in the minute after 2 is reached, and the last wish for 2 is of 285; so at 525.
    # 4 is published at 540, before the load ends at 600, and is reached first.
    assert changes == [(240, 2), (525, 3), (765, 4), (1005, 3), (1245, 2), (1485, 1)]


def test_the_published_number_stays_within_the_bounds() -> None:
    assert published(Wva(max_replicas=2), peaks((0.9, 9), (0.9, 9))) == 2
    assert published(Wva(max_replicas=3, min_replicas=2), peaks((0, 0), (0, 0))) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_down_boundary": 0.85}, "scale_down_boundary must be below scale_up_threshold, got 0.85"),
        ({"kv_spare_trigger": 0.9}, "kv_spare_trigger must be below the kv threshold"),
        ({"queue_spare_trigger": 5}, "queue_spare_trigger must be below the queue threshold"),
        ({"min_replicas": 5}, "min_replicas must be at most max_replicas"),
        ({"min_replicas": 0}, "must be at least 1"),
        ({"kv_cache_threshold": 80}, "must be at most 1"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", {"kind": "wva", "max_replicas": 4} | changes)
    assert message in str(caught.value)


# Recorded decisions of version 1: November 2025, with other thresholds than the defaults.
NOVEMBER = Wva(max_replicas=10, kv_cache_threshold=0.5, kv_spare_trigger=0.2)
Decision = tuple[str, PoolView, int]
OTHER_THRESHOLDS = "capacity-based-moderate-parallel-20251127-161555"
"""The run in which 0.926 of the KV cache began the first scale-up: the defaults explain its last decision."""


def floats(text: str) -> list[float]:
    return [float(value) for value in text.split(";") if value]


def decisions() -> Iterator[Decision]:
    """Yield the run, the pool and the target of each decision of November; a log line within 5 s repeats the last."""
    with (FLEET / "wva_decisions.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"].startswith("capacity") and "-202511" in row["run"]]
    run, last_s = "", 0.0
    for row in rows:
        at_s = datetime.fromisoformat(row["time_utc"]).timestamp()
        is_repeated = row["run"] == run and at_s - last_s < 5
        run, last_s = row["run"], at_s
        if not is_repeated:
            values = zip(floats(row["pods_kv_usage_max_1m"]), floats(row["pods_queue_max_1m"]), strict=True)
            yield run, peaks(*values, wanted=int(row["current_replicas"])), int(row["target_replicas"])


@needs_fleet
def test_the_decisions_of_november_are_explained_but_for_two_removals() -> None:
    every = list(decisions())
    right = [published(NOVEMBER, view) == target for _, view, target in every]
    scalings = [ok for ok, (_, view, target) in zip(right, every, strict=True) if view.wanted != target]
    additions = [ok for ok, (_, view, target) in zip(right, every, strict=True) if target > view.wanted]
    assert (len(every), sum(right)) == (209, 207)
    assert (len(scalings), sum(scalings)) == (25, 23)
    assert len(additions) == sum(additions) == 13


@needs_fleet
def test_the_two_removals_have_their_reasons() -> None:
    """One run had the default thresholds. In the other row the replicas were behind: two pods were left of three, and
    the release of that month started from the pods that report, so it held two."""
    missed = [each for each in decisions() if published(NOVEMBER, each[1]) != each[2]]
    (run, by_defaults, one), (_, behind, two) = missed
    assert run == OTHER_THRESHOLDS
    assert published(Wva(max_replicas=10), by_defaults) == one
    assert (behind.wanted, len(behind.members), two) == (3, 2, 2)
    reported = [(member.signals.last(KV) or 0.0, member.signals.last(WAITING) or 0.0) for member in behind.members]
    assert len(reported) + NOVEMBER.change(reported) == two


@needs_fleet
def test_by_default_thresholds_far_fewer_decisions_are_explained() -> None:
    assert sum(published(Wva(max_replicas=10), view) == target for _, view, target in decisions()) < 160


def test_a_run_starts_without_the_memory_of_the_last() -> None:
    policy = Wva(max_replicas=9)
    for _ in range(2):
        assert begun(policy).desired_replicas(peaks((0.9, 9))) == 1
        assert policy.published_replicas(peaks((0, 0))) == 2
    assert set(policy.metric_names) == {KV, WAITING}
    assert {*tokens().metric_names} == {KV, WAITING, "gateway_queue_size", *TOKENS}


def tokens(**more: float) -> Wva:
    return Wva(max_replicas=20, version="v2", **more)  # type: ignore[arg-type]


def test_version_2_adds_what_the_demand_over_the_threshold_lacks() -> None:
    assert published(tokens(), peaks((0.68, 0))) == 1  # 10,880 of 12,800 is 0.85
    assert published(tokens(), peaks((0.69, 0))) == 2  # 11,040 / 0.85 = 12,988
    assert published(tokens(), peaks((0.5, 4), (0.5, 4))) == 2  # 17,200 / 0.85 = 20,235 of 25,600
    assert published(tokens(), peaks((0.75, 4), (0.75, 4))) == 3  # 25,200 / 0.85 = 29,647
    view = peaks((0.5, 0))
    view.gateway.add("gateway_queue_size", 0, 200)  # 8,000 + 30,000 is 44,706 with 0.85: 3 more
    assert published(tokens(), view) == 4


def test_version_2_counts_prompts_that_another_pool_computed() -> None:
    """Four queued requests of a decode replica will hold 4 × (100 + 50) tokens in its KV cache, not 4 × 50.

    10,400 + 600 is 11,000, which over 0.85 is 12,941 of 12,800; without prompts it were 12,471.
    """
    view = peaks((0.65, 4))
    decode = replace(view, replica=replace(view.replica, role="decode"))
    for at_s in (-60.0, 0.0):  # it computes none itself
        decode.members[0].signals.add("prompt_tokens_total", at_s, 0)
    assert published(tokens(), decode) == 2
    assert published(tokens(), peaks((0.65, 3))) == 1  # 10,850 / 0.85 = 12,765


def test_version_2_removes_all_that_is_spare_below_the_boundary() -> None:
    assert published(tokens(), peaks(*[(0.28, 0)] * 2)) == 1  # 8,960 / 0.7 = 12,800: just one is spare
    assert published(tokens(), peaks(*[(0.29, 0)] * 2)) == 2
    assert published(tokens(), peaks(*[(0.05, 0)] * 5)) == 1  # 4,000 / 0.7 = 5,714: 4.55 of 5
    assert published(tokens(min_replicas=2), peaks(*[(0.05, 0)] * 5)) == 2
    assert published(tokens(), peaks((0.0, 0))) == 1


def test_version_2_counts_replicas_that_start_as_supply_but_none_as_spare() -> None:
    full, loading = member({KV: 0.8, WAITING: 0}), member(phase="loading")
    assert published(tokens(), counted(pool([full]))) == 2  # 15,059 of 12,800
    assert published(tokens(), counted(pool([full, loading]))) == 2
    assert published(tokens(), counted(pool([member({KV: 0.1, WAITING: 0}), loading]))) == 2  # 0.82 of one is spare
    assert published(tokens(), pool([loading] * 2)) == 2


def test_version_2_goes_by_tokens_in_use_alone_before_a_request_has_ended() -> None:
    busy = replace(pool([member({KV: 0.68, WAITING: 4})]), replica=ReplicaFacts(kv_tokens=16_000))
    assert published(tokens(max_num_batched_tokens=240), busy) == 1
    assert published(tokens(), peaks((0.68, 4))) == 2


def test_version_2_learns_what_a_replica_holds_when_it_queues() -> None:
    policy = tokens()
    assert published(policy, peaks((0.25, 5))) == 2  # capacity 4,000; demand 4,750 / 0.85 = 5,588
    assert policy.published_replicas(peaks((0.2, 0))) == 1  # 3,200 / 0.85 = 3,765 of the 4,000 seen
    assert policy.published_replicas(peaks((0.22, 0))) == 2  # 3,520 / 0.85 = 4,141
    assert policy.published_replicas(peaks((0.5, 5), (0.22, 0))) == 3  # 8,000 and the mean, 6,000: 7,000 of each
    policy.begin()
    assert policy.published_replicas(peaks((0.22, 0))) == 1
    for kv in [0.25] * 10 + [0.5] * 10:
        policy.published_replicas(peaks((kv, 9)))
    assert policy.published_replicas(peaks((0.42, 0))) == 1  # of the last ten: 6,720 / 0.85 = 7,906 of 8,000


def test_version_2_estimates_what_a_step_can_serve_before_it_has_seen_a_queue() -> None:
    by_budget = tokens(max_num_batched_tokens=240)  # 240 * 50 / 150 = 80 requests of 125 tokens: 10,000
    assert [published(by_budget, peaks((kv, 0))) for kv in (0.53, 0.54)] == [1, 2]  # 8,480 and 8,640 of 8,500
    by_slots = tokens(max_num_batched_tokens=240, max_num_seqs=40)  # 5,000
    assert [published(by_slots, peaks((kv, 0))) for kv in (0.26, 0.27)] == [1, 2]  # 4,160 and 4,320 of 4,250
    assert published(tokens(max_num_batched_tokens=8192, max_num_seqs=999), peaks((0.68, 0))) == 1  # by memory
