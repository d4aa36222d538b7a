"""A scenario beside this file, and the highest rate that a question holds at: what the studies share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve import Results, Scenario, load_scenario, simulate

HERE = Path(__file__).parent
SPAN = 64
"""The search looks between most_per_s and so many times less."""
STEPS = 8
"""Bisections of that, in ratios: the rate is known to 64 ** (1 / 2 ** 8), which is 1.6%."""

Summary = Mapping[str, Any]
Served = Callable[[Sequence[str]], Results]
"""What a run finds with some keys changed."""


def run(scenario: str, changes: Sequence[str] = ()) -> Results:
    """What `simserve run docs/studies/<scenario>.yaml --set ...` finds."""
    return simulate(load_scenario(HERE / f"{scenario}.yaml", changes))


def highest_rate_per_s(
    served: Served, changes: Sequence[str], most_per_s: float, holds: Callable[[Results], bool]
) -> float:
    """Up to most_per_s, on the same requests at every rate; 0 where it holds at none that was tried.

    A run whose queue only grows does not count.
    """
    best, low, high = 0.0, most_per_s / SPAN, most_per_s
    for _ in range(STEPS):
        rate_per_s = (low * high) ** 0.5
        result = served([*changes, f"workload.arrivals.rate_per_s={rate_per_s}"])
        if not result.summary["trust"]["saturated"] and holds(result):
            best = low = rate_per_s
        else:
            high = rate_per_s
    return best


def summary_at(rate_per_s: float, given: Mapping[str, Any]) -> Summary:
    """What a scenario that a script holds finds under Poisson arrivals; n_requests and lengths stand under workload."""
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": rate_per_s}, **given["workload"]}
    warmup = {"warmup_requests": given["workload"]["n_requests"] // 10, "replays": 0}
    data = {"schema": "simserve/1", **given, "workload": workload, "measure": warmup}
    return simulate(Scenario.from_dict(data)).summary
