"""The Kubernetes autoscaler: its documented steps, and a recorded run of it."""

import csv
from datetime import datetime
from itertools import groupby, pairwise

import pytest

from simserve import plugins
from simserve.autoscalers.base import Behavior, RatePolicy, ScaleDown, ScaleUp
from simserve.autoscalers.hpa import Hpa, MetricTarget
from simserve.engine.scaling import RecordedSignals, resized
from simserve.errors import PolicyError
from simserve.state.pool_view import MemberView, PoolView
from tests.autoscalers.pools import FLEET, KV, WAITING, begun, even, followed, member, needs_fleet, pool

MINUTES_5 = 300 // 15


def hpa(target: float = 10, behavior: Behavior | None = None, max_replicas: int = 100, **more: int) -> Hpa:
    metrics = [MetricTarget(WAITING, target)]
    return Hpa(metrics, max_replicas=max_replicas, behavior=behavior or Behavior(), **more)


def once(pool: PoolView, *metrics: MetricTarget) -> int:
    policy = Hpa(list(metrics) or [MetricTarget(WAITING, 10)], max_replicas=100, behavior=AT_ONCE)
    return begun(policy).desired_replicas(pool)


AT_ONCE = Behavior(ScaleUp(policies=[RatePolicy("pods", 100, 15)]), ScaleDown(stabilization_window_s=0))


def test_replicas_are_in_proportion_to_the_metric_over_its_target() -> None:
    assert once(even(4, WAITING, 20)) == 8
    assert once(even(4, WAITING, 5)) == 2
    assert once(even(3, WAITING, 14)) == 5  # ceil(4.2)


def test_nothing_changes_within_the_tolerance() -> None:
    assert [once(even(10, WAITING, value)) for value in (8.9, 9.0, 11.0, 11.1)] == [9, 10, 10, 12]


def test_a_direction_may_have_a_tolerance_of_its_own() -> None:
    policy = hpa(behavior=Behavior(ScaleUp(tolerance=0.0), ScaleDown(stabilization_window_s=0, tolerance=0.5)))
    assert [begun(policy).desired_replicas(even(10, WAITING, value)) for value in (5.0, 4.9, 10.5)] == [10, 5, 11]


def test_a_loading_pod_is_idle_on_the_way_up_and_at_the_target_on_the_way_down() -> None:
    loading = member(phase="loading")
    assert once(pool([member({WAITING: 30}), loading])) == 3  # (30 + 0) / 2 / 10 = 1.5, of 2 pods
    assert once(pool([*[member({WAITING: 2})] * 3, loading])) == 2  # (6 + 10) / 4 / 10 = 0.4, of 4 pods


def test_the_direction_may_not_turn_because_of_loading_pods() -> None:
    loading = member(phase="loading")
    assert once(pool([member({WAITING: 15}), loading, loading])) == 3  # 1.5 becomes 0.5


def test_a_pending_pod_is_idle_on_the_way_up_and_left_out_on_the_way_down() -> None:
    pending = member(phase="pending")
    assert once(pool([member({WAITING: 30}), pending])) == 3
    assert once(pool([*[member({WAITING: 2})] * 4, pending])) == 1  # ceil(0.2 * 4), not of 5 pods


def test_a_ready_pod_without_a_fresh_sample_counts_as_loading() -> None:
    stale = member({WAITING: 30}, at_s=0)
    assert once(pool([member({WAITING: 30}, at_s=400), stale], now_s=400)) == 3


def test_the_metric_with_the_largest_wish_wins_and_an_unreadable_one_keeps_the_replicas_up() -> None:
    both = [MetricTarget(WAITING, 10), MetricTarget(KV, 0.5)]
    assert once(pool([member({WAITING: 20, KV: 0.75})] * 2), *both) == 4
    assert once(pool([member({WAITING: 1})] * 4), *both) == 4
    assert once(pool([member({WAITING: 20})] * 4), *both) == 8
    assert once(pool([member()] * 4), *both) == 4


def test_an_external_metric_is_one_total_over_the_replicas_or_a_ratio_of_the_ready_ones() -> None:
    external = MetricTarget(WAITING, 10, source="external")
    assert once(pool([member({WAITING: 50}), member(phase="loading")]), external) == 5
    value = MetricTarget(f"max({WAITING})", 10, target_type="value")
    assert once(pool([member({WAITING: 20}), member({WAITING: 5}), member(phase="loading")]), value) == 4
    gateway = MetricTarget("gateway_queue_size", 5)
    assert once(pool([member()] * 2, gateway={"gateway_queue_size": 21}), gateway) == 5


def test_up_is_at_most_double_or_four_more_in_fifteen_seconds() -> None:
    assert followed(hpa(), WAITING, [1000] * 4, 1) == [5, 10, 20, 40]


def test_down_waits_for_the_highest_recommendation_of_five_minutes_to_pass() -> None:
    history = followed(hpa(), WAITING, [100] + [10] * (MINUTES_5 + 1), 10)
    assert history == [10] * MINUTES_5 + [1, 1]


def test_the_first_recommendation_is_the_present_number() -> None:
    history = followed(hpa(), WAITING, [10] * (MINUTES_5 + 1), 10)
    assert history == [10] * MINUTES_5 + [1]


def test_up_can_wait_too_and_takes_the_lowest_recommendation_of_its_window() -> None:
    behavior = Behavior(scale_up=ScaleUp(stabilization_window_s=30))
    history = followed(hpa(behavior=behavior), WAITING, [20, 50, 40, 60], 2)
    assert history == [2, 2, 4, 4]  # of less than 30 s ago: 2 2, 2 2 5, 5 4, 4 6


def test_each_limit_counts_from_the_replicas_at_the_start_of_its_own_period() -> None:
    up = ScaleUp(policies=[RatePolicy("pods", 2, 15), RatePolicy("percent", 50, 60)], select_policy="min")
    history = followed(hpa(behavior=Behavior(up)), WAITING, [1000] * 6, 10)
    assert history == [12, 14, 15, 15, 17, 19]  # 15 of 10 in the first minute; then two of 12, three of 14 and so on


def test_a_limit_in_percent_rounds_up_on_the_way_up_and_down_on_the_way_down() -> None:
    percent = [RatePolicy("percent", 10, 15)]
    behavior = Behavior(ScaleUp(policies=percent), ScaleDown(stabilization_window_s=0, policies=percent))
    assert followed(hpa(behavior=behavior), WAITING, [1000] * 2, 15) == [17, 19]  # 16.5, 18.7
    assert followed(hpa(behavior=behavior), WAITING, [10] * 2, 15) == [13, 11]  # 13.5, 11.7 truncated


def test_removals_in_a_period_widen_what_may_be_added_in_it() -> None:
    behavior = Behavior(ScaleUp(policies=[RatePolicy("pods", 2, 60)]), ScaleDown(stabilization_window_s=0))
    assert followed(hpa(behavior=behavior), WAITING, [50, 1000], 8) == [5, 10]  # 8 at the start of the minute, and 2


def test_a_direction_can_be_disabled_and_bounds_hold() -> None:
    stays = Behavior(ScaleUp(select_policy="disabled"), ScaleDown(select_policy="disabled"))
    assert followed(hpa(behavior=stays), WAITING, [1000, 1], 5) == [5, 5]
    assert followed(hpa(max_replicas=7, min_replicas=3, behavior=AT_ONCE), WAITING, [1000, 1], 5) == [7, 3]
    assert begun(hpa(max_replicas=4)).desired_replicas(even(9, WAITING, 100)) == 4


def test_a_run_starts_without_the_memory_of_the_last() -> None:
    policy = hpa()
    assert [followed(policy, WAITING, [100, 10, 10], 10) for _ in range(2)] == [[10, 10, 10]] * 2
    assert policy.metric_names == {WAITING}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": []}, "metrics: "),
        ({"min_replicas": 9}, "min_replicas must be at most max_replicas, got 9 > 8"),
        ({"min_replicas": 0}, "min_replicas: must be at least 1"),
        ({"max_replicas": None}, "max_replicas: "),
        ({"metrics": [{"metric": "num_requests_wating", "target": 5}]}, "did you mean num_requests_waiting?"),
        ({"metrics": [{"metric": WAITING, "target": 0}]}, "target: must be more than 0"),
        ({"metrics": [{"metric": f"sum({WAITING})", "target": 5, "source": "pods"}]}, "use source: external"),
        ({"behavior": {"scale_up": {"policies": [{"type": "pods", "value": 0, "period_s": 15}]}}}, "more than 0"),
        ({"behavior": {"scale_up": {"policies": []}}}, "policies: "),
        ({"behavior": {"scale_up": {"stabilizationWindowSeconds": 0}}}, "did you mean stabilization_window_s?"),
        ({"behavior": {"scale_down": {"select_policy": "most"}}}, "must be one of max, min or disabled"),
        ({"interval_s": 0}, "interval_s: must be at least 0.1"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, object], message: str) -> None:
    spec = {"kind": "hpa", "max_replicas": 8, "metrics": [{"metric": WAITING, "target": 5}]}
    with pytest.raises(PolicyError) as caught:
        plugins.build("autoscalers", spec | changes)
    assert message in str(caught.value)


def test_a_policy_is_read_as_written_and_spelled_out_with_its_defaults() -> None:
    spec = {"kind": "hpa", "max_replicas": 8, "metrics": [{"metric": WAITING, "target": 5}]}
    policy = plugins.build("autoscalers", spec)
    written = plugins.spelled_out(policy)
    assert written["behavior"]["scale_down"]["stabilization_window_s"] == 300
    assert plugins.build("autoscalers", {"kind": "hpa", **written}) == policy


# A recorded run: hpa-vllm-combined.yaml of settings.json.
RECORDED = Hpa(
    [MetricTarget(WAITING, 20), MetricTarget(KV, 0.5)],
    max_replicas=10,
    behavior=Behavior(
        ScaleUp(policies=[RatePolicy("percent", 100, 15), RatePolicy("pods", 4, 15)]),
        ScaleDown(stabilization_window_s=0, policies=[RatePolicy("pods", 1, 15)], select_policy="min"),
    ),
)
Row = tuple[float, int, int, dict[str, float]]


def recorded_rows() -> list[Row]:
    """Return time, replicas, desired replicas and samples of each row."""
    with (FLEET / "hpa_timeline.csv").open() as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["timestamp"]).timestamp() for row in rows]
    samples = [{WAITING: float(row["num_requests_waiting"]), KV: float(row["kv_cache_usage"])} for row in rows]
    return [
        (at_s - times[0], int(row["replicas"]), int(row["desired_replicas"]), sample)
        for at_s, row, sample in zip(times, rows, samples, strict=True)
    ]


def view(joined_s: list[float], at_s: float, sample: dict[str, float], silent_s: float) -> PoolView:
    """Return a pool whose members report some time after they joined, all with the recorded mean."""
    members: list[MemberView] = [
        member(sample, at_s) if at_s - joined >= silent_s else member(phase="loading") for joined in joined_s
    ]
    return pool(members, at_s)


def n_explained(silent_s: float) -> int:
    """Count the rows with the desired replicas that the law gives from the replicas and metrics of the row."""
    at_s, replicas, desired, samples = zip(*recorded_rows(), strict=True)
    columns = {(metric, ""): [sample[metric] for sample in samples] for metric in (WAITING, KV)}
    ours = RecordedSignals(at_s, replicas, columns, silent_s).desired_by(RECORDED)
    return sum(a == b for a, b in zip(ours, desired, strict=True))


@needs_fleet
def test_the_recorded_run_is_explained_by_pods_that_are_silent_while_they_load() -> None:
    assert len(recorded_rows()) == 47
    assert [n_explained(silent_s) for silent_s in (0, 90, 120, 145)] == [42, 47, 47, 47]


@needs_fleet
@pytest.mark.parametrize("phase_s", range(15))
def test_the_recorded_signals_alone_give_its_ten_changes_in_order(phase_s: float) -> None:
    """The law has its own replicas, and decides each 15 s on the youngest row."""
    RECORDED.begin()
    rows, joined_s, ours = recorded_rows(), [-1e6], [(0.0, 1)]
    for tick in range(int(rows[-1][0] // 15)):
        at_s = phase_s + 15 * tick
        sample = next(row[3] for row in reversed(rows) if row[0] <= at_s)
        joined_s = resized(joined_s, RECORDED.desired_replicas(view(joined_s, at_s, sample, 120)), at_s)
        ours.append((at_s, len(joined_s)))
    theirs = [next(group) for _, group in groupby(rows, key=lambda row: row[2])]
    assert [row[2] for row in theirs] == [1, 2, 6, 10, 9, 8, 6, 5, 3, 2, 1]
    times = [row[0] for row in rows]
    index = 0
    for (at_s, _, before, _), (change_s, _, after, _) in pairwise(theirs):
        index = next(place for place in range(index, len(ours)) if ours[place][1] == after)
        place = times.index(change_s)
        assert times[place - 1] <= ours[index][0] <= times[min(place + 1, len(times) - 1)], (before, after, at_s)
