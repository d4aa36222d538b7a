"""Forecasts: exact gains of the local linear trend, and what each makes of a ramp."""

from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

from simserve.state import forecast
from simserve.state.forecast import Arima, Forecast, Kalman, forecaster

ForecastT = TypeVar("ForecastT", bound=Forecast)

RAMP = [10.0 + 3.0 * step for step in range(40)]


def after(made: ForecastT, samples: list[float]) -> ForecastT:
    for sample in samples:
        made.add(sample)
    return made


def gains(made: Kalman, r: float) -> tuple[float, float]:
    """Return the gains of the last sample: K = P H' / r, with P after it."""
    return made.covariance[0] / r, made.covariance[1] / r


def test_constant_is_the_last_interval() -> None:
    assert after(forecaster("constant"), RAMP).ahead() == after(forecaster("constant"), RAMP).ahead(9) == RAMP[-1]
    assert forecaster("constant").ahead() == 0


def test_first_gains_are_exact() -> None:
    """The covariance before the second sample is F P F' + Q with P = 1000 × the identity."""
    p00, p01, p11 = Fraction(2001), Fraction(1000), Fraction(10001, 10)
    for n_samples in (2, 3):
        made = after(Kalman(), RAMP[:n_samples])
        of_level, of_trend = p00 / (p00 + 10), p01 / (p00 + 10)
        assert gains(made, 10.0) == pytest.approx((float(of_level), float(of_trend)), rel=1e-9)
        p00, p01, p11 = (1 - of_level) * p00, (1 - of_level) * p01, p11 - of_trend * p01
        p00, p01, p11 = p00 + 2 * p01 + p11 + 1, p01 + p11, p11 + Fraction(1, 10)


@pytest.mark.parametrize("variances", [(1.0, 0.1, 10.0), (5.0, 0.01, 2.0)])
def test_gains_settle_at_the_solution_of_the_riccati_equation(variances: tuple[float, float, float]) -> None:
    q_level, q_trend, r = variances
    made = after(Kalman(*variances), RAMP * 50)
    moves, sees = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
    covariance = solve_discrete_are(moves.T, sees.T, np.diag([q_level, q_trend]), np.array([[r]]))
    settled = covariance[0] / (covariance[0, 0] + r)
    assert gains(made, r) == pytest.approx(tuple(settled), rel=1e-9)


def test_a_trend_is_followed_and_nothing_falls_below_zero() -> None:
    made = after(forecaster("kalman"), RAMP)
    assert [made.ahead(n) for n in (1, 4)] == pytest.approx([RAMP[-1] + 3, RAMP[-1] + 12], rel=1e-3)
    assert after(forecaster("kalman"), RAMP[::-1]).ahead(40) == 0


@pytest.mark.filterwarnings("ignore")
def test_arima_is_that_of_statsmodels() -> None:
    models = pytest.importorskip("statsmodels.tsa.arima.model")
    samples = [20 + 5 * float(np.sin(step / 3)) + step / 7 for step in range(60)]
    expected = models.ARIMA(samples[-50:], order=(1, 1, 1)).fit().forecast(3)[-1]
    assert after(forecaster("arima"), samples).ahead(3) == pytest.approx(float(expected))
    assert after(forecaster("arima"), samples[:4]).ahead() == samples[3]


def test_arima_of_equal_samples_needs_no_fit() -> None:
    assert after(Arima(), [7.0] * 20).ahead(5) == 7.0


def test_a_step_is_followed_after_three_samples_with_an_overshoot_of_a_quarter() -> None:
    made = after(forecaster("kalman"), [10.0] * 20)
    errors = []
    for _ in range(20):
        made.add(20.0)
        errors.append(made.ahead() - 20.0)
    assert abs(errors[2]) < 0.5 and max(errors) < 2.5 and all(abs(error) < 0.5 for error in errors[14:])


def test_a_few_samples_make_no_trend() -> None:
    assert [after(forecaster("kalman"), [10.0, 20, 30, 40, 50][:n]).ahead() for n in (1, 2, 4)] == [10, 20, 40]
    assert after(forecaster("kalman"), [10.0, 20, 30, 40, 50]).ahead() == pytest.approx(60, abs=1)


def test_what_cannot_be_forecast_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = lambda name: None  # noqa: E731
    monkeypatch.setattr(forecast, "find_spec", missing)
    with pytest.raises(ValueError, match=r'pip install "simserve\[forecast\]", or use kalman'):
        forecaster("arima")
    forecaster("kalman")
