"""Goals: the share of requests that must meet the SLO, and the least numbers of requests for percentiles."""

import re

from simserve.errors import SimserveError

GOAL_FRAC = 0.99
"""Share of requests that should meet every SLO: that of p99 goodput (DistServe, OSDI '24, asks 90%)."""

LEAST_FRAC, MOST_FRAC = 0.01, 0.9999
"""Range of goals; a higher one would need ten thousand requests for each allowed miss."""

FEW_FOR_P99 = 1000
"""Below so many requests a p99 rests on fewer than ten of them, and is a guess."""

FEW_FOR_P999 = 10_000
"""Below so many requests a p99.9 is a guess."""


def goal_from(text: str) -> float:
    """Return the share of `0.99`, `p99` or `99.9%`. Raises SimserveError."""
    result = re.fullmatch(r"(p?)(\d*\.?\d+)\s*(%?)", text.strip().lower())
    share = float(result[2]) / (100 if result[1] or result[3] else 1) if result else -1.0
    if not LEAST_FRAC <= share <= MOST_FRAC:
        rule = f"must be a share from {LEAST_FRAC} to {MOST_FRAC}, or a percentile as in p90, p99 or p99.9"
        raise SimserveError(f"--goal: {rule}, got {text}; try p99")
    return round(share, 12)
