"""Form: coefficients with their bounds, and the mathematics that several forms share."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np


@dataclass(frozen=True)
class Form:
    """Coefficients of a kernel's time; every field is a number."""

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]]
    """(start, least, most) of every field, for the fit; a field with least == most is fixed."""
    LAUNCHES: ClassVar[tuple[str, ...]] = ("launch_s",)
    """Times of a kernel whatever its work."""
    TIMES: ClassVar[tuple[str, ...]] = ()
    """Other fields that the time of its work is proportional to."""
    SHARES: ClassVar[tuple[str, ...]] = ()
    """Fields that it is inversely proportional to."""

    def slowed(self, work: float, launches: float = 1.0) -> Self:
        """Return the form of kernels that take `work` times as long for work, `launches` times for launches.

        No share of a peak rises above 1, or above its own.
        """
        longer = {name: getattr(self, name) * launches for name in self.LAUNCHES}
        longer |= {name: getattr(self, name) * work for name in self.TIMES}
        shares = {name: getattr(self, name) for name in self.SHARES}
        return replace(self, **longer, **{name: min(x / work, max(x, 1.0)) for name, x in shares.items()})


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
