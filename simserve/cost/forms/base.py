"""Form: coefficients with their bounds, and the mathematics that several forms share."""

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Form:
    """Coefficients of a kernel's time; every field is a number."""

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]]
    """(start, least, most) of every field, for the fit; a field whose least is its most is not fitted."""


def smooth_max(one: Any, other: Any, sharpness: float) -> Any:
    """The p-norm of two times: their maximum where one dominates, up to 2 ** (1 / p) of it where they are equal."""
    high, low = np.maximum(one, other), np.minimum(one, other)
    share = low / np.where(high > 0, high, 1.0)
    return high * (1.0 + share**sharpness) ** (1.0 / sharpness)


def higher(one: Any, other: Any) -> Any:
    """The larger of two numbers, or of two arrays cell by cell; the same bits either way, and quick for numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return one if one > other else other


def root(x: Any) -> Any:
    """A square root: the same bits for a number as for a cell of an array, for both are rounded correctly."""
    return np.sqrt(x) if isinstance(x, np.ndarray) else sqrt(x)
