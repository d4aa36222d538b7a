"""Axis: the loads that a search may try, and the steps between them."""

import math
from dataclasses import dataclass

CLOSE = 0.02
"""How far apart two loads are, as a share, between which the answer is read off a straight line; the line errs by
much less."""


@dataclass(frozen=True)
class SearchAxis:
    """From the least to the most; whole numbers alone, or any."""

    start: float
    least: float
    most: float
    is_whole: bool = False

    def up(self, load: float, factor: float) -> float:
        """So many times as much, as far as there is more."""
        return min(self.most, max(self.nearest(load * factor), load + 1) if self.is_whole else load * factor)

    def down(self, load: float, factor: float) -> float:
        """So many times less, as far as there is less."""
        return max(self.least, min(self.nearest(load / factor), load - 1) if self.is_whole else load / factor)

    def is_close(self, below: float, above: float, width: float = CLOSE) -> bool:
        """Nothing worth trying lies between."""
        return math.log(above / below) <= width or (self.is_whole and above - below <= 1)

    def between(self, below: float, above: float, share: float) -> float:
        """A load that lies so far from the one toward the other, by their logarithms, and is neither."""
        result = below * (above / below) ** share
        return min(max(self.nearest(result), below + 1), above - 1) if self.is_whole else result

    def nearest(self, load: float) -> float:
        """The load itself, or the whole number next to it."""
        return float(round(load)) if self.is_whole else load
