"""Diurnal arrivals: a rate that follows the clock, with gamma gaps."""

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import MOST_RATE, STRICT, Arrivals, Rate, unit_rate
from simserve.workload.streams import Stream

KNOTS_A_SEGMENT = 64
"""Points at which the cumulative rate, a parabola between two given rates, is tabulated."""


@dataclass(config=STRICT)
class Diurnal(Arrivals):
    """Rates at equal distances over a period, linear between them, repeated."""

    rates_per_s: Annotated[list[Annotated[float, Field(ge=0, le=MOST_RATE)]], Field(min_length=2)]
    """[/s] Arrival rates at equal distances, the first at time zero, at least one above zero; after the last comes the
    first again."""
    period_s: Rate = 86_400.0
    """[s] Period in which the rates repeat; by default a day."""
    burstiness: Rate = 1.0
    """Shape of the gaps, 1 / CV^2: lower is burstier, 1 is Poisson."""

    def __post_init__(self) -> None:
        if not any(self.rates_per_s):
            raise ValueError("at least one of rates_per_s must be above zero")

    def first(self, n: int, stream: Stream) -> Floats:
        """Map unit-rate instants through the cumulative rate."""
        at_s, expected = self._cumulative()
        n_periods, rest = np.divmod(unit_rate(n, stream, self.burstiness), expected[-1])
        arrival_s = n_periods * self.period_s + np.interp(rest, expected, at_s)
        # The end of a period and the start of the next may differ by a rounding.
        return np.maximum.accumulate(arrival_s)

    def expected(self, start_s: float, end_s: float) -> float:
        """Integrate the rate over the time."""
        at_s, expected = self._cumulative()
        n_periods, rest_s = np.divmod([start_s, end_s], self.period_s)
        by_then = n_periods * expected[-1] + np.interp(rest_s, at_s, expected)
        return float(by_then[1] - by_then[0])

    def _cumulative(self) -> tuple[Floats, Floats]:
        """Return instants of one period and the arrivals expected by then, both `(n_knots,)`."""
        curve = np.array([*self.rates_per_s, self.rates_per_s[0]])
        at_s = np.linspace(0, self.period_s, (len(curve) - 1) * KNOTS_A_SEGMENT + 1)
        rate = np.interp(at_s, np.linspace(0, self.period_s, len(curve)), curve)
        return at_s, np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(at_s))])
