"""Saturation: the load from which on half of all seeds only grow their queue, and how far luck may have moved it.

Each seed saturates from a load of its own on, and the answer is the median of those. Whatever their distribution, the
median of all seeds lies between two of the tried seeds' own loads, counted from either end (Conover, Practical
Nonparametric Statistics, section 3.2); loads further out are run until so many seeds are on either side.
"""

import math
from collections.abc import Callable

from simserve.study.capacity.axis import CLOSE, SearchAxis
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import median_rank

MOST_STEPS = 6
"""Outwards, each the square of the one before: to four times the load."""

At = Callable[[float], LoadPoint | None]
"""A load with all the seeds; None where nobody arrives."""


def saturation_ends(below: LoadPoint, above: LoadPoint, axis: SearchAxis, at: At) -> tuple[float, float]:
    """Loads between which the median of all seeds lies with CONFIDENCE; NaN where the loads tried do not tell."""
    n = len(below.runs)
    rank = median_rank(n)
    if rank is None:
        return math.nan, math.nan
    low = _first(below, axis, at, lambda point: point.n_saturated < rank, axis.down)
    high = _first(above, axis, at, lambda point: point.n_saturated > n - rank, axis.up)
    return (math.nan, math.nan) if low is None or high is None else (low, high)


def _first(
    start: LoadPoint,
    axis: SearchAxis,
    at: At,
    is_beyond: Callable[[LoadPoint], bool],
    step: Callable[[float, float], float],
) -> float | None:
    """The nearest load that is beyond, or a little further; ever larger steps, then halves."""
    near = far = start
    factor = 1 + CLOSE
    for _ in range(MOST_STEPS):
        if is_beyond(far):
            break
        result = at(step(far.scale, factor))
        if result is None:
            return None
        near, far, factor = far, result, factor**2
    if not is_beyond(far):
        return None
    width = max(CLOSE, abs(math.log(far.scale / start.scale)) / 4)
    while True:
        lower, upper = sorted((near.scale, far.scale))
        middle = None if axis.is_close(lower, upper, width) else at(axis.between(lower, upper, 0.5))
        if middle is None:
            return far.scale
        near, far = (near, middle) if is_beyond(middle) else (middle, far)
