"""Search axis: the loads that a search may run, and the steps between them."""

import math
from dataclasses import dataclass

CLOSE = 0.02
"""Log ratio of two loads below which the answer is interpolated linearly; the interpolation error is much smaller."""


@dataclass(frozen=True)
class SearchAxis:
    """A range of loads, continuous or of whole numbers."""

    start: float
    least: float
    most: float
    is_whole: bool = False

    def up(self, load: float, factor: float) -> float:
        """Return the load times a factor, at most `most`."""
        return min(self.most, max(self.nearest(load * factor), load + 1) if self.is_whole else load * factor)

    def down(self, load: float, factor: float) -> float:
        """Return the load divided by a factor, at least `least`."""
        return max(self.least, min(self.nearest(load / factor), load - 1) if self.is_whole else load / factor)

    def is_close(self, below: float, above: float, width: float = CLOSE) -> bool:
        """Return whether no load worth running lies between two."""
        return math.log(above / below) <= width or (self.is_whole and above - below <= 1)

    def between(self, below: float, above: float, share: float) -> float:
        """Return the load at a share of the way between two, on a log scale; never one of the ends."""
        load = below * (above / below) ** share
        return min(max(self.nearest(load), below + 1), above - 1) if self.is_whole else load

    def nearest(self, load: float) -> float:
        """Return the load, rounded on an axis of whole numbers."""
        return float(round(load)) if self.is_whole else load
