"""What a chart shows of a million rows is true of all of them."""

import numpy as np
import pytest

from simserve.report import chart_data


def test_a_short_curve_is_the_empirical_distribution() -> None:
    curve = chart_data.curve(np.array([3.0, 1.0, np.nan, 2.0]), 4)
    assert curve.is_exact
    assert curve.value.tolist() == [1, 2, 3]
    assert curve.share.tolist() == [0.25, 0.5, 0.75]


def test_requests_that_were_never_answered_keep_the_curve_below_one() -> None:
    assert chart_data.curve(np.array([1.0, np.nan]), 2).share[-1] == 0.5


def test_equal_values_count_together() -> None:
    assert chart_data.curve(np.array([1.0, 1.0, 2.0]), 3).share.tolist() == [2 / 3, 2 / 3, 1]


def test_a_long_curve_is_short_and_exact_at_each_of_its_points() -> None:
    values = np.random.default_rng(1).lognormal(size=50_000)
    curve = chart_data.curve(values, 60_000, through=2.345)
    assert len(curve.value) <= chart_data.MAX_CURVE_POINTS + 1
    assert 2.345 in curve.value
    for at in (0, 17, len(curve.value) // 2, -2, -1):
        assert curve.share[at] == np.count_nonzero(values <= curve.value[at]) / 60_000
    assert (np.diff(curve.share) >= 0).all()
    assert curve.value[-1] == values.max()


def test_a_goal_outside_the_values_adds_no_point() -> None:
    assert chart_data.curve(np.array([1.0, 2.0]), 2, through=9.0).value.tolist() == [1, 2]


def test_a_curve_of_nothing_is_empty() -> None:
    assert len(chart_data.curve(np.array([np.nan]), 1).value) == 0


def test_bands_are_the_quantiles_of_their_rows() -> None:
    x = np.repeat([10.0, 1000.0], 100)
    y = np.concatenate([np.arange(100.0), np.arange(100.0) + 500])
    bands = chart_data.quantile_bands(x, y)
    assert bands.x.tolist() == [10, 1000]
    assert bands.p50.tolist() == [49.5, 549.5]
    assert bands.p99 == pytest.approx([98.01, 598.01])


def test_too_few_rows_make_no_bands() -> None:
    assert len(chart_data.quantile_bands(np.arange(30.0), np.arange(30.0)).x) == 0


def test_a_sample_is_even_and_keeps_both_ends() -> None:
    rows = chart_data.even_rows(1_000_000, 5)
    assert rows.tolist() == [0, 250_000, 500_000, 749_999, 999_999]
    assert chart_data.even_rows(3, 5).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("end_s", "width_s"), [(900, 2), (600, 1), (3.0, 0.005), (86_400, 200), (0, 2e-12)])
def test_bins_have_round_widths_and_are_few(end_s: float, width_s: float) -> None:
    width = chart_data.bin_width(end_s, 600)
    assert width == pytest.approx(width_s)
    assert end_s / width <= 600


def test_rates_by_bin_count_every_event_once() -> None:
    rates = chart_data.per_bin(np.array([0.0, 1.9, 2.0, 5.0, 6.0]), 2.0, 3)
    assert rates.tolist() == [1.0, 0.5, 1.0]
