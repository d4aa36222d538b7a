"""Progressions: means and order statistics, against writing all numbers out."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simserve.metrics.progressions import Progressions, census, order_statistics, singles
from tests.metrics.stories import in_pieces

Rows = list[tuple[int, int, int, int]]
ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 20), st.integers(0, 10**13)),
        st.one_of(st.just(0), st.integers(0, 10**9)),
        st.integers(1, 30),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=12,
)


def family(rows: Rows) -> Progressions:
    return Progressions(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def written_out(rows: Rows) -> list[int]:
    return sorted(first + j * growth for first, growth, n, weight in rows for j in range(n) for _ in range(weight))


@example([(1000, 1, 3, 1)], 1 << 18)
@example([(1000, 1, 3, 1)], 1)
@given(ROWS, st.sampled_from([1, 5, 1 << 18]))
def test_order_statistics_are_those_of_the_sorted_numbers(rows: Rows, at_once: int) -> None:
    numbers = written_out(rows)
    parts = [family(rows)]
    result = census(parts)
    assert result is not None
    with in_pieces(at_once):
        assert order_statistics(parts, result, range(len(numbers))) == dict(enumerate(numbers))


@given(ROWS)
def test_mean_spread_and_ends_are_those_of_the_numbers(rows: Rows) -> None:
    numbers = written_out(rows)
    result = census([family(rows), singles(np.empty(0, np.int64))])
    assert result is not None
    assert (result.n, result.lowest, result.highest) == (len(numbers), numbers[0], numbers[-1])
    assert result.mean == pytest.approx(np.mean(numbers), rel=1e-12)
    assert result.std == pytest.approx(np.std(numbers), rel=1e-6, abs=1e-6 * result.mean)


def test_singles_leave_out_what_has_no_weight() -> None:
    parts = [singles(np.array([5, 6, 7]), np.array([2, 0, 1]))]
    result = census(parts)
    assert result is not None
    assert order_statistics(parts, result, [0, 1, 2]) == {0: 5, 1: 5, 2: 7}


def test_of_nothing_there_is_no_census() -> None:
    assert census([]) is None
    assert census([singles(np.array([3]), np.array([0]))]) is None


def test_a_billion_equal_numbers_are_one_row() -> None:
    parts = [singles(np.array([42]), np.array([10**9])), singles(np.array([43]))]
    result = census(parts)
    assert result is not None
    assert order_statistics(parts, result, [0, 10**9 - 1, 10**9]) == {0: 42, 10**9 - 1: 42, 10**9: 43}


def test_a_trillion_numbers_are_never_written_out() -> None:
    parts = [Progressions(*(np.array([value], np.int64) for value in (7, 3, 10**12, 2)))]
    result = census(parts)
    assert result is not None
    assert result.n == 2 * 10**12
    assert result.mean == pytest.approx(7 + 3 * (10**12 - 1) / 2)
    ranks = [0, 1, 2, 10**12, 2 * 10**12 - 1]
    assert order_statistics(parts, result, ranks) == {rank: 7 + 3 * (rank // 2) for rank in ranks}
