"""Steadiness: does the queue settle, wander as at capacity, or grow as long as requests come?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.metrics.batches import Batches, hanging
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Floats

SETTLES = 20
"""A backlog worth so many independent looks has come and gone often enough to be called steady; one that wanders at
capacity is worth 2 to 14, however long the run (docs/statistics.md)."""

GROWS = 2.0
"""Standard errors by which the backlog's rise must exceed what one that only wanders would do."""

WANDERS = math.sqrt(1.5)
"""Means of a wandering path over neighbouring batches have steps that correlate by 1/4, so their sum errs so much
more."""

LEAST_GROWTH_REQUESTS = 10
"""Less growth than this will hardly matter."""

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
    n_worth: float
    """How many independent requests tell as much as those of the window."""
    growth: float
    """Rise of the backlog from batch to batch in standard errors of a path that only wanders."""
    free_frac: float
    """Share of the window in which nothing kept the head of the queue out, in the pool where that was rarest."""


def steadiness(requests: Columns, steps: Columns, window: Window, replica_pool: Sequence[int]) -> Steadiness:
    """requests: with found_there, rows in the order of arrival. replica_pool: the pool of each replica."""
    backlog = requests["found_there"][window.has]
    n_worth = len(backlog) / hanging(backlog)
    batches = Batches.of(backlog)
    free_frac = _free_frac(steps, window, replica_pool)
    if batches is None or window.ends_with != "last arrival" or not window.duration_s > 0:
        return Steadiness("undetermined", n_worth, math.nan, free_frac)
    growth = _growth(batches.means)
    if _goes_on(backlog, batches.means) and growth >= GROWS:
        state = "growing"
    elif n_worth >= SETTLES or free_frac >= FREE_FRAC:
        state = "steady"
    elif free_frac <= min(AT_CAPACITY / math.sqrt(len(backlog)), MOST_FREE_FRAC):
        state = "critical"
    else:
        state = "undetermined"
    return Steadiness(state, n_worth, growth, free_frac)


def _growth(means: Floats) -> float:
    """What a path that wanders without a drift exceeds 2 in one of forty cases; of one that settles it is near 0."""
    steps = np.diff(means)
    rise, spread = float(steps.sum()), float(steps.std(ddof=1))
    if spread * len(steps) <= 1e-9 * abs(rise):
        return math.copysign(math.inf, rise) if rise else 0.0
    return rise / (spread * math.sqrt(len(steps)) * WANDERS)


def _goes_on(backlog: Floats, means: Floats) -> bool:
    """It rose by an amount that matters, and did not level off: a start-up does."""
    early, middle, late = (float(third.mean()) for third in np.array_split(backlog, 3))
    matters = means[-1] - means[0] >= LEAST_GROWTH_REQUESTS and late >= LEAST_RATIO * early
    return bool(matters and late - middle >= (middle - early) / 4)


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
