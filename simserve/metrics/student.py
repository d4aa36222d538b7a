"""Student's t distribution for whole degrees of freedom, in closed form, so that a run need not load scipy."""

import math
from functools import cache
from typing import TypeVar

import numpy as np

from simserve.tables.columns import Floats

T = TypeVar("T", float, Floats)
"""A value, or an array of values."""


def cdf(t: T, n_free: int) -> T:
    """Return the probability of a value up to t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = np.arctan2(t, math.sqrt(n_free))
    cosine_square = n_free / (n_free + t * t)
    term, total = angle * 0 + 1, angle * 0
    for k in range(n_free % 2, n_free - 1, 2):
        total += term
        term *= cosine_square * ((k + 1) / (k + 2))
    within: T = np.sin(angle) * total
    if n_free % 2:
        within = 2 / math.pi * (angle + within * np.cos(angle))
    return 0.5 + within / 2


@cache
def quantile(share: float, n_free: int) -> float:
    """Return the least value up to which the share lies, by bisection; share above 0.5."""
    low, high = 0.0, 1.0
    while cdf(high, n_free) < share:
        high += high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if cdf(middle, n_free) < share else (low, middle)
    return high
