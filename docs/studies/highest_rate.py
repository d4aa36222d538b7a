"""Run a scenario of this folder, and search the highest rate at which a condition holds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve import Results, Scenario, load_scenario, simulate

HERE = Path(__file__).parent
SPAN = 64
"""Ratio of the highest to the lowest rate of the search."""
STEPS = 8
"""Bisections in ratios: the rate is known to 64 ** (1 / 2 ** 8), which is 1.6%."""

Summary = Mapping[str, Any]
Served = Callable[[Sequence[str]], Results]
"""A run with some keys changed."""


def run(scenario: str, changes: Sequence[str] = ()) -> Results:
    """Return the results of `simserve run docs/studies/<scenario>.yaml --set ...`."""
    return simulate(load_scenario(HERE / f"{scenario}.yaml", changes))


def highest_rate_per_s(
    served: Served, changes: Sequence[str], most_per_s: float, holds: Callable[[Results], bool]
) -> float:
    """Return the highest rate up to most_per_s, on the same requests at every rate; 0 if no probed rate holds.

    A saturated run does not count.
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
    """Return the summary of a scenario under Poisson arrivals; `given` has n_requests and lengths under workload."""
    workload = {"arrivals": {"kind": "poisson", "rate_per_s": rate_per_s}, **given["workload"]}
    warmup = {"warmup_requests": given["workload"]["n_requests"] // 10, "replays": 0}
    data = {"schema": "simserve/1", **given, "workload": workload, "measure": warmup}
    return simulate(Scenario.from_dict(data)).summary
