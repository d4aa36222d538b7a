"""Conversion between seconds and integer ticks.

Inside `engine/`, time is an integer number of picoseconds (suffix `_ps`): ties are real ties, sums are exact, and the
intercept and slope of a decode step are integers, so a run of steps has an exact closed form. Everywhere else time is
float seconds (suffix `_s`). An int64 of picoseconds holds 106 days.
"""

import numpy as np
from numpy.typing import NDArray

from simserve.errors import SimserveError

PS_PER_S = 10**12
"""Ticks per second."""

MAX_PS = 2**63 - 1
"""The latest instant that fits the recorded columns: 106 days."""

LONGEST_S = 90 * 86_400
"""The longest run that is promised, and its latest arrival: the rest of the 106 days holds the end of the last ones."""

LONGEST = "90 days"
"""LONGEST_S as messages say it."""

SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
"""Seconds of the units of durations, as Go and PromQL write them."""

HOURS_A_MONTH = 730.0
"""24 × 365 / 12."""

MIB = 2**20
GIB = 2**30


class EndsTooLate(OverflowError):
    """Something would end after the latest instant."""


def to_ps(seconds: float) -> int:
    """Convert seconds to the nearest whole number of picoseconds (ties to even). Raises SimserveError for no number."""
    try:
        return round(seconds * PS_PER_S)
    except (OverflowError, ValueError):
        raise _endless(seconds) from None


def to_s(ps: int) -> float:
    """Convert picoseconds to seconds."""
    return ps / PS_PER_S


def array_to_ps(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert seconds to the nearest whole picoseconds, `(n,)` to `(n,)`; bit-equal to `to_ps` of each. Raises
    SimserveError for what 64 bits do not hold."""
    if not np.all(np.abs(seconds) < MAX_PS / PS_PER_S):
        raise _endless(float(np.max(np.abs(seconds))))
    return np.rint(seconds * PS_PER_S).astype(np.int64)


def _endless(seconds: float) -> SimserveError:
    return SimserveError(
        f"a time must be at most {LONGEST}, got {seconds:g} s; check the constants of engine, calibration and policies"
    )


def array_to_s(ps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Convert picoseconds to seconds, `(n,)` to `(n,)`."""
    return ps / np.float64(PS_PER_S)
