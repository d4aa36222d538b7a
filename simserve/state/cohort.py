"""Cohort: the decoding requests of a replica, kept as aggregates instead of a loop; others keep which they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from simserve.integers import filled, total, vec
from simserve.state.id_drops import IdDrops
from simserve.state.request import Request

NO_FINISH: Final = 1 << 62
"""Later than any step."""


class Cohort:
    """Requests that each produce one token per step.

    A request that joins with K tokens in the cache attends K + 1 keys in its next step (the new token's key is written
    in that step), K + 2 in the one after, and so on.

    Invariant: kv_tokens = sum of the keys that each member attends in the next step; sum(crossings) = n.
    """

    n_tokens = 1
    """Tokens that a step computes for each member."""
    n_slots = 1
    """Tokens beyond those stored that a member has blocks for in a step."""
    n_dropped = 0
    """Blocks that windows freed in the last advance, without those of members due in its last step."""
    drops: IdDrops | None = None
    """Members that are due to leave blocks with an id, where a prefix cache has windows."""

    __slots__ = ("block_size", "crossings", "kv_tokens", "n", "next_finish_step", "step")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0
        """Decode steps of this cohort since the start of the run."""
        self.n = 0
        self.kv_tokens = 0
        self.crossings: vec[i64] = filled(block_size, 0)
        """Members that begin a new block in step i modulo the block size."""
        self.next_finish_step = NO_FINISH
        """Value of `step` at which the next member finishes."""

    @property
    def window_keys(self) -> list[int]:
        """Sum of the keys that each member attends in the next step, by group of layers with a window."""
        return []

    @property
    def growth(self) -> list[int]:
        """Keys that each window gains per step until the next bend."""
        return []

    def steps_to_bend(self) -> int:
        """Return the steps after which windows free other blocks, or keys grow otherwise: a step run ends there."""
        return NO_FINISH

    def advance(self, n_steps: int) -> int:
        """Advance n_steps steps; return the blocks they begin."""
        n_blocks = self.crossings[self.step % self.block_size] if n_steps == 1 else self.blocks_to_grow(n_steps)
        self.step += n_steps
        self.kv_tokens += n_steps * self.n
        return n_blocks

    def accepted(self, n_steps: int) -> Iterator[tuple[Request, int]]:
        """Yield each member that produces more than one token a step in the next n_steps, and how many more."""
        return iter(())

    def blocks_to_grow(self, n_steps: int) -> int:
        """Return the blocks that the next n_steps begin."""
        block_size = self.block_size
        at = self.step % block_size
        end = at + n_steps % block_size
        n_blocks = n_steps // block_size * self.n
        if end <= block_size:
            return n_blocks + total(self.crossings, at, end)
        return n_blocks + self.n - total(self.crossings, end - block_size, at)

    def blocks_begun(self, n_steps: int) -> int:
        """Return the blocks that the next n_steps begin, whatever windows free meanwhile."""
        return self.blocks_to_grow(n_steps)

    def blocks_dropped(self, n_steps: int) -> int:
        """Return the blocks that windows free at the ends of the next n_steps."""
        return 0

    def blocks_of_next(self) -> int:
        """Return the blocks that the next step begins."""
        return self.crossings[self.step % self.block_size]

    def steps_within(self, free_blocks: int) -> int:
        """Return the most steps that begin at most free_blocks blocks. Needs a member."""
        cycles, left_blocks = divmod(free_blocks, self.n)
        n_steps = cycles * self.block_size
        while True:
            left_blocks -= self.crossings[(self.step + n_steps) % self.block_size]
            if left_blocks < 0:
                return n_steps
            n_steps += 1
