"""Where latency turns up."""

import math

from simserve.study.capacity.load_curve import knee


def test_the_knee_of_an_mm1_queue_is_half_the_load_that_it_takes() -> None:
    curve = [(rho / 1000, 1 / (1 - rho / 1000)) for rho in range(0, 990, 5)]
    result = knee(curve)
    assert result is not None
    assert result.load is not None
    assert math.isclose(result.load, 0.5, rel_tol=1e-9)
    assert result.light_s == 1.0


def test_between_two_loads_the_logarithm_of_latency_runs_straight() -> None:
    result = knee([(10.0, 1.0), (20.0, 4.0)])  # 1 to 4 is two doublings, so the first is half way
    assert result is not None
    assert result.load == 15.0


def test_a_curve_that_does_not_rise_so_far_has_none() -> None:
    result = knee([(1.0, 0.2), (9.0, 0.4)])
    assert result is not None
    assert result.load is None


def test_without_latencies_there_is_nothing_to_say() -> None:
    assert knee([(1.0, math.nan), (2.0, 0.0)]) is None
