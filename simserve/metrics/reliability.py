"""Reliability: what the numbers rest on: whether the queue settles, wanders as at capacity, or grows; and warnings
about numbers that rest on too little."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from simserve.metrics.answers.struct import Figures
from simserve.metrics.goal import FEW_FOR_P99, FEW_FOR_P999
from simserve.metrics.integrals import Presences, presence
from simserve.metrics.intervals import ENOUGH, LEAST, inefficiency
from simserve.metrics.kv import NEAR_LIMIT_FRAC, unverified_peak_frac
from simserve.metrics.summary_schema import Count, Measured, Queue
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Floats, Ints
from simserve.tables.facts import RunFacts
from simserve.tables.pieces import pieces

SETTLES = 20
"""Effective sample size of a backlog that counts as steady; one that wanders at capacity has 2 to 14, however long
the run (docs/statistics.md)."""

LEAST_GROWTH_REQUESTS = 10
LEAST_GROWTH_FRAC = 0.02
"""Least growth as a share of the window's arrivals; less is noise or hardly matters."""

LEAST_RATIO = 1.5
"""Least growth ratio; a standing backlog that grows by less than half is a busy cluster, not an overloaded one."""

FREE_FRAC = 0.9
"""Share of time with a free head of the queue above which the queue is too short to grow."""

AT_CAPACITY = 7.0
MOST_FREE_FRAC = 0.07
"""Upper bound of that share at capacity, where a queue is empty for at most about AT_CAPACITY / sqrt(n requests) of
the time; below capacity the share is fixed."""


@dataclass(frozen=True)
class Steadiness:
    """The state of the queue, and the evidence for it."""

    state: Queue
    """steady; critical: wanders, growing with the square root of time; growing; undetermined: the run is too short."""
    n_effective: float
    """Effective sample size: independent requests with the information of the window's."""
    backlog: tuple[float, float, float]
    """Mean number of requests in the system in each third of the window."""
    free_frac: float
    """Share of the window in which the head of the queue was not blocked, in the pool with the lowest share."""


def steadiness(
    requests: Columns, steps: Columns, window: Window, replica_pool: Sequence[int], lived_frac: Floats | None = None
) -> Steadiness:
    """Assess the queue. requests: with n_in_system, in order of arrival. replica_pool: the pool of each replica.
    lived_frac: share of the window in which each was there, `(n_replicas,)`; None: all of it."""
    n_in_system = requests["n_in_system"][window.has]
    n_effective = len(n_in_system) / inefficiency(n_in_system)
    free_frac = _free_frac(steps, window, np.array(replica_pool, np.int64), lived_frac)
    if window.ends_with != "last arrival" or not window.duration_s > 0:
        return Steadiness("undetermined", n_effective, (math.nan,) * 3, free_frac)
    backlog = backlog_by_thirds(requests, window)
    state: Queue
    if _grows(backlog, window.n_requests):
        state = "growing"
    elif len(n_in_system) < LEAST:
        state = "undetermined"
    elif n_effective >= SETTLES or free_frac >= FREE_FRAC:
        state = "steady"
    elif free_frac <= min(AT_CAPACITY / math.sqrt(len(n_in_system)), MOST_FREE_FRAC):
        state = "critical"
    else:
        state = "undetermined"
    return Steadiness(state, n_effective, backlog, free_frac)


def _grows(backlog: tuple[float, float, float], n_arrived: int) -> bool:
    """Tell whether the backlog rose by a relevant amount without leveling off.

    Bursts that drain, a start-up that levels off, and a closed loop do not pass; a window that ends inside a long
    burst may, as the backlog did grow. A test against a random walk would detect M/M/1 better, but mistakes the
    start-up of long requests, a straight rise, for growth.
    """
    early, middle, late = backlog
    matters = late - early >= max(LEAST_GROWTH_REQUESTS, LEAST_GROWTH_FRAC * n_arrived)
    goes_on = late - middle >= (middle - early) / 2 > 0
    return bool(matters and goes_on and late >= LEAST_RATIO * early)


def backlog_by_thirds(requests: Columns, window: Window) -> tuple[float, float, float]:
    """Return the mean number of requests in the system in each third of the window."""

    def parts() -> Presences:
        for part in pieces(requests):
            stays = ~part["status"].is_("rejected")
            leave_s = np.fmin(part["finish_s"], part["gave_up_s"])[stays]
            # A request that was there before the window opens, or stays when it closes, counts within it.
            within = (np.clip(at_s, window.start_s, window.end_s) for at_s in (part["arrival_s"][stays], leave_s))
            yield *within, np.zeros(len(leave_s), np.int64)

    edges_s = np.linspace(window.start_s, window.end_s, 4)
    early, middle, late = presence(parts(), 1, edges_s)[0].tolist()
    return early, middle, late


def _free_frac(steps: Columns, window: Window, pool: Ints, lived_frac: Floats | None) -> float:
    """Return the lowest share of unblocked time over pools; NaN for an empty window or a pool without steps."""
    if not window.end_s > window.start_s or not len(pool):
        return math.nan
    held_up_s = np.zeros(len(pool))
    for part in pieces(steps):
        blocked = part["blocked_by"].without_blank().codes >= 0
        until_s = np.minimum(part["end_s"][blocked], window.end_s)
        lasts_s = np.maximum(until_s - np.maximum(part["start_s"][blocked], window.start_s), 0.0)
        np.add.at(held_up_s, part["replica"][blocked], lasts_s)
    n_there = np.bincount(pool, lived_frac)
    held_up_frac = np.bincount(pool, held_up_s)[n_there > 0] / n_there[n_there > 0] / (window.end_s - window.start_s)
    return max(0.0, 1.0 - float(held_up_frac.max(initial=0.0)))  # rounding may put it below


class TrustJson(Figures):
    """Flags that tell which numbers to trust."""

    calibrated: bool = False
    """Whether the kernels of every pool were timed."""
    kv_verified: bool = False
    """Whether the number of KV blocks of every pool was given, not estimated."""
    kv_limit_is_a_guess: bool = False
    """Whether a replica held more than 90% of an estimated number of blocks."""
    n_requests: Count = 0
    """Requests of the window."""
    n_enough_for_p99: bool = False
    """Whether at least 1,000 of them finished."""
    n_enough_for_p999: bool = False
    """Whether at least 10,000 of them finished."""
    saturated: bool
    """Whether `steady` is growing."""
    steady: Queue | None = None
    """What the queue did: `growing` as long as requests arrived, `critical` (at capacity), `steady`, or `undetermined`:
    the run is too short to tell (docs/statistics.md#is-the-queue-steady)."""
    n_effective: Measured = Field(None, alias="n_worth")
    """Effective sample size: independent requests that carry the information of the window's, by the autocorrelation of
    the backlog (requests that arrived and are not yet answered, refused or given up)."""
    backlog_by_thirds: Sequence[Measured] = ()
    """Mean backlog in each third of the window; `growing` is a rise without leveling off, by at least 2% of the
    arrivals and ten requests, to at least 1.5 times the first."""
    free_frac: Measured = None
    """[share] Time of the window in which nothing blocked the head of the queue, mean over the replicas of the pool
    with the lowest."""
    interval_too_narrow: bool = False
    """Whether `n_worth` is below 50."""


def reliability(facts: RunFacts, window: Window, queue: Steadiness, n_finished: int) -> TrustJson:
    """Return the claims of `trust` in the summary."""
    peak_frac = unverified_peak_frac(facts)
    return TrustJson(
        calibrated=all(pool.calibrated for pool in facts.pools),
        kv_verified=all(pool.kv_verified for pool in facts.pools),
        kv_limit_is_a_guess=peak_frac > NEAR_LIMIT_FRAC,
        n_requests=window.n_requests,
        n_enough_for_p99=n_finished >= FEW_FOR_P99,
        n_enough_for_p999=n_finished >= FEW_FOR_P999,
        saturated=queue.state == "growing",
        steady=queue.state,
        n_effective=queue.n_effective,
        backlog_by_thirds=queue.backlog,
        free_frac=queue.free_frac,
        interval_too_narrow=window.n_requests >= LEAST and queue.n_effective < ENOUGH,
    )


def cautions(trust: TrustJson, facts: RunFacts, window: Window, n_finished: int) -> list[str]:
    """Return `trust` as warnings, but for costs that are not calibrated, which the cost model warns about."""
    text = []
    if not window.n_requests:
        return ["no request arrived in the measured window; shorten measure.warmup_s or offer more requests"]
    if window.settled is False:
        text.append(
            "no end of the warm-up was found, so nothing is left out; make the run longer, or set measure.warmup_s"
        )
    if trust.saturated:
        text.append(
            "the backlog grew through the whole window: more arrives than is served, so latencies reflect the length "
            "of the run, not the cluster"
        )
    if trust.steady == "critical":
        text.append(
            "the queue hardly ever empties, as at capacity: it grows with the square root of time, so latencies "
            "reflect the length of the run; offer less"
        )
    if trust.kv_limit_is_a_guess:
        text.append(
            f"KV cache use reached {unverified_peak_frac(facts):.0%} of an estimated number of blocks; set "
            "num_gpu_blocks to the number in the server's log"
        )
    if not trust.n_enough_for_p99:
        text.append(f"p99 of {n_finished:,} requests is a guess; it needs at least {FEW_FOR_P99:,}")
    if n_finished < window.n_requests:
        text.append(
            f"latencies are those of the {n_finished:,} requests that finished; {window.n_requests - n_finished:,} in "
            "the window did not and count as misses"
        )
    if trust.interval_too_narrow and trust.steady not in ("growing", "critical"):  # longer would not help
        text.append(too_short(window.n_requests, trust.n_effective or 1.0, trust.steady))
    if window.ends_with == "last finish":
        text.append(
            "all requests in the window were sent at one instant, so rates divide by the time to the last answer"
        )
    return text


def too_short(n: int, n_effective: float, state: Queue | None) -> str:
    """Return why intervals are too narrow, and how long a run would do."""
    steady = "; whether the queue is steady cannot be told" if state == "undetermined" else ""
    times = math.ceil(ENOUGH / max(n_effective, 1))
    remedy = "double the run" if times <= 2 else f"make the run {times} times as long"
    return (
        f"latencies are autocorrelated: {n:,} requests carry the information of about {max(n_effective, 1):.0f} "
        f"independent ones, so these intervals are too narrow{steady}. {remedy.capitalize()} or add --replications 10"
    )
