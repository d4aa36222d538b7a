"""StepLines: times of steps of n decoding requests alone, in columns by n."""

from __future__ import annotations

from mypy_extensions import i64

from simserve.integers import NONE, filled, widened

FIRST = 64
"""Numbers of requests at first."""


class StepLines:
    """What such a step takes without keys, per key, and on the host; NONE, or no row, before it is noted.

    fast: one record for all replicas, since a thousand records do not fit the caches of a processor.
    """

    def __init__(self) -> None:
        self.base_ps, self.slope_ps, self.host_ps = filled(FIRST, NONE), filled(FIRST, NONE), filled(FIRST, NONE)

    def note(self, n: i64, base_ps: i64, slope_ps: i64, host_ps: i64) -> None:
        """Note the times of a step of n requests."""
        if n >= len(self.base_ps):
            self.base_ps, self.slope_ps = widened(self.base_ps, n), widened(self.slope_ps, n)
            self.host_ps = widened(self.host_ps, n)
        self.base_ps[n], self.slope_ps[n], self.host_ps[n] = base_ps, slope_ps, host_ps
