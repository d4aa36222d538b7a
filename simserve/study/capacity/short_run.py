"""Ramp: whether runs are so short that the rise at their start may pass for a queue that only grows."""

from simserve.study.capacity.rate import Capacity, Unbounded

LEAST_LIVES = 10
"""A window of fewer times the p99 of E2E is for a good part its start."""


def short_run_warnings(result: Capacity | Unbounded) -> list[str]:
    """What is to be said where growth ends the answer, and it may be none."""
    if not isinstance(result, Capacity) or not result.above.is_saturated:
        return []
    window_s = min(float(run["window"]["duration_s"]) for run in result.below.runs)
    life_s = result.below.latency_s("e2e_s", "p99")
    if not window_s < LEAST_LIVES * life_s:
        return []
    text = f"runs of {window_s:.3g} s are short for requests that take up to {life_s:.3g} s"
    return [f"{text}: the rise at their start may pass for a queue that only grows; make them longer"]
