"""Arrivals as `vllm bench serve` makes them: gamma gaps, rescaled so that the last request leaves at N / rate."""

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.errors import TraceError
from simserve.tables.columns import Floats
from simserve.workload.arrivals.base import LEAST_RATE, MOST, STRICT, Arrivals, Rate, too_many, unit_rate
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class VllmBench(Arrivals):
    """Arrivals of `--request-rate` and `--burstiness` without a ramp-up."""

    rate_per_s: Annotated[float, Field(ge=LEAST_RATE, allow_inf_nan=True)]
    """[/s] Arrival rate; .inf sends all requests at once (`vllm bench serve --request-rate`)."""
    burstiness: Rate = 1.0
    """Shape of the gaps, 1 / CV^2: lower is burstier, 1 is Poisson (`vllm bench serve --burstiness`)."""

    def first(self, n: int, stream: Stream) -> Floats:
        """Return all n instants; they depend on n, as they are scaled to end at n / rate."""
        if not n or np.isinf(self.rate_per_s):
            return np.zeros(n)
        instants = unit_rate(n, stream, self.burstiness)
        if not instants[-1]:  # gaps of an extreme burstiness can all round to zero; vLLM leaves them so
            return instants
        scaled: Floats = instants / instants[-1] * float(n / self.rate_per_s)
        return scaled

    def until(self, duration_s: float, stream: Stream) -> Floats:
        """Return as many instants as the rate brings in that time."""
        if np.isinf(self.rate_per_s):
            rule = "a rate_per_s of .inf sends all requests at once"
            raise TraceError(f"workload.arrivals: {rule}, got duration_s; give n_requests instead")
        n = self.rate_per_s * duration_s
        if n >= MOST:
            raise too_many(f"{n:g}", duration_s)
        return self.first(int(n), stream)

    def expected(self, start_s: float, end_s: float) -> float | None:
        """Return rate times time; None where all are sent at once."""
        return None if np.isinf(self.rate_per_s) else self.rate_per_s * (end_s - start_s)
