"""Gamma arrivals: a renewal process burstier, or smoother, than Poisson."""

from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import STRICT, Rate, unit_rate
from simserve.workload.arrivals.poisson import Poisson
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Gamma(Poisson):
    """Gamma gaps, as `vllm bench serve` draws them."""

    burstiness: Rate = 1.0
    """Shape of the gaps, 1 / CV^2: lower is burstier, 1 is Poisson (`vllm bench serve --burstiness`)."""

    def first(self, n: int, stream: Stream) -> Floats:
        """Scale the unit-rate instants to the rate."""
        return unit_rate(n, stream, self.burstiness) / self.rate_per_s
