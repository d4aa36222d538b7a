"""Knee: the load beyond which latency rises steeply.

It is the highest load up to which p99 stays within twice its light-load value. For an M/M/1 queue that is half its
capacity, where throughput over latency, the power of a queue, is highest (Kleinrock, Power and deterministic rules of
thumb for probabilistic problems in computer communications, ICC 1979).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

RISE = 2.0
LEVEL = "p99"


@dataclass(frozen=True)
class Knee:
    """The knee of one latency."""

    load: float | None
    """None: latency stays below the knee throughout the curve."""
    light_s: float
    """Latency at the lightest load of the curve."""


def knee(curve: Sequence[tuple[float, float]]) -> Knee | None:
    """Return the knee of (load, latency) pairs in order of load, log-linear between them; None without a latency."""
    known = [(load, value) for load, value in curve if value > 0]
    if not known:
        return None
    light_s = known[0][1]
    limit = RISE * light_s
    for (below, low), (above, high) in itertools.pairwise(known):
        if high > limit:
            return Knee(below + (above - below) * math.log(limit / low) / math.log(high / low), light_s)
    return Knee(None, light_s)
