"""Form: coefficients with their bounds, and the mathematics that several forms share."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, get_type_hints

import numpy as np


class Coefficient(NamedTuple):
    """Start and bounds of a field of a form, for the fit; one with least == most is fixed."""

    start: float
    least: float
    most: float


class LaunchTime(Coefficient):
    """Bounds of a time of a kernel whatever its work."""


class WorkTime(Coefficient):
    """Bounds of another field that the time of its work is proportional to."""


class PeakShare(Coefficient):
    """Bounds of a field that this time is inversely proportional to."""


@dataclass(frozen=True)
class Form:
    """Coefficients of a kernel's time; every field is a number, annotated with its bounds."""

    BOUNDS: ClassVar[dict[str, Coefficient]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True).items()
        cls.BOUNDS = {name: hint.__metadata__[0] for name, hint in hints if hasattr(hint, "__metadata__")}

    def slowed(self, work: float, launches: float = 1.0) -> Self:
        """Return the form of kernels that take `work` times as long for work, `launches` times for launches.

        No share of a peak rises above 1, or above its own.
        """
        slowed = {}
        for name, bounds in self.BOUNDS.items():
            match bounds, getattr(self, name):
                case LaunchTime(), value:
                    slowed[name] = value * launches
                case WorkTime(), value:
                    slowed[name] = value * work
                case PeakShare(), value:
                    slowed[name] = min(value / work, max(value, 1.0))
        return replace(self, **slowed)


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
