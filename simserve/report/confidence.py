"""Sureness: what a summary says of chance: where a figure lies, over how many runs, and what the queue did."""

from collections.abc import Mapping
from typing import Any

from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999
from simserve.report.formats import number

FEWEST = {"p99": FEW_FOR_P99, "p99.9": FEW_FOR_P999}
"""Finished requests below which a percentile is a guess."""

FAR_FRAC = 0.5
"""Of a limit: were a hundredth of latencies beyond it, and their tail no heavier than exponential, a tenth would be
beyond half of it."""

QUEUES = {
    "steady": "steady",
    "critical": "at capacity",
    "growing": "growing",
    "undetermined": "too short a run to tell",
}
"""The states of a queue in words."""


def over_runs(summary: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """`mean`, `low` and `high` of a number over replications; None where there are none, or it is not among them."""
    result: Mapping[str, Any] | None = (summary.get("replications") or {}).get("measures", {}).get(key)
    return result


def lies_between(summary: Mapping[str, Any], latency: str, level: str) -> tuple[float, float | None] | None:
    """Where a percentile lies with 95%; no high end where the run, or each run, is too short to bound it above."""
    result = over_runs(summary, f"{latency}.{level}")
    if result is not None:
        low, high = number(result["low"]), number(result["high"])
        return None if low is None else (low, high)
    ends = ((summary.get(latency) or {}).get("intervals") or {}).get(level)
    return None if ends is None else (float(ends[0]), number(ends[1]))


def queue_state(summary: Mapping[str, Any]) -> str | None:
    """One of QUEUES; of several runs what more than half of them are, or worse. None of a summary that has none."""
    replications = summary.get("replications")
    if not replications:
        return (summary.get("trust") or {}).get("steady")
    count = 0
    for state in ("growing", "critical", "undetermined", "steady"):
        count += replications["states"].get(state, 0)
        if 2 * count > replications["n"]:
            return state
    return None


def is_far_below(summary: Mapping[str, Any], slo: Mapping[str, float]) -> bool:
    """The highest latency of each goal is at most FAR_FRAC of it."""
    highest = {key: number((summary.get(key) or {}).get("max")) for key in slo}
    return bool(slo) and all(value is not None and value <= FAR_FRAC * slo[key] for key, value in highest.items())
