"""Queries: the part of PromQL that autoscalers use, evaluated on a pool, and what is refused."""

import pytest

from simserve.state.pool_view import PoolView, Signals
from simserve.state.queries import parse
from tests.autoscalers.pools import KV, RUNNING, WAITING, member, pool, signals


def three() -> PoolView:
    """Return a pool of two members with samples and one that loads."""
    members = [member({WAITING: 3, KV: 0.5, RUNNING: 8}), member({WAITING: 5, KV: 0.7, RUNNING: 4})]
    return pool([*members, member(phase="loading")], gateway={"gateway_queue_size": 9})


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("num_requests_waiting", 8),
        ("vllm:num_requests_waiting", 8),
        ('sum(vllm:num_requests_waiting{namespace="a", pod=~".*decode.*"})', 8),
        ("avg(vllm:kv_cache_usage_perc)", 0.6),
        ("max(vllm:gpu_cache_usage_perc)", 0.7),
        ("min(num_requests_waiting)", 3),
        ("count(num_requests_waiting)", 2),
        ("sum(num_requests_waiting) / count(num_requests_waiting)", 4),
        ("sum by (model_name) (num_requests_waiting)", 8),
        ("max by (pod) (num_requests_waiting)", 8),
        ("max(num_requests_waiting) by (model_name)", 5),
        ("(sum(num_requests_waiting) * 8192 / 2048) or vector(0)", 32),
        ("sum(num_requests_waiting) + sum(num_requests_running) - 2 * 3", 14),
        ("avg(num_requests_waiting / 2)", 2),
        ("avg(num_requests_waiting / (num_requests_waiting + num_requests_running))", (3 / 11 + 5 / 9) / 2),
        ("sum(llm_d_epp_flow_control_queue_size{inference_pool='p'})", 9),
        ("inference_extension_flow_control_queue_size", 9),
        ("inference_pool_average_queue_size", 4),
        ("sum(llm_d_epp_request_running)", 20),
        ("1.5e1", 15),
    ],
)
def test_a_query_has_the_value_that_prometheus_gives(query: str, total: float) -> None:
    assert parse(query).total(three()) == pytest.approx(total)


def test_values_are_those_of_the_members_unless_they_are_aggregated() -> None:
    assert parse("num_requests_waiting").values(three()) == [3, 5, None]
    assert parse("max by (pod) (num_requests_waiting)").values(three()) == [3, 5, None]
    assert parse("num_requests_waiting * 2").values(three()) == [6, 10, None]
    assert parse("max by (model_name) (num_requests_waiting)").values(three()) == [5]
    assert parse("sum(num_requests_waiting) by (instance)").by_member
    assert not parse("gateway_queue_size").by_member


def test_a_query_tells_its_metrics() -> None:
    assert parse("sum(rate(vllm:generation_tokens_total[1m]))").metrics == {"generation_tokens_total"}
    query = parse("(avg(vllm:kv_cache_usage_perc) or vector(0)) + sum(rate(vllm:request_success_total[1m])) / 5")
    assert query.metrics == {"kv_cache_usage_perc", "request_success_total"}


def test_nothing_is_no_value_unless_the_query_says_zero() -> None:
    empty = pool([member(phase="loading")])
    for query in ("num_requests_waiting", "sum(num_requests_waiting)", "count(num_requests_waiting)", "1 / 0"):
        assert parse(query).total(empty) is None
    assert parse("sum(num_requests_waiting) or vector(0)").total(empty) == 0
    assert parse("1e300 * 1e300").total(empty) is None


def test_a_sample_is_forgotten_after_five_minutes() -> None:
    old = member({WAITING: 3}, at_s=100)
    assert parse(WAITING).values(pool([old], now_s=399)) == [3]
    assert parse(WAITING).values(pool([old], now_s=400)) == [None]


def series(metric: str, samples: dict[int, float]) -> Signals:
    made = signals()
    for at_s, value in samples.items():
        made.add(metric, at_s, value)
        made.until_s = at_s
    return made


def at_60_s(metric: str, query: str, samples: dict[int, float]) -> float | None:
    one = member()
    one.signals._series = series(metric, samples)._series
    one.signals.until_s = 60
    return parse(query).total(pool([one], now_s=60))


def test_a_window_is_open_at_its_start_and_ends_now() -> None:
    samples = {15: 7.0, 30: 1.0, 45: 3.0, 60: 2.0}
    values = {
        how: at_60_s(WAITING, f"{how}_over_time({WAITING}[45s])", samples)
        for how in ("max", "min", "avg", "sum", "count")
    }
    assert values == {"max": 3, "min": 1, "avg": 2, "sum": 6, "count": 3}
    assert at_60_s(WAITING, f"max_over_time({WAITING}[1m])", samples) == 7
    assert at_60_s(WAITING, f"max_over_time({WAITING}[10s])", {30: 1}) is None


def test_a_rate_is_the_growth_of_a_counter_a_second_and_a_fall_is_a_restart() -> None:
    counter = "request_success_total"
    assert at_60_s(counter, f"rate(vllm:{counter}[1m])", {15: 100, 60: 190}) == 2
    assert at_60_s(counter, f"increase({counter}[1m])", {15: 100, 60: 190}) == 120
    assert at_60_s(counter, f"rate({counter}[1m])", {15: 100, 30: 130, 45: 10, 60: 50}) == pytest.approx(80 / 45)
    assert at_60_s(counter, f"rate({counter}[1m])", {60: 190}) is None


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (
            "histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[5m])) by (le))",
            "histogram_quantile",
        ),
        ("label_replace(num_requests_waiting, 'a', '$1', 'b', '(.+)')", "label_replace"),
        ("sum(num_requests_waiting) without (pod)", "`without`"),
        ("num_requests_waiting[5m]", "max_over_time"),
        ("max_over_time(num_requests_waiting)", "[1m]"),
        ("max_over_time(num_requests_waiting[5m:1m])", "[1m]"),
        ("max_over_time(num_requests_waiting[2h])", "at most 3600 s"),
        ("rate(num_requests_waiting[1m])", "needs a counter"),
        ("sum(request_success_total)", "rate(request_success_total[1m])"),
        ("num_requests_waiting or vector(0)", "aggregate before"),
        ("sum(num_requests_waiting) or num_requests_running", "vector(0)"),
        ("num_requests_waiting / count(num_requests_waiting)", "one value"),
        ("sum(num_requests_waiting", "')' is expected"),
        ("sum(num_requests_waiting))", "')' is not expected"),
        ("sum(num_requests_waiting) > 5", "'>' is not"),
        ("max by (pod", "it ends too early"),
        ("", "it ends too early"),
        ("sum() 5", "')' is not expected"),
        ("(" * 300 + "1" + ")" * 300, "nests too deeply"),
    ],
)
def test_what_is_outside_the_subset_is_quoted_with_what_to_write(query: str, why: str) -> None:
    with pytest.raises(ValueError, match="write `metrics:`") as caught:
        parse(query)
    assert f"query '{query}'" in str(caught.value)
    assert why in str(caught.value)


def test_an_unknown_metric_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="did you mean num_requests_waiting") as caught:
        parse("sum(vllm:num_request_waiting)")
    assert "vllm:num_request_waiting" in str(caught.value)
    with pytest.raises(ValueError, match="A pool has num_requests_running, num_requests_waiting, kv_cache_usage_perc"):
        parse("DCGM_FI_DEV_GPU_UTIL")
