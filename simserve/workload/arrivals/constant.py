"""One request every 1 / rate seconds, the first at time zero."""

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from simserve.workload.arrivals.base import STRICT, Arrivals, Rate
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Constant(Arrivals):
    """Equal gaps: no chance at all."""

    rate_per_s: Rate

    def first(self, n: int, stream: Stream) -> NDArray[np.float64]:
        """Multiples of the gap."""
        return np.arange(n) / self.rate_per_s
