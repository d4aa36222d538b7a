"""Arrivals: instants of requests, the first n of a process, or all up to an instant."""

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from simserve.errors import TraceError
from simserve.tables.columns import Floats
from simserve.workload.streams import Stream

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a process: its fields are its YAML, and unknown ones are errors."""

LEAST_RATE, MOST_RATE = 1e-12, 1e12
"""Sums of rates over a run, and of their inverses, stay finite."""

Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
"""Events per second."""

FEWEST = 64

MOST = 2**27
"""More instants than a run may have requests (size.py): where a process that never reaches duration_s ends."""


class Arrivals:
    """A process. Its first n instants are the first n of its first m > n."""

    def first(self, n: int, stream: Stream) -> Floats:
        """Return the first n instants in seconds, `(n,)`, never decreasing."""
        raise NotImplementedError

    def until(self, duration_s: float, stream: Stream) -> Floats:
        """Return all instants before duration_s, by doubling n, since the first n never change."""
        n = FEWEST
        while True:
            arrival_s = self.first(n, stream)
            if arrival_s[-1] >= duration_s:
                return arrival_s[: np.searchsorted(arrival_s, duration_s)]
            if not arrival_s[-1] >= 0:
                raise ValueError(f"request {n} must come at some time, got {arrival_s[-1]} s")
            if n == MOST:
                raise too_many(f"{n} by {arrival_s[-1]:g} s", duration_s)
            n *= 2

    def expected(self, start_s: float, end_s: float) -> float | None:
        """Return the mean number of arrivals in [start_s, end_s]; None where the process cannot tell."""
        return None


def too_many(got: str, duration_s: float) -> TraceError:
    """Return the error of a process that brings more requests than a run may have."""
    rule = f"must bring fewer than {MOST} requests in duration_s, {duration_s:g} s"
    return TraceError(f"workload.arrivals: {rule}, got {got}; shorten it or lower the rate")


def unit_rate(n: int, stream: Stream, burstiness: float = 1.0) -> Floats:
    """Draw instants of a renewal process of rate 1 with gamma gaps, `(n,)`; all other rates are mapped from it.
    burstiness is the shape of the gaps, 1 / CV^2: 1 is Poisson, less is burstier."""
    rng = stream("arrivals")
    gaps = rng.standard_exponential(n) if burstiness == 1 else rng.standard_gamma(burstiness, n) / burstiness
    return np.cumsum(gaps)
