"""The series of a pool: its replicas put together, neighboring intervals too where they are many."""

import numpy as np
import pytest

from simserve.metrics.timeseries import pool_series
from simserve.tables.columns import Categorical, Columns
from tests.report.answers_by_hand import timeseries


def test_queues_are_summed_and_shares_averaged_over_replicas() -> None:
    result, n_merged = pool_series(timeseries(2), "serve", 600)
    assert n_merged == 1
    assert result["start_s"].tolist() == [0, 1, 2]
    assert result["end_s"].tolist() == [1, 2, 3]
    assert result["queue_len"].tolist() == [1, 3, 5]  # i of one replica and i + 1 of the other
    assert result["longest_queue"].tolist() == [1, 2, 3]
    assert result["kv_frac"].tolist() == pytest.approx([0.05, 0.06, 0.07])
    assert result["fullest_kv_frac"].tolist() == pytest.approx([0.1, 0.11, 0.12])
    assert result["output_tokens_per_s"].tolist() == [20, 20, 20]


def test_many_intervals_are_merged_evenly_and_weighted_by_time() -> None:
    series = timeseries(1, 5) | {"end_s": np.array([1.0, 2.0, 3.0, 4.0, 4.5])}  # the last interval is half as long
    result, n_merged = pool_series(series, "serve", 2)
    assert n_merged == 3
    assert result["start_s"].tolist() == [0, 3]
    assert result["end_s"].tolist() == [3, 4.5]
    assert result["queue_len"].tolist() == pytest.approx([1, (3 * 1 + 4 * 0.5) / 1.5])
    assert result["longest_queue"].tolist() == [2, 4]
    assert result["output_tokens_per_s"].tolist() == [10, 10]


def test_what_was_done_is_the_same_merged_or_not() -> None:
    series = timeseries(3, 17)
    whole, _ = pool_series(series, "serve", 600)
    for most_rows in (1, 2, 5, 16):
        merged, _ = pool_series(series, "serve", most_rows)
        assert len(merged["start_s"]) <= most_rows
        for name in ("queue_len", "kv_frac"):
            done = [float(values[name] @ (values["end_s"] - values["start_s"])) for values in (whole, merged)]
            assert done[0] == pytest.approx(done[1])


def test_each_pool_has_its_own() -> None:
    one, other = timeseries(2, 4, "prefill"), timeseries(1, 4, "decode")
    both: Columns = {name: np.concatenate([one[name], other[name]]) for name in one if name != "pool"}
    both["pool"] = Categorical(np.array([0] * 8 + [1] * 4, np.int32), ("prefill", "decode"))
    assert pool_series(both, "prefill", 600)[0]["running"].tolist() == [2, 2, 2, 2]
    assert pool_series(both, "decode", 600)[0]["running"].tolist() == [1, 1, 1, 1]


def test_a_pool_that_never_ran_has_no_rows() -> None:
    result, n_merged = pool_series(timeseries(1), "spare", 600)
    assert n_merged == 1
    assert all(len(values) == 0 for values in result.values())
