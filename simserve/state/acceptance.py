"""Acceptance: how many of the tokens that are proposed for a request each of its steps accepts."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

import numpy as np
from numpy.typing import NDArray

GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64 (Steele, Lea and Flood, OOPSLA '14): its step from one state to the next, and what it mixes with."""

MASK = (1 << 64) - 1
BITS = 53
"""Of each draw, as many as a float64 has."""

FEW_STEPS = 4096
"""Answers of so many tokens need no counters of their own."""

COUNTERS = np.arange(1, FEW_STEPS + 1, dtype=np.uint64) * np.uint64(GAMMA)


@dataclass(frozen=True)
class Acceptance:
    """Position by position: a proposal is accepted with the rate of its position if all before it were.

    One draw a request and step, from a stream that is counted by both: what a step accepts depends on neither the
    replica nor the others in the batch, and a request that was preempted goes on where it was.
    """

    rates: tuple[float, ...]
    """Of each position, given that all before it are accepted; as many as are proposed."""
    seed: int = 0

    @property
    def n_proposed(self) -> int:
        """Tokens proposed for each request in a step."""
        return len(self.rates)

    def accepted(self, row: int, first_step: int, n_steps: int) -> NDArray[np.int64]:
        """Of the proposals of n_steps steps of a request from its first_step on, `(n_steps,)`."""
        state = _counters(first_step + n_steps)[first_step:] + self._origin(row)
        state ^= state >> np.uint64(30)
        state *= np.uint64(MIX_1)
        state ^= state >> np.uint64(27)
        state *= np.uint64(MIX_2)
        state ^= state >> np.uint64(31)
        state >>= np.uint64(64 - BITS)
        return self.n_proposed - self._limits.searchsorted(state, side="right")

    @cached_property
    def _limits(self) -> NDArray[np.uint64]:
        """A draw below the last of them accepts one proposal, below the last two of them two, ...; rising."""
        limits = [round(reached * (1 << BITS)) for reached in accumulate(self.rates, mul)]
        return np.array(limits[::-1], np.uint64)

    def _origin(self, row: int) -> np.uint64:
        """Where the stream of a request begins, far from all others'."""
        return np.uint64(_mixed(_mixed(self.seed & MASK) + row * GAMMA))


def _mixed(state: int) -> int:
    """What SplitMix64 gives for a state."""
    state = (state + GAMMA) & MASK
    state = (state ^ state >> 30) * MIX_1 & MASK
    state = (state ^ state >> 27) * MIX_2 & MASK
    return state ^ state >> 31


def _counters(n: int) -> NDArray[np.uint64]:
    """GAMMA, 2 GAMMA, ..., n GAMMA, modulo 2**64."""
    return COUNTERS[:n] if n <= FEW_STEPS else np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GAMMA)
