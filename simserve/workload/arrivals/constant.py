"""One request every 1 / rate seconds, the first at time zero."""

import math

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import STRICT, Arrivals, Rate
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Constant(Arrivals):
    """Equal gaps, with nothing drawn."""

    rate_per_s: Rate
    """[/s] Arrival rate; gaps are its inverse."""

    def first(self, n: int, stream: Stream) -> Floats:
        """Return multiples of the gap."""
        return np.arange(n) / self.rate_per_s

    def expected(self, start_s: float, end_s: float) -> float:
        """Count the multiples of the gap, both ends included; a thousandth of a gap allows for rounding."""
        return math.floor(end_s * self.rate_per_s + 1e-3) - math.ceil(start_s * self.rate_per_s - 1e-3) + 1
