"""Reliability: what the numbers rest on, and warnings about those that rest on too little."""

import math
from typing import Any

from simserve.metrics.batches import LEAST
from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999
from simserve.metrics.intervals import ENOUGH
from simserve.metrics.kv import NEAR_LIMIT_FRAC, unverified_peak_frac
from simserve.metrics.steadiness import Steadiness
from simserve.metrics.window import Window
from simserve.tables.facts import RunFacts


def reliability(facts: RunFacts, window: Window, queue: Steadiness, n_finished: int) -> dict[str, Any]:
    """Return the claims of `trust` in the summary."""
    peak_frac = unverified_peak_frac(facts)
    return {
        "calibrated": all(pool.calibrated for pool in facts.pools),
        "kv_verified": all(pool.kv_verified for pool in facts.pools),
        "kv_limit_is_a_guess": peak_frac > NEAR_LIMIT_FRAC,
        "n_requests": window.n_requests,
        "n_enough_for_p99": n_finished >= FEW_FOR_P99,
        "n_enough_for_p999": n_finished >= FEW_FOR_P999,
        "saturated": queue.state == "growing",
        "steady": queue.state,
        "n_worth": queue.n_effective,
        "backlog_by_thirds": list(queue.backlog),
        "free_frac": queue.free_frac,
        "interval_too_narrow": window.n_requests >= LEAST and queue.n_effective < ENOUGH,
    }


def cautions(result: dict[str, Any], facts: RunFacts, window: Window, n_finished: int) -> list[str]:
    """Return `trust` as warnings, but for costs that are not calibrated, which the cost model warns about."""
    text = []
    if not window.n_requests:
        return ["no request arrived in the measured window; shorten measure.warmup_s or offer more requests"]
    if window.settled is False:
        text.append(
            "no end of the warm-up was found, so nothing is left out; make the run longer, or set measure.warmup_s"
        )
    if result["saturated"]:
        text.append(
            "the backlog grew through the whole window: more arrives than is served, so latencies reflect the length "
            "of the run, not the cluster"
        )
    if result["steady"] == "critical":
        text.append(
            "the queue hardly ever empties, as at capacity: it grows with the square root of time, so latencies "
            "reflect the length of the run; offer less"
        )
    if result["kv_limit_is_a_guess"]:
        text.append(
            f"KV cache use reached {unverified_peak_frac(facts):.0%} of an estimated number of blocks; set "
            "num_gpu_blocks to the number in the server's log"
        )
    if not result["n_enough_for_p99"]:
        text.append(f"p99 of {n_finished:,} requests is a guess; it needs at least {FEW_FOR_P99:,}")
    if n_finished < window.n_requests:
        text.append(
            f"latencies are those of the {n_finished:,} requests that finished; {window.n_requests - n_finished:,} in "
            "the window did not and count as misses"
        )
    if result["interval_too_narrow"] and result["steady"] not in ("growing", "critical"):  # longer would not help
        text.append(too_short(window.n_requests, result["n_worth"], result["steady"]))
    if window.ends_with == "last finish":
        text.append(
            "all requests in the window were sent at one instant, so rates divide by the time to the last answer"
        )
    return text


def too_short(n: int, n_effective: float, state: str) -> str:
    """Return why intervals are too narrow, and how long a run would do."""
    steady = "; whether the queue is steady cannot be told" if state == "undetermined" else ""
    times = math.ceil(ENOUGH / max(n_effective, 1))
    remedy = "double the run" if times <= 2 else f"make the run {times} times as long"
    return (
        f"latencies are autocorrelated: {n:,} requests carry the information of about {max(n_effective, 1):.0f} "
        f"independent ones, so these intervals are too narrow{steady}. {remedy.capitalize()} or add --replications 10"
    )
