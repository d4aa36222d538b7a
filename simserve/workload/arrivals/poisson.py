"""Poisson arrivals: independent requests at a constant rate."""

from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import STRICT, Arrivals, Rate, unit_rate
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Poisson(Arrivals):
    """Exponential gaps."""

    rate_per_s: Rate
    """[/s] Mean arrival rate (`vllm bench serve --request-rate`)."""

    def first(self, n: int, stream: Stream) -> Floats:
        """Scale the unit-rate instants to the rate."""
        return unit_rate(n, stream) / self.rate_per_s

    def expected(self, start_s: float, end_s: float) -> float:
        """Return rate times time."""
        return self.rate_per_s * (end_s - start_s)
