"""The highest rate that a question holds at, by bisection on the same requests: what the studies share."""

from collections.abc import Callable, Mapping
from typing import Any

from simserve import Scenario, simulate

STEPS = 8
"""Of the bisection: the rate is known to 1 / 2^8 of its range."""

Summary = Mapping[str, Any]


def summary_at(rate_per_s: float, given: Mapping[str, Any]) -> Summary:
    """A scenario under Poisson arrivals; `given` holds the rest of it, n_requests and lengths under workload."""
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": rate_per_s}, **given["workload"]}
    warmup = {"warmup_requests": given["workload"]["n_requests"] // 10, "replays": 0}
    data = {"schema": "simserve/1", **given, "workload": workload, "measure": warmup}
    return simulate(Scenario.from_dict(data)).summary


def highest_rate_per_s(given: Mapping[str, Any], most_per_s: float, holds: Callable[[Summary], bool]) -> float:
    """Up to most_per_s; 0 where it never holds. A run whose queue only grows does not count."""
    low, high = 0.0, most_per_s
    for _ in range(STEPS):
        rate_per_s = (low + high) / 2
        found = summary_at(rate_per_s, given)
        if not found["trust"]["saturated"] and holds(found):
            low = rate_per_s
        else:
            high = rate_per_s
    return low
