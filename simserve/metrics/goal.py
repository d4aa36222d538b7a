"""Goals: the share of requests that must meet the SLO, and the least numbers of requests for percentiles."""

import math
import re

from simserve.errors import SimserveError

GOAL_FRAC = 0.99
"""Share of requests that should meet every SLO: that of p99 goodput (DistServe, OSDI '24, asks 90%)."""

LEAST_FRAC, MOST_FRAC = 0.01, 0.9999
"""Range of goals; a higher one would need ten thousand requests for each allowed miss."""

LEAST_BEYOND = 10
"""Fewest requests beyond a percentile; with fewer it is a guess."""

CAP = 16.0
"""Largest ratio: that of a request without a full answer, and of any that is later than this."""

LOOKS = (8, 16, 32)
"""Runs with nominal costs after which a decision is made."""

CONFIDENCE = 0.95
"""Default probability, cost error included, that "meets" needs."""

LOAD_TOLERANCE_FRAC = 0.05
"""Drawn load may differ from nominal load by this much before a run alone cannot decide."""


def fewest_for(level: float) -> int:
    """Return the fewest requests for a percentile, level 0..100: 1,000 for p99."""
    return round(LEAST_BEYOND / (1 - level / 100))


FEW_FOR_P99, FEW_FOR_P999 = fewest_for(99.0), fewest_for(99.9)


def goal_from(text: str) -> float:
    """Return the share of `0.99`, `p99` or `99.9%`. Raises SimserveError."""
    result = re.fullmatch(r"(p?)(\d*\.?\d+)\s*(%?)", text.strip().lower())
    share = float(result[2] + ("e-2" if result[1] or result[3] else "")) if result else -1.0
    if not LEAST_FRAC <= share <= MOST_FRAC:
        rule = f"must be a share from {LEAST_FRAC} to {MOST_FRAC}, or a percentile as in p90, p99 or p99.9"
        raise SimserveError(f"--goal: {rule}, got {text}; try p99")
    return share


def probability(chance: float, most: float = 0.99) -> str:
    """Return a whole percentage, no more sure than `most`: never 0% or 100%."""
    if round(abs(chance - 0.5), 9) >= round(most - 0.495, 9):
        return f">{most:.0%}" if chance > 0.5 else f"<{1 - most:.0%}"
    return f"{chance:.0%}"


def wilson(frac: float, n: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's interval (1927) for a share of n independent outcomes."""
    scale = 1 + quantile**2 / n
    center = (frac + quantile**2 / (2 * n)) / scale
    half = quantile / scale * math.sqrt(frac * (1 - frac) / n + quantile**2 / (4 * n * n))
    return max(0.0, min(frac, center - half)), min(1.0, max(frac, center + half))
