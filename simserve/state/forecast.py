"""Forecast: the next values of a series that is sampled at equal intervals."""

import warnings
from collections import deque
from importlib.util import find_spec
from typing import Final, Literal

Predictor = Literal["constant", "kalman", "arima", "prophet"]

LONGEST_HISTORY: Final = 50
"""Samples that `arima` is fitted to (assumed: the window of the planner's Prophet)."""

FEWEST_SAMPLES: Final = 5
"""Samples below which `arima` gives the last one, as Dynamo's planner does."""


class Forecast:
    """The last sample stays (`constant`)."""

    def __init__(self) -> None:
        self._history = deque[float](maxlen=LONGEST_HISTORY)

    def add(self, value: float) -> None:
        """Store a sample."""
        self._history.append(value)

    def ahead(self, n_steps: int = 1) -> float:
        """Return the forecast n_steps after the last sample, never below 0."""
        return max(0.0, self._history[-1]) if self._history else 0.0


class Kalman(Forecast):
    """A local linear trend under noise.

    level(t) = level(t - 1) + trend(t - 1) + w, trend(t) = trend(t - 1) + u and sample(t) = level(t) + v, with variances
    q_level, q_trend and r. With P the covariance of (level, trend) before a sample, the gains are P00 / (P00 + r) and
    P01 / (P00 + r). It starts at the first sample without a trend, with P = start × the identity.
    """

    def __init__(self, q_level: float = 1.0, q_trend: float = 0.1, r: float = 10.0, start: float = 1000.0) -> None:
        self._q_level, self._q_trend, self._r = q_level, q_trend, r
        self._covariance = (start, 0.0, start)
        """P00, P01 and P11 after the last sample."""
        self._level: float | None = None
        self._trend = 0.0
        self.gains = (0.0, 0.0)
        """Gains of the last sample."""

    def add(self, value: float) -> None:
        """Store a sample."""
        if self._level is None:
            self._level = value
            return
        p00, p01, p11 = self._covariance
        p00, p01, p11 = p00 + 2 * p01 + p11 + self._q_level, p01 + p11, p11 + self._q_trend
        of_level, of_trend = self.gains = p00 / (p00 + self._r), p01 / (p00 + self._r)
        error = value - self._level - self._trend
        self._level += self._trend + of_level * error
        self._trend += of_trend * error
        self._covariance = (1 - of_level) * p00, (1 - of_level) * p01, p11 - of_trend * p01

    def ahead(self, n_steps: int = 1) -> float:
        """Return the forecast n_steps after the last sample, never below 0."""
        return max(0.0, (self._level or 0.0) + n_steps * self._trend)


class Arima(Forecast):
    """ARIMA(1, 1, 1) by statsmodels, fitted anew for each forecast (assumed: the planner searches for an order)."""

    def ahead(self, n_steps: int = 1) -> float:
        """Return the forecast n_steps after the last sample, never below 0."""
        if len(self._history) < FEWEST_SAMPLES or len(set(self._history)) == 1:
            return super().ahead()
        from statsmodels.tsa.arima.model import ARIMA

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a short series, which converges badly
            fitted = ARIMA(list(self._history), order=(1, 1, 1)).fit()
            return max(0.0, float(fitted.forecast(n_steps)[-1]))


def check_predictor(predictor: Predictor) -> None:
    """Check that forecasts by this name can be made. Raises ValueError with a remedy."""
    if predictor == "prophet":
        raise ValueError("prophet is not simulated; use kalman, arima or constant")
    if predictor == "arima" and find_spec("statsmodels") is None:
        raise ValueError('arima needs statsmodels; pip install "simserve[forecast]", or use kalman')


def forecaster(predictor: Predictor, kalman: tuple[float, float, float] = (1.0, 0.1, 10.0)) -> Forecast:
    """Return a forecast without samples; kalman: q_level, q_trend and r."""
    match predictor:
        case "kalman":
            return Kalman(*kalman)
        case "arima":
            return Arima()
    return Forecast()
