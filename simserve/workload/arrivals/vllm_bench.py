"""Arrivals as `vllm bench serve` makes them: gamma gaps, rescaled so that the last request leaves at N / rate."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.workload.arrivals.base import STRICT, Arrivals, Rate, unit_rate
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class VllmBench(Arrivals):
    """What `--request-rate` and `--burstiness` do without a ramp-up."""

    rate_per_s: Annotated[float, Field(gt=0, allow_inf_nan=True)]
    """.inf sends all at once."""
    burstiness: Rate = 1.0
    """Shape of the gaps, 1 / CV^2."""

    def first(self, n: int, stream: Stream) -> NDArray[np.float64]:
        """All n instants: they depend on n, for they are scaled to end at n / rate."""
        if not n or np.isinf(self.rate_per_s):
            return np.zeros(n)
        instants = unit_rate(n, stream, self.burstiness)
        return instants * float(n / self.rate_per_s / instants[-1])

    def until(self, duration_s: float, stream: Stream) -> NDArray[np.float64]:
        """As many as the rate brings in that time."""
        if np.isinf(self.rate_per_s):
            raise ValueError("an infinite rate needs n_requests, not duration_s")
        return self.first(max(1, round(self.rate_per_s * duration_s)), stream)
