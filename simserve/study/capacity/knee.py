"""Knee: the load from which on latency rises steeply.

The highest load up to which the p99 stays within twice what it is when the load is light. For an M/M/1 queue that is
half the load that it can take, where throughput over latency, the power of a queue, is highest (Kleinrock, Power and
deterministic rules of thumb for probabilistic problems in computer communications, ICC 1979).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

RISE = 2.0
LEVEL = "p99"


@dataclass(frozen=True)
class Knee:
    """Of one latency."""

    load: float | None
    """None: it does not rise so far within the curve."""
    light_s: float
    """What it is at the lightest load of the curve."""


def knee(curve: Sequence[tuple[float, float]]) -> Knee | None:
    """From loads and latencies by load; between two loads the latency's logarithm runs straight. None without any."""
    known = [(load, value) for load, value in curve if value > 0]
    if not known:
        return None
    light_s = known[0][1]
    limit = RISE * light_s
    for (below, low), (above, high) in itertools.pairwise(known):
        if high > limit:
            return Knee(below + (above - below) * math.log(limit / low) / math.log(high / low), light_s)
    return Knee(None, light_s)
