"""Trust: which of the numbers stand on firm ground, and in plain words which do not."""

from typing import Any

from simserve.metrics.kv import NEAR_LIMIT_FRAC, unverified_peak_frac
from simserve.metrics.stats import FEW_FOR_P99
from simserve.metrics.window import Window
from simserve.tables.facts import RunFacts


def trust(facts: RunFacts, window: Window, saturated: bool, correlated: bool, n_finished: int) -> dict[str, Any]:
    """What a reader should know before leaning on the numbers."""
    peak_frac = unverified_peak_frac(facts)
    return {
        "calibrated": all(pool.calibrated for pool in facts.pools),
        "kv_verified": all(pool.kv_verified for pool in facts.pools),
        "kv_limit_is_a_guess": peak_frac > NEAR_LIMIT_FRAC,
        "n_requests": window.n_requests,
        "n_enough_for_p99": n_finished >= FEW_FOR_P99,
        "saturated": saturated,
        "interval_too_narrow": correlated,
    }


def cautions(found: dict[str, Any], facts: RunFacts, window: Window, n_finished: int) -> list[str]:
    """`trust` as warnings; costs that are not calibrated are warned of by who made them."""
    said = []
    if not window.n_requests:
        return ["no request arrived in the measured window; shorten measure.warmup_s or offer more requests"]
    if window.settled is False:
        said.append(
            "no end of the warm-up was found, so nothing is left out; make the run longer, or say measure.warmup_s"
        )
    if found["saturated"]:
        said.append(
            "the backlog grew through the whole window: more arrives than is served, and latencies say how long the "
            "run was rather than how good the cluster is"
        )
    if found["kv_limit_is_a_guess"]:
        said.append(
            f"KV cache use reached {unverified_peak_frac(facts):.0%} of a number of blocks that is an estimate; give "
            "num_gpu_blocks from the server's log"
        )
    if not found["n_enough_for_p99"]:
        said.append(f"p99 of {n_finished} requests is a guess; {FEW_FOR_P99} are the least")
    if n_finished < window.n_requests:
        said.append(
            f"latencies are those of the {n_finished:,} requests that finished; {window.n_requests - n_finished:,} of "
            "the window did not, and count as misses"
        )
    if found["interval_too_narrow"]:
        said.append(
            "outcomes hang together over long stretches, so the attainment's interval is too narrow; run longer"
        )
    if window.ends_with == "last finish":
        said.append(
            "all requests of the window were sent at one instant, so rates divide by the time to the last answer"
        )
    return said
