"""Decision: whether a share of requests meets its goal, by one rule for every command, page and workbook."""

import math
from typing import Literal

Decision = Literal["met", "edge", "missed"]

LOAD_TOLERANCE_FRAC = 0.05
"""Drawn load may differ from nominal load by this much before a run alone cannot decide."""

SURE_FRAC = 0.95
"""Probability from which the load counts as beyond capacity; below one minus that it counts as within."""


def decide(
    interval: tuple[float, float] | None,
    goal_frac: float,
    *,
    is_far_below: bool = False,
    load_off_frac: float = 0.0,
    queue: str | None = None,
) -> Decision:
    """Return the decision about an attainment, given its 95% interval.

    interval: low and high end of the attained share, 0..1; None where there are too few requests for one.
    is_far_below: no request missed and none came within half of a limit, so that a short run is answer enough.
    load_off_frac: drawn over nominal load, less 1; 0 where the interval is already given at the nominal load.
    queue: steady, critical, growing or undetermined. A growing queue misses any SLO in time; a critical one may.
    """
    is_missed = queue == "growing" or (interval is not None and interval[1] < goal_frac)
    if is_missed and load_off_frac <= LOAD_TOLERANCE_FRAC:
        return "missed"
    if is_missed or abs(load_off_frac) > LOAD_TOLERANCE_FRAC or queue == "critical":
        return "edge"
    return "met" if is_far_below or (interval is not None and interval[0] >= goal_frac) else "edge"


def within_capacity(decision: Decision, beyond_frac: float | None) -> Decision:
    """Return the decision of a load that is beyond capacity with that probability; None: unknown.

    Beyond capacity the queue grows and misses any SLO in time, whatever a run of minutes attains.
    """
    if beyond_frac is None or beyond_frac <= 1 - SURE_FRAC or decision == "missed":
        return decision
    return "missed" if beyond_frac >= SURE_FRAC else "edge"


def beyond_warning(beyond_frac: float | None, load: str = "the load") -> list[str]:
    """Return a warning where a load may be beyond capacity."""
    if beyond_frac is None or beyond_frac <= 1 - SURE_FRAC:
        return []
    chance = probability(beyond_frac)
    if beyond_frac >= SURE_FRAC:
        return [f"{load} is beyond capacity (probability {chance}), so the queue grows with time; offer less"]
    return [
        f"{load} is beyond capacity with a probability of {chance}: costs within their error decide whether the queue "
        "grows; offer less, or check the capacity on your server"
    ]


def probability(chance: float) -> str:
    """Return a whole percentage; never 0% or 100%."""
    return "<1%" if chance <= 0.005 else ">99%" if chance >= 0.995 else f"{chance:.0%}"


def wilson(frac: float, n: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's interval (1927) for a share of n independent outcomes."""
    scale = 1 + quantile**2 / n
    center = (frac + quantile**2 / (2 * n)) / scale
    half = quantile / scale * math.sqrt(frac * (1 - frac) / n + quantile**2 / (4 * n * n))
    return max(0.0, min(frac, center - half)), min(1.0, max(frac, center + half))
