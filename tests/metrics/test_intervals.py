"""Intervals within one run hold what is true as often as they say, where values hang together as those of a queue."""

import math

import numpy as np
import pytest

from simserve.metrics.goal import wilson
from simserve.metrics.intervals import (
    T_95,
    Batches,
    inefficiency,
    mean_interval,
    percentile_interval,
    share_error,
    share_interval,
)
from simserve.tables.columns import Flags, Floats


def chain(n: int, stay: float, seed: int) -> Flags:
    """Outcomes that keep their value with a probability, half of them true in the long run."""
    change = np.random.default_rng(seed).random(n) > stay
    outcomes: Flags = np.cumsum(change) % 2 == 1
    return outcomes


def test_student_quantiles_are_those_of_the_distribution() -> None:
    from scipy.stats import t

    assert {n: pytest.approx(t.ppf(0.975, n - 1), abs=1e-6) for n in T_95} == T_95


def test_wilson_is_the_textbooks() -> None:
    assert wilson(0.5, 100, 1.959964) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10, 1.959964) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_batches_are_of_nearly_equal_size_and_keep_every_value() -> None:
    result = Batches.of(np.arange(167.0))
    assert result is not None
    assert result.n_batches == 20
    assert result.means[0] == np.mean(range(8))  # [0, 8)
    assert result.means[-1] == np.mean(range(158, 167))
    assert result.mean == 83.0


def test_the_error_of_a_mean_is_that_of_the_textbook_where_batches_have_nothing_in_common() -> None:
    signs = np.array([1, -1] * 4)  # neighbors are opposites, so no correction
    result = Batches.of(np.repeat(signs, 8).astype(np.float64))
    assert result is not None
    assert result.error == pytest.approx(math.sqrt(8 / 7 / 8))


def test_the_error_is_wider_by_what_neighboring_batches_have_in_common() -> None:
    signs = np.array([1, 1, 1, 1, -1, -1, -1, -1])  # their correlation is (3 - 1 + 3) / 8
    result = Batches.of(np.repeat(signs, 8).astype(np.float64))
    assert result is not None
    assert result.error == pytest.approx(math.sqrt(1 / 7 * (1 + 5 / 8) / (1 - 5 / 8)))


def test_the_interval_leans_to_the_side_of_the_long_tail() -> None:
    values = np.repeat([0.0] * 19 + [20.0], 8)  # skewness sqrt(20), bend 1 / 6
    result = Batches.of(values)
    assert result is not None
    low, high = result.interval()
    assert result.error == pytest.approx(1.0)
    # (cbrt(1 + t - 1 / 6) - 1) * 3 and, below, (cbrt(1 - t - 1 / 6) - 1) * 3 standard errors, t = 2.093024
    assert 1 - low == pytest.approx(3 * (math.cbrt(1 + 2.093024 - 1 / 6) - 1))
    assert high - 1 == pytest.approx(3 * (1 - math.cbrt(1 - 2.093024 - 1 / 6)))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_an_interval_in_other_units_is_the_same(scale: float) -> None:
    values = np.random.default_rng(2).exponential(1.0, 200)
    one, other = Batches.of(values), Batches.of(values * scale)
    assert one is not None
    assert other is not None
    assert other.interval() == pytest.approx([end * scale for end in one.interval()])


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_of_a_median_lies_evenly_about_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.permutation(200 + seed).astype(float)
    low, high = percentile_interval(values, np.sort(values), 50.0, 1.0 + seed) or (0.0, 0.0)
    assert high is not None
    assert low + high == len(values) - 1


@pytest.mark.parametrize("seed", range(8))
def test_misses_are_as_uncertain_as_hits(seed: int) -> None:
    hits = np.random.default_rng(seed).random(400) < 0.005 * (1 + seed)
    one, other = Batches.of(hits), Batches.of(~hits)
    assert one is not None
    assert other is not None
    assert share_error(one, 5.0) == pytest.approx(share_error(other, 5.0))


def test_too_few_values_have_no_interval() -> None:
    assert share_interval(np.ones(63, np.bool_), 1.0) is None
    assert share_interval(np.ones(64, np.bool_), 1.0) is not None
    assert mean_interval(np.ones(63)) is None


def test_when_all_meet_the_interval_still_says_how_little_is_known() -> None:
    alone = share_interval(np.ones(1000, np.bool_), inefficiency=1.0)
    together = share_interval(np.ones(1000, np.bool_), inefficiency=100.0)
    assert alone is not None
    assert together is not None
    assert alone.high_frac == together.high_frac == 1.0
    assert alone.low_frac == pytest.approx(1000 / (1000 + 2.093024**2))  # Wilson's with no miss: n / (n + t²)
    assert together.low_frac == pytest.approx(10 / (10 + 2.093024**2))
    assert together.correlated
    assert not alone.correlated


def test_batches_that_differ_tell_how_many_outcomes_are_independent() -> None:
    """Eight batches of eight, all hits or half of them in turn: the error is sqrt(8 / 16 / 7 / 8) = 1 / sqrt(112)."""
    outcomes = np.tile([True] * 8 + [True, False] * 4, 4)
    result = share_interval(outcomes, inefficiency=100.0)
    assert result is not None
    assert (result.low_frac, result.high_frac) == pytest.approx(wilson(0.75, 0.75 * 0.25 * 112, 2.364624))
    assert result.n_batches == 8


def test_batches_that_are_alike_tell_of_independent_outcomes() -> None:
    result = share_interval(np.tile([True, False], 32), inefficiency=64 / 50)
    assert result is not None
    assert (result.low_frac, result.high_frac) == pytest.approx(wilson(0.5, 64, 2.364624))
    assert not result.correlated  # as many as 50 independent ones
    result = share_interval(np.tile([True, False], 32), inefficiency=64 / 49)
    assert result is not None and result.correlated


@pytest.mark.parametrize("swap", [False, True])
def test_misses_in_few_batches_are_as_correlated_as_the_requests(swap: bool) -> None:
    """Three of eight batches have a miss each; the batches alone would say sqrt(3 * 5 / 8 / 64 / 7 / 8)."""
    outcomes = np.ones(64, np.bool_)
    outcomes[[0, 16, 32]] = False
    batches = Batches.of(outcomes ^ swap)
    assert batches is not None
    alone = math.sqrt(3 / 64 * 61 / 64 / 64)
    assert share_error(batches, 4.0) == pytest.approx(2 * alone)
    assert share_error(batches, 1e-6) == pytest.approx(math.sqrt(3 * 5 / 8 / 64 / 7 / 8))


def test_misses_of_one_burst_do_not_count_as_so_many_mishaps() -> None:
    outcomes = np.ones(10_000, np.bool_)
    outcomes[5000:5050] = False
    result = share_interval(outcomes, inefficiency=100.0)
    assert result is not None
    assert result.low_frac == pytest.approx(wilson(0.995, 100.0, 2.093024)[0])


def test_outcomes_that_hang_together_have_a_wider_interval_than_independent_ones() -> None:
    n = 20_000
    widths = []
    for stay in (0.5, 0.99):
        result = share_interval(chain(n, stay, seed=1), 1.0)
        assert result is not None
        widths.append(result.high_frac - result.low_frac)
    low, high = wilson(0.5, n, 1.959964)
    assert widths[0] == pytest.approx(high - low, rel=0.5)
    assert widths[1] > 4 * (high - low)  # the variance of the mean is (1 + r) / (1 - r) = 99 times as large


def test_a_share_of_outcomes_that_hang_together_is_held_as_often_as_is_said() -> None:
    result = [share_interval(chain(4000, 0.9, seed), 1.0) for seed in range(400)]
    held = sum(each is not None and each.low_frac <= 0.5 <= each.high_frac for each in result)
    assert 0.92 <= held / 400 <= 0.98  # 19 expected of 20; Wilson's own would hold it in about 13


def test_how_much_values_hang_together_is_what_theory_says() -> None:
    steps = np.random.default_rng(7).normal(size=200_000)
    path = np.empty_like(steps)
    level = 0.0
    for i, step in enumerate(steps.tolist()):
        level = path[i] = 0.9 * level + step
    assert inefficiency(path) == pytest.approx(19.0, rel=0.6)  # (1 + 0.9) / (1 - 0.9); 20 batches tell it to a third
    assert inefficiency(np.ones(500)) == 1.0
    assert inefficiency(np.array([])) == 1.0


def test_a_percentile_with_too_little_beyond_it_has_no_interval() -> None:
    values = np.random.default_rng(1).exponential(1.0, 1000)
    ordered = np.sort(values)
    assert percentile_interval(values, ordered, 99.0, 1.0) is not None
    assert percentile_interval(values[:999], np.sort(values[:999]), 99.0, 1.0) is None
    assert percentile_interval(values, ordered, 99.9, 1.0) is None


def test_a_percentile_that_a_short_run_cannot_bound_above_is_open() -> None:
    values = np.random.default_rng(1).exponential(1.0, 1000)
    result = percentile_interval(values, np.sort(values), 99.0, inefficiency=50.0)
    assert result is not None
    low, high = result
    assert low < np.percentile(values, 99)
    assert high is None


def test_the_ends_of_a_percentile_are_order_statistics() -> None:
    values = np.tile(np.arange(100.0), 20)  # every batch is alike, so that the error is that of independent values
    ordered = np.sort(values)
    half = 2.093024 * math.sqrt(0.505 * 0.495 / 2000)  # half of the values lie below 49.5, 1010 of 2000 at most at 50
    result = percentile_interval(values, ordered, 50.0, 1.0)
    assert result is not None
    below = values <= np.percentile(values, 50.0)
    half = 2.093024 * math.sqrt(below.mean() * (1 - below.mean()) / 2000)
    assert result == (ordered[math.floor((0.5 - half) * 1999)], ordered[math.ceil((0.5 + half) * 1999)])


@pytest.mark.parametrize(("half", "first", "last"), [(0.1 - 1 / 318, 127, 159), (0.1 + 1 / 318, 126, None)])
def test_an_end_beyond_the_greatest_value_is_open(half: float, first: int, last: int | None) -> None:
    """Of 160 values 16 lie above p90, in nine of twenty batches, so that the inefficiency decides: places (0.9 ± half)
    159, half a place short of the last one and beyond it.
    """
    is_above = np.zeros((20, 8), np.bool_)
    is_above[0:14:2, :2] = is_above[14:18:2, 0] = True
    values = np.argsort(np.argsort(is_above.ravel(), kind="stable")).astype(np.float64)
    inefficiency_ = (half / 2.093024) ** 2 * 160 / 0.09
    assert percentile_interval(values, np.sort(values), 90.0, inefficiency_) == (first, last)


@pytest.mark.parametrize(("half", "first"), [(0.9 - 1 / 318, 1000.0), (0.9 + 1 / 318, 0.0)])
def test_an_end_is_zero_below_the_least_value(half: float, first: float) -> None:
    values = np.arange(1000.0, 1160.0)
    inefficiency_ = (half / 2.093024) ** 2 * 160 / 0.09
    assert percentile_interval(values, values, 90.0, inefficiency_) == (first, None)


def test_a_mean_of_what_is_not_negative_is_not_negative() -> None:
    result = mean_interval(np.append(np.zeros(150), np.full(10, 100.0)))
    assert result is not None and result[0] == 0.0
    assert mean_interval(np.full(64, 3.0)) == (3.0, 3.0)


def held(ends: tuple[float, float | None] | None, truth: float) -> bool:
    return ends is not None and ends[0] <= truth and (ends[1] is None or truth <= ends[1])


def test_independent_values_are_held_as_often_as_is_said() -> None:
    generator = np.random.default_rng(3)
    samples: list[Floats] = [generator.exponential(1.0, 2000) for _ in range(300)]
    means = [held(mean_interval(values), 1.0) for values in samples]
    p90s = [held(percentile_interval(values, np.sort(values), 90.0, 1.0), math.log(10)) for values in samples]
    assert 0.92 <= np.mean(means) <= 0.985
    assert 0.92 <= np.mean(p90s) <= 0.985
