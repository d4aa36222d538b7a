"""Short runs: whether runs are so short that their start-up may look like saturation."""

from simserve.study.capacity.rate import Capacity, Unbounded

LEAST_WINDOW = 10
"""Shortest window, in p99 E2E latencies: a shorter one is largely start-up."""


def short_run_warnings(result: Capacity | Unbounded) -> list[str]:
    """Return a warning where saturation limits the answer, and the runs are too short to show it."""
    if not isinstance(result, Capacity) or not result.above.is_saturated:
        return []
    window_s = min(float(run["window"]["duration_s"]) for run in result.below.runs)
    e2e_s = result.below.latency_s("e2e_s", "p99")
    if not window_s < LEAST_WINDOW * e2e_s:
        return []
    cause = f"runs of {window_s:.3g} s are short for requests that take up to {e2e_s:.3g} s"
    return [f"{cause}: their start-up may look like a queue that only grows; lengthen the runs"]
