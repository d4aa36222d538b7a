"""Cohort: the decoding requests of a replica, kept as aggregates instead of a loop, and what windows drop of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64

from simserve.integers import filled, total, vec
from simserve.state.block_runs import NEVER, block_groups
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import Request

NIds = Callable[[Request], int]
"""Returns how many blocks of a request, from its first on, have an id or get one."""
Convert = Callable[[Request, int], int]
"""Converts a step of a member to its stored tokens, or back."""


class IdDrops:
    """Members of a cohort in the order in which windows next leave a block of each that has an id. The prefix cache
    needs their order. Blocks without an id are only counted."""

    __slots__ = ("_ahead", "_joined", "_n_ids", "_n_joins", "_step_with", "_stored_at", "_windows", "due", "next_step")

    def __init__(self, layers: LayerBlocks, n_ids: NIds, stored_at: Convert, step_with: Convert) -> None:
        self._stored_at, self._step_with = stored_at, step_with
        self._windows = [group for group in block_groups(layers) if group.window]
        self._n_ids = n_ids
        self._ahead: list[tuple[int, int, Request]] = []
        """Heap of (step, number of the join, member), with some members that have left."""
        self._joined: dict[Request, int] = {}
        self._n_joins = 0
        self.due: list[tuple[Request, int, int]] = []
        """Members of which blocks with an id left windows in the last such step, in the order of joining, and the
        tokens that they had stored before and after it."""
        self.next_step = NEVER
        """Value of `step` after the next such step."""

    def join(self, request: Request, n_tokens: int) -> None:
        """Add a member of the cohort, with n_tokens stored."""
        if not self._n_ids(request):
            return
        self._n_joins += 1
        self._joined[request] = self._n_joins
        self._add(request, self._n_joins, n_tokens)
        self._find_next()

    def leave(self, request: Request) -> None:
        """Remove a member."""
        if self._joined.pop(request, None) is not None:
            self._find_next()

    def advance(self, step: int) -> int:
        """Note the members that are due in the last step, up to `step`; return what `pop` does."""
        self.due = []
        return self.pop() if self.next_step <= step else 0

    def pop(self) -> int:
        """Note the members that are due next; return their blocks that leave windows then, with or without an id."""
        step, n_dropped = self.next_step, 0
        self.due = []
        while self.next_step == step:
            _, number, request = heappop(self._ahead)
            n_before, n_tokens = self._stored_at(request, step - 1), self._stored_at(request, step)
            self.due.append((request, n_before, n_tokens))
            for window in self._windows:
                n_dropped += (window.first_kept(n_tokens) - window.first_kept(n_before)) * window.n_parts
            self._add(request, number, n_tokens)
            self._find_next()
        return n_dropped

    def _add(self, request: Request, number: int, n_tokens: int) -> None:
        n_ids, target = self._n_ids(request), NEVER
        for window in self._windows:
            target = min(target, window.next_drop(n_tokens, n_ids))
        if target < NEVER:
            heappush(self._ahead, (self._step_with(request, target), number, request))

    def _find_next(self) -> None:
        ahead, joined = self._ahead, self._joined
        while ahead and joined.get(ahead[0][2]) != ahead[0][1]:
            heappop(ahead)
        self.next_step = ahead[0][0] if ahead else NEVER


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
