"""Steadiness: whether the queue settles, wanders as at capacity, or grows throughout the run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.metrics.batches import LEAST, inefficiency
from simserve.metrics.integrals import Presences, presence
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Floats, Ints
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

    state: str
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
    return 1.0 - float(held_up_frac.max(initial=0.0))
