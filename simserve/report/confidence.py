"""Confidence: intervals of a summary's figures, and the state of its queue."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from simserve.metrics.answer import queue_over
from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999
from simserve.report.formats import number

FEWEST = {"p99": FEW_FOR_P99, "p99.9": FEW_FOR_P999}
"""Finished requests below which a percentile is a guess."""

QUEUES = {
    "steady": "steady",
    "critical": "at capacity",
    "growing": "growing",
    "undetermined": "run too short to tell",
}
"""The states of a queue in words."""


def over_runs(summary: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return `mean`, `low` and `high` of a number over replications; None without, or where it is not recorded."""
    result: Mapping[str, Any] | None = (summary.get("replications") or {}).get("measures", {}).get(key)
    return result


def lies_between(summary: Mapping[str, Any], latency: str, level: str) -> tuple[float, float | None] | None:
    """Return the 95% interval of a percentile; no high end where the run, or each run, is too short for one."""
    result = over_runs(summary, f"{latency}.{level}")
    if result is not None:
        low, high = number(result["low"]), number(result["high"])
        return None if low is None else (low, high)
    ends = ((summary.get(latency) or {}).get("intervals") or {}).get(level)
    return None if ends is None else (float(ends[0]), number(ends[1]))


def queue_state(summary: Mapping[str, Any]) -> str | None:
    """Return one of QUEUES; of several runs what more than half of them are, or worse."""
    replications, trust = summary.get("replications"), summary.get("trust") or {}
    if replications:
        return queue_over(Counter(replications["states"]).elements())
    return "growing" if trust.get("saturated") else trust.get("steady")
