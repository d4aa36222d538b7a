"""The loads that a search may try."""

import math

from simserve.study.capacity.boundary import SearchAxis

CLIENTS = SearchAxis(5, 1, 40, is_whole=True)
RATES = SearchAxis(1.0, 0.25, 4.0)


def test_steps_stay_within_the_ends() -> None:
    assert [RATES.up(load, 2.0) for load in (1.0, 3.0, 4.0)] == [2.0, 4.0, 4.0]
    assert [RATES.down(load, 2.0) for load in (1.0, 0.3, 0.25)] == [0.5, 0.25, 0.25]


def test_whole_loads_move_by_one_at_least() -> None:
    assert [CLIENTS.up(load, 1.02) for load in (5, 39, 40)] == [6, 40, 40]
    assert [CLIENTS.down(load, 1.02) for load in (5, 2, 1)] == [4, 1, 1]
    assert CLIENTS.up(10, 1.25) == 12  # 12.5, to even


def test_between_is_by_logarithms_and_never_an_end() -> None:
    assert math.isclose(RATES.between(1.0, 4.0, 0.5), 2.0)
    assert CLIENTS.between(5, 7, 0.01) == CLIENTS.between(5, 7, 0.99) == 6


def test_neighbors_are_close_whatever_their_ratio() -> None:
    assert CLIENTS.is_close(1, 2)
    assert not CLIENTS.is_close(10, 12)
    assert RATES.is_close(1.0, 1.019)
    assert not RATES.is_close(1.0, 1.021)
