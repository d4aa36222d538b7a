"""SgLangPlanner: SGLang's estimate of the memory that running requests will still need, and its prefill batches."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from mypy_extensions import i64

from simserve.state.planner import BLOCKS, BUDGET, SEATS, Planner, limit
from simserve.state.remaining import RemainingTokens
from simserve.state.walk import Walk


@dataclass(frozen=True)
class SgLangLimits:
    """Fields of `SgLang`; None: no limit, or for slots SGLang's default."""

    chunk_tokens: int | None
    prefill_tokens: int
    slots: int | None
    is_mixed: bool
    retract_steps: int
    most_new_tokens: int


class NewTokenRatio:
    """The ratio of remaining tokens that running requests are charged for: it falls with decode steps."""

    def __init__(self, first: float, last: float, n_steps: int) -> None:
        self._first, self._least, self._fall = first, last, (first - last) / n_steps
        self._from, self._n_fallen = first, 0

    @property
    def now(self) -> float:
        """The current ratio."""
        if not self._n_fallen:
            return self._from
        return max(self._from - self._fall * self._n_fallen, self._least)

    def fall(self, n_steps: int) -> None:
        """Fall for so many steps."""
        self._n_fallen += n_steps

    def restart(self, ratio: float) -> None:
        """Start anew from a ratio."""
        self._from, self._n_fallen = ratio, 0

    def reset(self) -> None:
        """Start anew from the first ratio."""
        self.restart(self._first)


class SgLangPlanner(Planner):
    """A prefill batch within an estimate of memory, and the state that this estimate needs; see `SgLang`."""

    def __init__(self, limits: SgLangLimits, first_ratio: float, last_ratio: float, n_ratio_steps: int) -> None:
        super().__init__()
        self.follows = True
        self._limits, self._how = limits, (first_ratio, last_ratio, n_ratio_steps)
        self.ratio = NewTokenRatio(first_ratio, last_ratio, n_ratio_steps)
        self.running = RemainingTokens(limits.most_new_tokens)
        """What the decoding requests may still produce."""
        self._full: i64 = 0
        """Why no prompt is tried until a request leaves, by number; 0: they are."""
        self._has_shrunk = self._has_retracted = False
        self._page: i64 = 1
        self._slots: i64 = 0
        self._room_tokens = 0.0
        self._input_tokens: i64 = 0
        self._chunk_tokens: i64 = 0
        self._n_chunks: i64 = 0

    def __deepcopy__(self, _: dict[int, Any]) -> SgLangPlanner:
        return SgLangPlanner(self._limits, *self._how)

    def plan(self, walk: Walk) -> None:
        """Continue the started prompt, then admit new ones, while tokens, slots and memory last; otherwise decode."""
        self.valid_steps, self.decodes = 0, True
        if self._full and walk.n_decoding and not walk.n_prefilling:
            self.blocked = self._full
            if self._has_shrunk:
                self.valid_steps = 1
            return
        self._begin(walk)
        self.blocked = 0
        if walk.n_prefilling:
            self.blocked = self._continue_chunk(walk)
        if not self.blocked:
            self.blocked = BLOCKS if walk.just_preempted else self._fill(walk)
        self.decodes = self._limits.is_mixed or not self._n_chunks
        # A first chunk that lacks budget in a mixed step may lack blocks some steps later, and that state is kept.
        if self.blocked == BUDGET and not self._n_chunks:
            self.valid_steps = 1

    def _begin(self, walk: Walk) -> None:
        """Note the room left for a batch."""
        limits, n_mixed, slots = self._limits, i64(0), self._limits.slots
        if limits.is_mixed:
            n_mixed = walk.n_decoding * walk.decode_tokens
        self._n_chunks = 0
        self._page = walk.block_size
        self._slots = (most_running(walk) if slots is None else limit(slots)) - walk.n_running
        free_tokens: int = walk.tokens_in(walk.free_blocks)
        self._room_tokens = free_tokens - self.running.total * self.ratio.now
        self._input_tokens = limit(limits.prefill_tokens) - n_mixed
        self._chunk_tokens = limit(limits.chunk_tokens) - n_mixed

    def _continue_chunk(self, walk: Walk) -> i64:
        """Add the next chunk of a started prompt; it was admitted with all its tokens, so only blocks can be short."""
        walk.next()
        n_left: i64 = walk.left_tokens()
        n_tokens: i64 = n_left if n_left < self._chunk_tokens else self._chunk_tokens
        if n_tokens <= 0:
            return BUDGET
        if walk.blocks_for_chunk(n_tokens) > walk.free_blocks:
            return BLOCKS
        self._add(walk, n_tokens, self._new_tokens(walk) if n_tokens == n_left else 0)
        return 0

    def _fill(self, walk: Walk) -> i64:
        """Admit new requests in order; return what blocks the next one."""
        walk.skip_started()
        blocked: i64 = 0
        while not blocked and walk.next():
            blocked = self._take(walk)
        return blocked

    def _take(self, walk: Walk) -> i64:
        """Admit a request: its whole prompt, or as much as fits a chunk."""
        is_alone = walk.free_blocks == walk.total_blocks and not self._n_chunks
        n_left: i64 = walk.left_tokens()
        n_new: i64 = self._new_tokens(walk)
        n_found: i64 = walk.tokens_of_hit()  # not evictable once it holds them
        if self._n_chunks and self._room_tokens <= 0:
            return BLOCKS
        if self._input_tokens <= 0 or self._chunk_tokens <= 0:
            return BUDGET
        if self._slots <= 0:
            return SEATS
        n_needed: int = n_left + n_found + n_new + self._page
        if n_needed >= self._room_tokens and not is_alone:
            return BLOCKS
        n_tokens: i64 = self._tokens_of(n_left, is_alone)
        if not n_tokens:
            return BUDGET
        self._slots -= 1
        found_tokens: int = n_found
        self._room_tokens -= found_tokens
        self._add(walk, n_tokens, n_new if n_tokens == n_left else 0)
        return 0

    def _tokens_of(self, n_left: i64, is_alone: bool) -> i64:
        """Return the prompt tokens to compute: all if their pages fit, else whole pages; 0: it must wait."""
        n_input: i64 = self._in_pages(n_left)
        if n_input > self._chunk_tokens:
            n_paged: i64 = self._chunk_tokens // self._page * self._page
            if not n_paged and is_alone:
                n_paged = self._chunk_tokens
            return n_left if n_left < n_paged else n_paged
        if self._limits.chunk_tokens is not None or not self._n_chunks or n_input < self._input_tokens:
            return n_left
        return 0

    def _add(self, walk: Walk, n_tokens: i64, n_new: i64) -> None:
        """Charge whole pages and one more, and the future output of a prompt that will be complete."""
        n_input: i64 = self._in_pages(n_tokens)
        self._n_chunks += 1
        walk.take(n_tokens, 0)
        n_charged: int = n_input + n_new + self._page
        self._room_tokens -= n_charged
        self._input_tokens -= n_input
        self._chunk_tokens -= n_input

    def _new_tokens(self, walk: Walk) -> i64:
        """Return the output tokens that a request is charged for."""
        n_new: i64 = walk.new_tokens()
        most: i64 = limit(self._limits.most_new_tokens)
        return n_new if n_new < most else most

    def _in_pages(self, n_tokens: i64) -> i64:
        return -(-n_tokens // self._page) * self._page

    # -- calls from the engine -----------------------------------------------------------------------------------------

    def committed(self, n_steps: i64, has_prefill: bool, blocked: i64) -> None:
        """Lower the ratio by decode-only steps; a request that found no room marks the batch as full."""
        if n_steps > 1 and (self._has_shrunk or self._has_retracted):  # only the first step sees these flags
            self.committed(1, has_prefill, blocked)
            n_steps -= 1
        if self._has_shrunk:
            self._full = 0  # a step late: SGLang tries prefill before it removes finished requests
        elif 0 < blocked < BUDGET and len(self.running) and not self._has_retracted:
            self._full = blocked
        if not has_prefill and not self._has_retracted:
            self.ratio.fall(n_steps)
        self._has_shrunk = self._has_retracted = False
        self.running.advance(n_steps)

    def joined(self, member: Hashable, prompt_tokens: int, most_tokens: int, emitted_tokens: int) -> None:
        """Charge one more request."""
        self.running.join(member, prompt_tokens, most_tokens, emitted_tokens)

    def accepted(self, member: Hashable, n_tokens: int) -> None:
        """Charge a request for fewer remaining tokens."""
        self.running.accept(member, n_tokens)

    def left(self, member: Hashable) -> None:
        """Charge one less; a full batch may be tried again."""
        if member in self.running:
            self.running.leave(member)
            self._has_shrunk = self._full != 0
        else:
            self.abandoned()

    def abandoned(self) -> None:
        """Allow a full batch to be tried again; the request was not charged."""
        self._full, self._has_shrunk = 0, False

    def preempted(self) -> None:
        """Set the ratio to the used part of the answers of the remaining requests, plus some steps."""
        emitted_tokens, most_tokens = self.running.sums()
        soon_tokens = emitted_tokens + self._limits.retract_steps * len(self.running)
        self.ratio.restart(min(soon_tokens / (most_tokens + 1), 1.0))
        self._full, self._has_shrunk, self._has_retracted = 0, False, True

    def idle(self) -> None:
        """Reset the ratio."""
        self.ratio.reset()

    def victim(self) -> Hashable | None:
        """Return the request with the fewest output tokens; None, a started prompt, only if one request decodes."""
        return self.running.fewest_tokens() if len(self.running) else None


def most_running(walk: Walk) -> int:
    """Return SGLang's default of max_running_requests (model_runner.py): 512 longest requests, within 2048 and 4096."""
    n: int = walk.tokens_in(walk.total_blocks) * 512 // walk.max_model_len
    return min(max(n, 2048), 4096)
