"""Cohort: the decoding requests of a replica, kept as aggregates instead of a loop."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from mypy_extensions import i64

from simserve.integers import filled, total, vec
from simserve.state.id_drops import IdDrops
from simserve.state.request import DECODE, Request

NO_FINISH: Final = 1 << 62
"""Later than any step."""
CANCELED: Final = -1
"""`join_number` once the finish of a member is canceled."""


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

    __slots__ = (
        "_finishes",
        "_n_canceled",
        "_n_joins",
        "block_size",
        "crossings",
        "kv_tokens",
        "lingering",
        "n",
        "next_finish_step",
        "step",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0
        """Decode steps of this cohort since the start of the run."""
        self.n = 0
        self.kv_tokens = 0
        self.crossings: vec[i64] = filled(block_size, 0)
        """Members that begin a new block in step i modulo the block size."""
        self.lingering: list[Request] = []
        """Finished members that stay, at full cost, until the whole batch has finished."""
        self._finishes: list[tuple[int, int, Request]] = []
        """Heap of (step, number of the join, member); a canceled one differs from the member's `join_number`."""
        self._n_canceled = 0
        """Canceled finishes in the heap."""
        self._n_joins = 0
        self.next_finish_step = NO_FINISH
        """Value of `step` at which the next member finishes."""

    def join(self, request: Request, n_left: int) -> None:
        """Add a prefilled request with n_left tokens to produce; with none left it lingers."""
        step = self.step
        kv_tokens = request.padding_tokens + request.prefilled_tokens
        request.phase = DECODE
        request.kv_offset = kv_tokens - step
        request.join_step = step
        self.n += 1
        self.kv_tokens += kv_tokens + 1
        self.crossings[(step - kv_tokens) % self.block_size] += 1
        if n_left:
            finish_step, number = step + n_left, self._n_joins
            self._n_joins = number + 1
            request.join_number = number
            heappush(self._finishes, (finish_step, number, request))
            if finish_step < self.next_finish_step:
                self.next_finish_step = finish_step

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

    def stored_tokens(self, request: Request) -> int:
        """Return the tokens that a member holds in the cache, padding included."""
        return request.kv_offset + self.step

    def stored_at(self, request: Request, step: int) -> int:
        """Return the tokens that a member holds at a value of `step` up to its finish."""
        return request.kv_offset + step

    def step_with(self, request: Request, n_tokens: int) -> int:
        """Return the value of `step` at which a member first holds n_tokens, more than now."""
        return n_tokens - request.kv_offset

    def count_first(self, request: Request) -> None:
        """Count the tokens of a member's first step, which is about to end, as produced before it joined."""
        request.emitted_tokens += 1
        request.join_step = self.step + 1

    def leave(self, request: Request) -> int:
        """Remove a member; return the tokens it holds in the cache, padding included."""
        kv_tokens = request.kv_offset + self.step
        request.emitted_tokens += self.step - request.join_step
        self.n -= 1
        self.kv_tokens -= kv_tokens + 1
        self.crossings[-request.kv_offset % self.block_size] -= 1
        return kv_tokens

    def drop(self, request: Request) -> int:
        """Remove an unfinished member; like `leave`, and cancel its finish."""
        kv_tokens = self.leave(request)
        self.forget(request)
        return kv_tokens

    def forget(self, request: Request) -> None:
        """Cancel a member's finish; it stays until it leaves."""
        request.join_number = CANCELED
        self._n_canceled += 1
        if 2 * self._n_canceled > len(self._finishes):
            self._finishes = [entry for entry in self._finishes if entry[2].join_number == entry[1]]
            heapify(self._finishes)
            self._n_canceled = 0
        self._pop_canceled()

    def pop_finished(self) -> list[Request]:
        """Return the members finished by the last step, in the order of joining; they are still members."""
        finished: list[Request] = []
        finishes, step = self._finishes, self.step
        while finishes and finishes[0][0] <= step:
            _, number, request = heappop(finishes)
            if request.join_number == number:
                finished.append(request)
            else:
                self._n_canceled -= 1
        if self._n_canceled:
            self._pop_canceled()
        else:
            self.next_finish_step = finishes[0][0] if finishes else NO_FINISH
        return finished

    def _pop_canceled(self) -> None:
        """Let the first finish be one that is not canceled, and note it."""
        finishes = self._finishes
        while finishes and finishes[0][2].join_number != finishes[0][1]:
            heappop(finishes)
            self._n_canceled -= 1
        self.next_finish_step = finishes[0][0] if finishes else NO_FINISH

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

    def pop_kept_blocks(self, request: Request) -> int:
        """Return the blocks beyond the stored tokens of a request that left; call once."""
        return 0

    def steps_within(self, free_blocks: int) -> int:
        """Return the most steps that begin at most free_blocks blocks. Needs a member."""
        cycles, left_blocks = divmod(free_blocks, self.n)
        n_steps = cycles * self.block_size
        while True:
            left_blocks -= self.crossings[(self.step + n_steps) % self.block_size]
            if left_blocks < 0:
                return n_steps
            n_steps += 1
