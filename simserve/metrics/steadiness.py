"""Steadiness: does the queue settle, wander as at capacity, or grow as long as requests come?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.metrics.batches import LEAST, inefficiency
from simserve.metrics.integrals import presence
from simserve.metrics.window import Window
from simserve.tables.columns import Columns

SETTLES = 20
"""A backlog worth so many independent looks has come and gone often enough to be called steady; one that wanders at
capacity is worth 2 to 14, however long the run (docs/statistics.md)."""

LEAST_GROWTH_REQUESTS = 10
LEAST_GROWTH_FRAC = 0.02
"""Of the window's arrivals: less growth than this is noise, or will hardly matter."""

LEAST_RATIO = 1.5
"""A backlog that was there all along and grows by less than half is a busy cluster, not a losing one."""

FREE_FRAC = 0.9
"""Where the head of the queue was free to start for so much of the time there is hardly a queue that could grow."""

AT_CAPACITY = 7.0
MOST_FREE_FRAC = 0.07
"""At capacity a queue is empty for about AT_CAPACITY / sqrt(n requests) of the time at most, below it for a fixed
share."""


@dataclass(frozen=True)
class Steadiness:
    """What became of the queue, and what tells so."""

    state: str
    """steady; critical: it wanders, growing with the square root of time; growing; undetermined: too short to tell."""
    n_effective: float
    """How many independent requests tell as much as those of the window."""
    backlog: tuple[float, float, float]
    """Mean number of requests in the system in each third of the window."""
    free_frac: float
    """Share of the window in which nothing kept the head of the queue out, in the pool where that was rarest."""


def steadiness(requests: Columns, steps: Columns, window: Window, replica_pool: Sequence[int]) -> Steadiness:
    """requests: with found_there, rows in the order of arrival. replica_pool: the pool of each replica."""
    n_in_system = requests["found_there"][window.has]
    n_effective = len(n_in_system) / inefficiency(n_in_system)
    free_frac = _free_frac(steps, window, replica_pool)
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
    """It rose by an amount that matters, and did not level off.

    Bursts that drain, a start-up that levels off, and a closed loop do not pass; a window that ends inside a long burst
    can, which is then what happened. A test against a path that only wanders tells M/M/1 better, but takes the start
    of a run whose requests stay for long, which is a straight rise, for growth.
    """
    early, middle, late = backlog
    matters = late - early >= max(LEAST_GROWTH_REQUESTS, LEAST_GROWTH_FRAC * n_arrived)
    goes_on = late - middle >= (middle - early) / 2 > 0
    return bool(matters and goes_on and late >= LEAST_RATIO * early)


def backlog_by_thirds(requests: Columns, window: Window) -> tuple[float, float, float]:
    """Mean number of requests in the system in each third of the window."""
    refused = requests["status"].is_("rejected")
    leave_s = np.fmin(requests["finish_s"], requests["gave_up_s"])[~refused]
    arrival_s = requests["arrival_s"][~refused]
    # Who is there when the window opens has arrived at its start, who left before was never there.
    arrival_s = np.where(leave_s < window.start_s, math.nan, np.maximum(arrival_s, window.start_s))
    leave_s = np.where((leave_s > window.end_s), math.nan, leave_s)
    arrival_s[arrival_s > window.end_s] = math.nan
    edges_s = np.linspace(window.start_s, window.end_s, 4)
    early, middle, late = presence(arrival_s, leave_s, np.zeros(len(leave_s), np.int64), 1, edges_s)[0].tolist()
    return early, middle, late


def _free_frac(steps: Columns, window: Window, replica_pool: Sequence[int]) -> float:
    """NaN where the window has no length, or nothing ran."""
    if not window.end_s > window.start_s or not len(replica_pool):
        return math.nan
    held_up = steps["blocked_by"].without_blank().codes >= 0
    replica = steps["replica"][held_up]
    until_s = np.minimum(steps["end_s"][held_up], window.end_s)
    lasts_s = np.maximum(until_s - np.maximum(steps["start_s"][held_up], window.start_s), 0.0)
    held_up_s = np.bincount(replica, lasts_s, minlength=len(replica_pool))
    pool = np.array(replica_pool)
    by_pool = np.bincount(pool, held_up_s) / np.maximum(np.bincount(pool), 1) / (window.end_s - window.start_s)
    return 1.0 - float(by_pool.max())
