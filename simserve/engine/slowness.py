"""Slowness: windows of time in which a replica takes longer for its steps, or a port of a link carries less."""

from collections.abc import Iterator
from fractions import Fraction
from heapq import merge
from itertools import tee
from math import ceil

import numpy as np
from numpy.typing import NDArray

from simserve.engine.step_run import check_duration
from simserve.integers import NEVER

Ints = NDArray[np.int64]
Window = tuple[int, int, float]
"""From when and until when, and the share of the speed that is left."""


class Slowness:
    """Windows in which something has a part of its speed; where some overlap, the least holds."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        """Windows by their beginning, as far as they are known and not over; none: none will come."""
        self._coming: Iterator[Window] = iter(())
        self._begun: list[Window] = []
        """All windows of a replica until now."""

    def begin(self, window: Window) -> None:
        """Let a window begin now, and forget those that are over."""
        self.windows = [*(each for each in self.windows if each[1] > window[0]), window]
        self._begun.append(window)

    def steps_ps(self, steps_ps: Ints, starts_ps: Ints) -> Ints:
        """Return how long steps took that began at some instants, in ascending order, `(n,)`."""
        if not self._begun:
            return steps_ps
        speeds = np.ones(len(starts_ps))
        for start_ps, end_ps, speed in self._begun:
            slow = slice(*np.searchsorted(starts_ps, (start_ps, end_ps)))
            speeds[slow] = np.minimum(speeds[slow], speed)
        return np.rint(steps_ps / speeds).astype(np.int64)

    def add(self, windows: Iterator[Window]) -> None:
        """Add windows that are to come, in their order, before any of them is needed."""
        self._coming, self.windows = merge(self._coming, windows), [(-1, -1, 1.0)]

    def split(self) -> "Slowness":
        """Return the windows that are to come, for a port that forgets them at its own time."""
        self._coming, coming = tee(self._coming)
        other = Slowness()
        other.add(coming)
        return other

    def speed(self, at_ps: int) -> float:
        """Return the share of its speed at an instant."""
        return min((speed for start_ps, end_ps, speed in self.windows if start_ps <= at_ps < end_ps), default=1.0)

    def step_ps(self, step_ps: int, at_ps: int) -> int:
        """Return how long a step takes that begins at an instant. Raises EndsTooLate."""
        slowed_ps = round(step_ps / self.speed(at_ps))
        check_duration(slowed_ps, 0, 1)
        return slowed_ps

    def through_ps(self, busy_ps: int, at_ps: int) -> int:
        """Return when something is through that begins at an instant and takes busy_ps at full speed, and forget what
        was over before."""
        left = Fraction(busy_ps)
        while True:
            while self.windows[-1][0] <= at_ps:  # up to the first that begins later
                self.windows.append(next(self._coming, (NEVER, NEVER, 1.0)))
            self.windows = [window for window in self.windows if window[1] > at_ps]
            until_ps = min(edge for window in self.windows for edge in window[:2] if edge > at_ps)
            speed = Fraction(str(self.speed(at_ps)))
            if speed and at_ps + ceil(left / speed) <= until_ps:
                return at_ps + ceil(left / speed)
            if until_ps == NEVER:
                return NEVER
            left, at_ps = left - (until_ps - at_ps) * speed, until_ps
