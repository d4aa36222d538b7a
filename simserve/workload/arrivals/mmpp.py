"""MMPP: a Poisson process with a rate that jumps between levels, like traffic with bursts."""

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import STRICT, Arrivals, Rate, unit_rate
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Mmpp(Arrivals):
    """Markov-modulated Poisson: exponential dwells in each level in turn, from its stationary mix."""

    rates_per_s: list[Rate]
    """[/s] Arrival rate at each level, at least two."""
    mean_dwell_s: list[Rate]
    """[s] Mean time at each level, one for each rate."""

    def __post_init__(self) -> None:
        if len(self.rates_per_s) != len(self.mean_dwell_s) or len(self.rates_per_s) < 2:
            n_rates, n_dwells = len(self.rates_per_s), len(self.mean_dwell_s)
            raise ValueError(f"needs a dwell for each of at least two rates, got {n_rates} rates and {n_dwells} dwells")

    def first(self, n: int, stream: Stream) -> Floats:
        """Map unit-rate instants through the cumulative rate, a line a dwell."""
        unit = unit_rate(n, stream)
        n_dwells = 16
        while True:
            at_s, expected = self._cumulative(n_dwells, stream)
            if not n or expected[-1] > unit[-1]:
                return np.maximum.accumulate(np.interp(unit, expected, at_s))  # two lines may meet a rounding apart
            n_dwells *= 2

    def expected(self, start_s: float, end_s: float) -> float:
        """Return the stationary mean rate, levels weighted by their dwells, times the time."""
        rate_per_s = float(np.average(self.rates_per_s, weights=self.mean_dwell_s))
        return rate_per_s * (end_s - start_s)

    def _cumulative(self, n_dwells: int, stream: Stream) -> tuple[Floats, Floats]:
        """Return the instants at which dwells end, and the arrivals expected by then."""
        dwells, n_levels = np.array(self.mean_dwell_s), len(self.mean_dwell_s)
        rng = stream("arrivals/dwells")
        start = int(np.searchsorted(np.cumsum(dwells / dwells.sum()), rng.random(), side="right"))
        level = (min(start, n_levels - 1) + np.arange(n_dwells)) % n_levels
        lasts_s = rng.standard_exponential(n_dwells) * dwells[level]
        expected = lasts_s * np.array(self.rates_per_s)[level]
        return np.concatenate([[0.0], np.cumsum(lasts_s)]), np.concatenate([[0.0], np.cumsum(expected)])
