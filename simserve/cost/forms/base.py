"""Form: coefficients with their bounds, and the mathematics that several forms share."""

from dataclasses import dataclass
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
