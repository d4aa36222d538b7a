"""Acceptance: how many proposed tokens each step of a request accepts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Final

import numpy as np
from numpy.typing import NDArray

GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_2: Final = np.uint64(0x94D049BB133111EB)
"""SplitMix64 (Steele, Lea and Flood, OOPSLA '14): its increment and its mixing constants."""

SHIFTS: Final = np.uint64(30), np.uint64(27), np.uint64(31)
BITS: Final = 53
"""Bits used of each draw: the precision of a float64."""

GROUP_ROWS = 64
"""fast: consecutive rows are drawn together, as numpy takes as long for ten as for one."""

MOST_GROUPS = 32
GROUP_STEPS = 256
"""Steps drawn for a whole group; longer requests are drawn one by one."""


@dataclass(frozen=True)
class Acceptance:
    """Draws acceptance position by position: a proposal may be accepted only if all before it were.

    One draw per request and step, from a counter-based stream: what a step accepts depends on neither the replica nor
    the rest of the batch, and a preempted request continues where it was.
    """

    rates: tuple[float, ...]
    """Acceptance rate of each proposed position, given that all before it are accepted."""
    seed: int = 0
    _groups: dict[int, list[NDArray[np.int64]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_proposed(self) -> int:
        """Tokens proposed for each request in a step."""
        return len(self.rates)

    @cached_property
    def _mean_tokens(self) -> float:
        """Mean tokens per step."""
        return float(sum(accumulate(self.rates, mul), 1.0))

    def tokens_before(self, row: int, first_step: int, n_tokens: int) -> NDArray[np.int64]:
        """Return the tokens produced before each step from first_step on: 0, then rising to n_tokens or more.
        Read-only."""
        n_steps = int(1.2 * n_tokens / self._mean_tokens) + 16
        if not first_step and n_steps <= GROUP_STEPS:
            before = self._of_group(row)
            if before[-1] >= n_tokens:
                return before
        alone = self._tokens_before([row], first_step, n_steps)[0]
        while alone[-1] < n_tokens:
            n_steps *= 2
            alone = self._tokens_before([row], first_step, n_steps)[0]
        return alone

    def _of_group(self, row: int) -> NDArray[np.int64]:
        """Return the tokens of the first GROUP_STEPS steps of a request."""
        group, place = divmod(row, GROUP_ROWS)
        if group not in self._groups:
            if len(self._groups) >= MOST_GROUPS:
                del self._groups[next(iter(self._groups))]
            rows = range(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
            self._groups[group] = self._tokens_before(rows, 0, GROUP_STEPS)
        return self._groups[group][place]

    def _tokens_before(self, rows: Sequence[int], first_step: int, n_steps: int) -> list[NDArray[np.int64]]:
        """Return tokens of several requests, before each of n_steps and after the last, `(n_steps + 1,)` each."""
        counters = np.arange(first_step, first_step + n_steps, dtype=np.uint64) * GAMMA
        origins = _mixed(np.array(rows, np.uint64) * GAMMA + self._origin)
        state = _mixed(counters + origins[:, None])
        state >>= np.uint64(64 - BITS)
        tokens = np.ones(state.shape, np.uint8)
        for reached in accumulate(self.rates, mul):
            tokens += state < np.uint64(round(reached * (1 << BITS)))
        before = np.zeros((len(rows), n_steps + 1), np.int64)
        np.cumsum(tokens, axis=1, out=before[:, 1:])
        return [*before]

    @cached_property
    def _origin(self) -> NDArray[np.uint64]:
        """State from which the streams of requests start, far from each other, `(1,)`."""
        return _mixed(np.array([self.seed % (1 << 64)], np.uint64))


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 output of each state; arrays of machine integers wrap."""
    state = state + GAMMA
    shifted = state >> SHIFTS[0]
    state ^= shifted
    state *= MIX_1
    state ^= np.right_shift(state, SHIFTS[1], out=shifted)
    state *= MIX_2
    state ^= np.right_shift(state, SHIFTS[2], out=shifted)
    return state
