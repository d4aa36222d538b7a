"""The measured window: which requests count, and what rates divide by."""

from typing import Any

import numpy as np
import pytest

from simserve.metrics.window import Window, measured_window


def window(arrival_s: list[float], finish_s: list[float] | None = None, end_s: float = 100.0, **measure: Any) -> Window:
    requests = {"arrival_s": np.array(arrival_s), "finish_s": np.array(finish_s or [end_s] * len(arrival_s))}
    return measured_window(requests, measure, max(arrival_s, default=0.0), end_s)


def test_the_window_is_from_the_end_of_the_warm_up_to_the_last_arrival() -> None:
    result = window([1.0, 4.0, 5.0, 9.0], warmup_s=4.0)
    assert (result.start_s, result.end_s, result.duration_s) == (4.0, 9.0, 5.0)
    assert result.has.tolist() == [False, True, True, True]


def test_without_a_warm_up_it_starts_with_the_run() -> None:
    result = window([1.0, 4.0])
    assert (result.start_s, result.duration_s, result.n_requests) == (0.0, 4.0, 2)


def test_a_warm_up_of_requests_ends_with_the_arrival_of_the_next() -> None:
    result = window([1.0, 4.0, 5.0], warmup_requests=1)
    assert (result.start_s, result.has.tolist()) == (4.0, [False, True, True])


def test_a_warm_up_of_requests_counts_by_rank_where_many_come_at_once() -> None:
    assert window([0.0, 0.0, 0.0, 7.0], warmup_requests=2).has.tolist() == [False, False, True, True]


def test_when_all_come_at_once_rates_divide_by_the_time_to_the_last_answer() -> None:
    result = window([0.0, 0.0], finish_s=[3.0, 8.0])
    assert (result.duration_s, result.ends_with, result.n_requests) == (8.0, "last finish", 2)
    later = window([1.0, 5.0, 5.0], finish_s=[2.0, 8.0, 12.0], warmup_s=5.0)
    assert (later.duration_s, later.ends_with, later.span_s) == (7.0, "last finish", (5.0, 12.0))
    assert np.isnan(window([5.0], finish_s=[5.0], warmup_s=5.0).duration_s)  # it has no length at all


def test_when_all_come_at_once_and_nobody_finishes_rates_divide_by_the_run() -> None:
    assert window([0.0], finish_s=[np.nan], end_s=30.0).duration_s == 30.0


@pytest.mark.parametrize("measure", [{"warmup_s": 50.0}, {"warmup_requests": 9}, {"warmup_requests": 2}])
def test_a_warm_up_longer_than_the_run_leaves_nothing(measure: dict[str, Any]) -> None:
    result = window([1.0, 2.0], **measure)
    assert result.n_requests == 0
    assert np.isnan(result.duration_s)


def test_no_requests_are_an_empty_window() -> None:
    assert window([]).n_requests == 0
