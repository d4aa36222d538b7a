"""Saturation: the interval of the load beyond which the queue only grows with half of all seeds.

Each seed saturates beyond a load of its own, and the answer is the median of these. Whatever their distribution, its
confidence interval ends at two of their order statistics (Conover, Practical Nonparametric Statistics, section 3.2);
loads further out run until enough seeds are on either side.
"""

import math
from collections.abc import Callable

from simserve.study.capacity.axis import CLOSE, SearchAxis
from simserve.study.capacity.point import LoadPoint
from simserve.study.intervals import median_rank

MOST_STEPS = 6
"""Steps outward, each the square of the one before: up to four times the load."""

At = Callable[[float], LoadPoint | None]
"""Runs a load with all seeds; None where a seed has no arrivals."""


def saturation_ends(below: LoadPoint, above: LoadPoint, axis: SearchAxis, at: At) -> tuple[float, float]:
    """Return the CONFIDENCE interval of the median load at which seeds saturate; NaN where it is unknown."""
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
    """Return the nearest load that is beyond, within a tolerance: growing steps, then bisection."""
    near = far = start
    factor = 1 + CLOSE
    for _ in range(MOST_STEPS):
        if is_beyond(far):
            break
        farther = at(step(far.scale, factor))
        if farther is None:
            return None
        near, far, factor = far, farther, factor**2
    if not is_beyond(far):
        return None
    width = max(CLOSE, abs(math.log(far.scale / start.scale)) / 4)
    while True:
        lower, upper = sorted((near.scale, far.scale))
        middle = None if axis.is_close(lower, upper, width) else at(axis.between(lower, upper, 0.5))
        if middle is None:
            return far.scale
        near, far = (near, middle) if is_beyond(middle) else (middle, far)
