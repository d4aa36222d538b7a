"""Planners of the built-in policies: their decisions in compiled code, for requests in columns and in views alike."""

from __future__ import annotations

from mypy_extensions import i64

from simserve.state.planner import BLOCKS, BUDGET, SEATS, Planner, limit
from simserve.state.walk import Walk


class ChunkedPlanner(Planner):
    """Decode first, prompts fill the budget of a step; see `Chunked`."""

    def __init__(self, budget_tokens: int, slots: int, most_chunk_tokens: int, *, reserves_prompt: bool) -> None:
        super().__init__()
        self._budget: i64 = limit(budget_tokens)
        self._slots: i64 = limit(slots)
        self._most: i64 = limit(most_chunk_tokens)
        self._reserves_prompt = reserves_prompt
        """A new request needs the blocks of its whole prompt; otherwise those of its chunk."""

    def plan(self, walk: Walk) -> None:
        """Walk the queue in order until tokens, slots or blocks run out."""
        budget: i64 = self._budget - walk.n_decoding * walk.decode_tokens
        slots: i64 = self._slots - walk.n_running
        free: i64 = walk.free_blocks
        self.blocked, self.preempts = 0, False
        while walk.next():
            if budget <= 0:
                self.blocked = BUDGET
                return
            n_left: i64 = walk.left_tokens()
            n_tokens: i64 = n_left
            if n_tokens > self._most:  # fast: without a call of min
                n_tokens = self._most
            if n_tokens > budget:
                n_tokens = budget
            if walk.is_new:
                if slots <= 0:
                    self.blocked = SEATS
                    return
                slots -= 1
                n_blocks: i64 = walk.blocks_to_admit(n_left if self._reserves_prompt else n_tokens)
                if n_blocks > free or walk.just_preempted:
                    self.blocked = BLOCKS
                    return
            else:
                n_blocks = walk.blocks_for_chunk(n_tokens)
                if n_blocks > free:
                    self.blocked = BLOCKS
                    self.preempts = walk.n_members > 1
                    return
            free -= n_blocks
            budget -= n_tokens
            walk.take(n_tokens, 0)


class PrefillFirstPlanner(Planner):
    """Whole prompts go first, in steps of their own; see `PrefillFirst`."""

    def __init__(self, budget_tokens: int | None, slots: int) -> None:
        super().__init__()
        self._budget: i64 = 0 if budget_tokens is None else limit(budget_tokens)
        self._slots: i64 = limit(slots)

    def plan(self, walk: Walk) -> None:
        """Admit as many whole prompts as tokens, slots and blocks allow; otherwise decode."""
        budget: i64 = self._budget
        if not budget:
            budget = walk.max_model_len if walk.max_model_len > 2048 else 2048
        slots: i64 = self._slots - walk.n_running
        free: i64 = walk.free_blocks
        self.blocked, self.decodes = 0, True
        walk.skip_started()
        while walk.next():
            n_tokens: i64 = walk.left_tokens()
            free -= walk.blocks_to_admit(n_tokens)
            slots -= 1
            if slots < 0:
                self.blocked = SEATS
            elif free < 0 or walk.just_preempted:
                self.blocked = BLOCKS
            elif not self.decodes and n_tokens > budget:  # alone, a recomputation may exceed the budget
                self.blocked = BUDGET
            if self.blocked:
                return
            self.decodes = False
            walk.take(n_tokens, 0)
            budget -= n_tokens


class ContinuousPlanner(Planner):
    """Whole prompts join the decoding requests, with blocks for the longest answer; see `Continuous`."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.reserves = True
        self._slots: i64 = limit(slots)

    def plan(self, walk: Walk) -> None:
        """Admit in order while a slot and the blocks of the longest output are free."""
        slots: i64 = self._slots - walk.n_running
        free: i64 = walk.free_blocks
        self.blocked = 0
        walk.skip_started()
        while walk.next():
            longest_tokens: i64 = walk.most_tokens()
            free -= walk.blocks_for(longest_tokens)
            slots -= 1
            if slots < 0 or free < 0:
                self.blocked = SEATS if slots < 0 else BLOCKS
                return
            walk.take(walk.left_tokens(), longest_tokens)


class TrtLlmPlanner(Planner):
    """Every step decodes all requests and takes prompts that fit the step and the memory; see `TrtLlm`."""

    def __init__(self, budget_tokens: int, slots: int, *, reserves: bool, chunks: bool) -> None:
        super().__init__()
        self._budget: i64 = limit(budget_tokens)
        self._slots: i64 = limit(slots)
        self.reserves, self._chunks = reserves, chunks

    def plan(self, walk: Walk) -> None:
        """Walk the queue in order until slots, blocks or tokens run out."""
        budget: i64 = self._budget - walk.n_decoding * walk.decode_tokens
        slots: i64 = self._slots - walk.n_running
        free: i64 = walk.free_blocks
        is_first = not walk.n_decoding
        computed: set[int] = set()
        """First blocks that prompts lack which are computed, or were passed."""
        self.blocked = 0
        while walk.next():
            missing = walk.missing_block()
            if missing is not None:
                if walk.is_new and missing in computed:
                    continue
                computed.add(missing)
            n_left: i64 = walk.left_tokens()
            n_tokens: i64 = self._chunk_tokens(n_left, budget, walk.block_size, is_first)
            n_blocks: i64 = self._blocks(walk, n_left)
            if walk.is_new:
                slots -= 1
                if slots < 0:
                    self.blocked = SEATS
                elif n_blocks > free or walk.just_preempted:
                    self.blocked = BLOCKS
            elif not self.reserves and walk.blocks_for_chunk(n_tokens) > free:
                self.blocked = BLOCKS
            if not self.blocked and not n_tokens:
                self.blocked = BUDGET
            if self.blocked:
                return
            free -= n_blocks
            budget -= n_tokens
            is_first = False
            walk.take(n_tokens, walk.most_tokens())

    def _chunk_tokens(self, n_left: i64, budget: i64, block_size: i64, is_first: bool) -> i64:
        """Return the prompt tokens of a step: all, whole blocks, or none; the first prompt always progresses."""
        if n_left <= budget:
            return n_left
        if self._chunks:
            n_whole: i64 = budget // block_size * block_size
            if n_whole > 0:
                return n_whole
            return budget if is_first else 0
        return n_left if is_first else 0

    def _blocks(self, walk: Walk, n_left: i64) -> i64:
        """Return the blocks that a request will still take, as the capacity policy counts them."""
        if not self.reserves:
            return walk.blocks_to_admit(n_left) if walk.is_new else walk.blocks_for_chunk(n_left)
        return walk.blocks_for(walk.most_tokens()) if walk.is_new else 0
