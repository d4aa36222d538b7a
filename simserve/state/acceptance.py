"""Acceptance: how many of the tokens that are proposed for a request each of its steps accepts."""

from dataclasses import dataclass, field
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

GROUP_ROWS = 64
"""fast: requests that come one after the other are drawn at once, for numpy takes as long for one as for ten."""

MOST_GROUPS = 32
FEW_STEPS = 128
"""A group is drawn for so many steps at least."""


@dataclass(frozen=True)
class Acceptance:
    """Position by position: a proposal is accepted with the rate of its position if all before it were.

    One draw a request and step, from a stream that is counted by both: what a step accepts depends on neither the
    replica nor the others in the batch, and a request that was preempted goes on where it was.
    """

    rates: tuple[float, ...]
    """Of each position, given that all before it are accepted; as many as are proposed."""
    seed: int = 0
    _groups: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_proposed(self) -> int:
        """Tokens proposed for each request in a step."""
        return len(self.rates)

    @cached_property
    def tokens_per_step(self) -> float:
        """Expected of a request that goes on: one, and for each position the chance that it is reached and accepted."""
        return float(sum(accumulate(self.rates, mul), 1.0))

    def tokens_before(self, row: int, first_step: int, n_tokens: int) -> NDArray[np.int64]:
        """What a request has produced before each of its steps from first_step on: 0, then rising, up to n_tokens at
        least; not to be changed."""
        if first_step:
            return _first(self._tokens_before(np.array([row]), first_step, n_tokens))
        group, place = divmod(row, GROUP_ROWS)
        table = self._groups.get(group)
        if table is None or table[place, -1] < n_tokens:
            n_steps = max(FEW_STEPS, int(1.2 * n_tokens / self.tokens_per_step) + 16)
            if table is not None:
                n_steps = max(n_steps, 2 * table.shape[1])
            elif len(self._groups) >= MOST_GROUPS:
                del self._groups[next(iter(self._groups))]
            rows = np.arange(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
            self._groups[group] = self._tokens_before(rows, 0, n_steps)
            return self.tokens_before(row, first_step, n_tokens)
        return _first(table[place:])

    def _tokens_before(self, rows: NDArray[np.int64], first_step: int, n_steps: int) -> NDArray[np.int64]:
        """Of several requests, before each of n_steps and after the last, `(n_rows, n_steps + 1)`."""
        counters = np.arange(first_step + 1, first_step + n_steps + 1, dtype=np.uint64) * np.uint64(GAMMA)
        origins = np.array([self._origin(row) for row in rows.tolist()], np.uint64)
        state = counters + origins[:, None]
        state ^= state >> np.uint64(30)
        state *= np.uint64(MIX_1)
        state ^= state >> np.uint64(27)
        state *= np.uint64(MIX_2)
        state ^= state >> np.uint64(31)
        state >>= np.uint64(64 - BITS)
        tokens = np.ones(state.shape, np.int64)
        for reached in accumulate(self.rates, mul):
            tokens += state < np.uint64(round(reached * (1 << BITS)))
        before = np.zeros((len(rows), n_steps + 1), np.int64)
        np.cumsum(tokens, axis=1, out=before[:, 1:])
        return before

    def _origin(self, row: int) -> int:
        """Where the stream of a request begins, far from all others'."""
        return _mixed(_mixed(self.seed & MASK) + row * GAMMA)


def _first(table: NDArray[np.int64]) -> NDArray[np.int64]:
    row: NDArray[np.int64] = table[0]
    return row


def _mixed(state: int) -> int:
    """What SplitMix64 gives for a state."""
    state = (state + GAMMA) & MASK
    state = (state ^ state >> 30) * MIX_1 & MASK
    state = (state ^ state >> 27) * MIX_2 & MASK
    return state ^ state >> 31
