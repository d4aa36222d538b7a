"""Forecast: the next values of a series that is sampled at equal intervals."""

import warnings
from collections import deque
from importlib.util import find_spec
from typing import Final, Literal

Predictor = Literal["constant", "kalman", "arima"]

LONGEST_HISTORY: Final = 50
"""Samples that `arima` is fitted to (assumed: the window of the planner's Prophet)."""

FEWEST_SAMPLES: Final = 5
"""Samples below which the last one is the forecast, as in Dynamo's planner (`kalman_min_points`)."""


class Forecast:
    """The last sample stays (`constant`)."""

    def __init__(self) -> None:
        self.history = deque[float](maxlen=LONGEST_HISTORY)

    def add(self, value: float) -> None:
        """Store a sample."""
        self.history.append(value)

    def ahead(self, n_steps: int = 1) -> float:
        """Return the forecast n_steps after the last sample, never below 0."""
        if len(self.history) < FEWEST_SAMPLES:
            return max(0.0, self.history[-1]) if self.history else 0.0
        return max(0.0, self.expected(n_steps))

    def expected(self, n_steps: int) -> float:
        """Return what is expected n_steps after the last sample."""
        return self.history[-1]


class Kalman(Forecast):
    """A local linear trend under noise.

    level(t) = level(t - 1) + trend(t - 1) + w, trend(t) = trend(t - 1) + u and sample(t) = level(t) + v, with variances
    q_level, q_trend and r. With P the covariance of (level, trend) before a sample, the gains are P00 / (P00 + r) and
    P01 / (P00 + r). It starts at the first sample without a trend, with P = 1000 × the identity.
    """

    def __init__(self, q_level: float = 1.0, q_trend: float = 0.1, r: float = 10.0) -> None:
        super().__init__()
        self._q_level, self._q_trend, self._r = q_level, q_trend, r
        self.covariance = (1000.0, 0.0, 1000.0)
        """P00, P01 and P11 after the last sample."""
        self._level = self._trend = 0.0

    def add(self, value: float) -> None:
        """Store a sample."""
        if self.history:
            p00, p01, p11 = self.covariance
            p00, p01, p11 = p00 + 2 * p01 + p11 + self._q_level, p01 + p11, p11 + self._q_trend
            of_level, of_trend = p00 / (p00 + self._r), p01 / (p00 + self._r)
            error = value - self._level - self._trend
            self._level += self._trend + of_level * error
            self._trend += of_trend * error
            self.covariance = (1 - of_level) * p00, (1 - of_level) * p01, p11 - of_trend * p01
        else:
            self._level = value
        super().add(value)

    def expected(self, n_steps: int) -> float:
        """Return the level with n_steps of the trend."""
        return self._level + n_steps * self._trend


class Arima(Forecast):
    """ARIMA(1, 1, 1) by statsmodels, fitted anew for each forecast (assumed: the planner searches for an order)."""

    def expected(self, n_steps: int) -> float:
        """Return the forecast of the fit; equal samples need none."""
        if len({*self.history}) == 1:
            return self.history[-1]
        from statsmodels.tsa.arima.model import ARIMA

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a short series, which converges badly
            return float(ARIMA([*self.history], order=(1, 1, 1)).fit().forecast(n_steps)[-1])


def forecaster(predictor: Predictor | None, *variances: float) -> Forecast:
    """Return a forecast without samples; None: the last one. Raises ValueError where it cannot be made.

    variances: q_level, q_trend and r of `kalman`.
    """
    if predictor == "arima" and find_spec("statsmodels") is None:
        raise ValueError('arima needs statsmodels; pip install "simserve[forecast]", or use kalman')
    return Kalman(*variances) if predictor == "kalman" else Arima() if predictor == "arima" else Forecast()
