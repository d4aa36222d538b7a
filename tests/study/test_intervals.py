"""Intervals hold the truth as often as they say."""

import math

import numpy as np
import pytest

from simserve.study.intervals import BLOCKS, LEAST_PER_BLOCK, around, blocks_of, leave_one_out, mean_of, standard_error
from simserve.tables.columns import Floats
from tests.effort import runs, wider


def test_three_values_have_the_interval_of_the_textbook() -> None:
    result = mean_of([1.0, 2.0, 3.0])  # t(2) at 97.5% is 4.3027; the standard error is 1 / sqrt(3)
    assert result.value == 2.0
    assert result.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert result.low == pytest.approx(4.0 - result.high)


def test_one_value_has_no_interval() -> None:
    result = mean_of([1.5])
    assert result.value == 1.5
    assert not result.has_interval
    assert not result.is_sure


@pytest.mark.law("coverage")
def test_intervals_of_means_hold_the_truth_in_95_of_100_cases() -> None:
    draws = np.random.default_rng(5).exponential(1.0, (2000, 40)).mean(axis=1).reshape(-1, 10)
    held = [result.low <= 1.0 <= result.high for result in (mean_of(row.tolist()) for row in draws)]
    assert 0.90 <= np.mean(held) <= 0.99


def test_too_few_requests_make_no_blocks() -> None:
    assert blocks_of(BLOCKS * LEAST_PER_BLOCK - 1) is None
    blocks = blocks_of(BLOCKS * LEAST_PER_BLOCK)
    assert blocks is not None
    assert np.bincount(blocks).tolist() == [LEAST_PER_BLOCK] * BLOCKS


def test_leaving_out_blocks_tells_the_error_of_a_mean_of_independent_values() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 40_000)
    blocks = blocks_of(len(values))
    assert blocks is not None
    error = standard_error(leave_one_out(lambda counts: float(values[counts].mean()), blocks))
    assert error == pytest.approx(1 / math.sqrt(len(values)), rel=0.5)


def test_it_is_wider_where_neighbors_hang_together() -> None:
    independent = np.random.default_rng(2).normal(0.0, 1.0, 400)
    alike = np.repeat(independent, 100)  # runs of a hundred equal outcomes tell no more than one each
    blocks = blocks_of(len(alike))
    assert blocks is not None
    error = standard_error(leave_one_out(lambda counts: float(alike[counts].mean()), blocks))
    assert error == pytest.approx(1 / math.sqrt(400), rel=0.5)


def p99(values: Floats) -> float:
    return float(np.percentile(values, 99))


@pytest.mark.law("coverage")
def test_blocks_hold_the_true_p99_nearly_as_often_as_they_say() -> None:
    generator = np.random.default_rng(3)
    truth, held = math.log(100), []
    blocks = blocks_of(20_000)
    assert blocks is not None
    n = runs(200, quick=60)
    for _ in range(n):
        values = generator.exponential(1.0, 20_000)
        error = standard_error(leave_one_out(lambda counts: p99(values[counts]), blocks))  # noqa: B023  # called at once
        result = around(float(np.percentile(values, 99)), error, BLOCKS - 1)
        held.append(result.low <= truth <= result.high)
    slack = wider(n, 200)
    assert 0.95 - 0.06 * slack <= np.mean(held) <= 0.95 + 0.04 * slack
