"""Form: coefficients with their bounds, and the mathematics that several forms share."""

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Form:
    """Coefficients of a kernel's time; every field is a number."""

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]]
    """(start, least, most) of every field, for the fit; a field with least == most is fixed."""


def smooth_max(one: Any, other: Any, sharpness: float) -> Any:
    """Return the p-norm of two times: the maximum where one dominates, 2 ** (1 / p) of it where they are equal."""
    high, low = np.maximum(one, other), np.minimum(one, other)
    share = low / np.where(high > 0, high, 1.0)
    return high * (1.0 + share**sharpness) ** (1.0 / sharpness)


def higher(one: Any, other: Any) -> Any:
    """Return the larger of two numbers, or of two arrays by cell; same bits for both, and fast for numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return one if one > other else other


def root(x: Any) -> Any:
    """Return a square root; same bits for a number as for a cell of an array, as both are correctly rounded."""
    return np.sqrt(x) if isinstance(x, np.ndarray) else sqrt(x)
