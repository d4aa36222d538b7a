"""SpeculativeCohort: requests that each produce one token a step and those of its proposals that are accepted."""

from dataclasses import dataclass
from heapq import heappush

import numpy as np
from numpy.typing import NDArray

from simserve.state.acceptance import Acceptance
from simserve.state.cohort import Cohort
from simserve.state.request import DECODE, Request

FIRST_STEPS = 4096
"""Entries that a calendar has at first."""


@dataclass(slots=True)
class Course:
    """What a member does in each of its steps until it is done, known when it joins; `(n_steps,)` each."""

    tokens: NDArray[np.int64]
    blocks: NDArray[np.int64]
    stored_tokens: int
    """In the cache when it joined."""
    first_step: int
    """Of its own steps, preemptions passed over."""
    n_tokens: int
    n_blocks: int
    """Of all steps."""


class SpeculativeCohort(Cohort):
    """Requests that produce one token or several a step, as many as `acceptance` says.

    Before a step a member has blocks for what is stored and `n_slots` tokens more, but never for more than its prompt
    and max_tokens, and it keeps them whatever is accepted (vLLM V1, KVCacheManager.allocate_slots).

    Invariant: kv_tokens = sum over members of stored tokens + 1; the calendars hold the sums of what the members will
    do in each step to come.
    """

    __slots__ = (
        "_acceptance",
        "_blocks",
        "_courses",
        "_ends_at",
        "_kept_blocks",
        "_n_slots",
        "_origin",
        "_resume_at",
        "_tokens",
    )

    def __init__(self, block_size: int, acceptance: Acceptance, n_slots: int) -> None:
        super().__init__(block_size)
        self._acceptance = acceptance
        self._n_slots = n_slots
        self._courses: dict[Request, Course] = {}
        self._resume_at: dict[int, int] = {}
        """Of preempted requests, by row: how many steps they have had."""
        self._kept_blocks: dict[Request, int] = {}
        """Of those who have just left: blocks beyond what is stored."""
        self._tokens = np.zeros(FIRST_STEPS, np.int64)
        self._blocks = np.zeros(FIRST_STEPS, np.int64)
        self._origin = 0
        """The step that the calendars begin with."""
        self._ends_at = 0
        """The step at which all who ever joined are done."""

    def join(self, request: Request, n_left: int) -> None:
        """Add a request that has n_left tokens to produce, at least one, all prefilled."""
        step, stored_tokens = self.step, request.prefilled_tokens
        course = self._course(request, stored_tokens, n_left)
        finish_step = step + len(course.tokens)
        at = self._room_until(finish_step)
        self._tokens[at : at + len(course.tokens)] += course.tokens
        self._blocks[at : at + len(course.tokens)] += course.blocks
        self._courses[request] = course
        request.phase = DECODE
        request.join_step = step
        self.n += 1
        self.kv_tokens += stored_tokens + 1
        heappush(self._finishes, (finish_step, self._n_joins, request))
        self._n_joins += 1
        if finish_step < self.next_finish_step:
            self.next_finish_step = finish_step

    def leave(self, request: Request) -> int:
        """Take a member out; returns the tokens it holds in the cache."""
        course = self._courses.pop(request)
        n_steps = self.step - request.join_step
        n_tokens, n_blocks = course.n_tokens, course.n_blocks
        if n_steps < len(course.tokens):
            n_tokens, n_blocks = int(course.tokens[:n_steps].sum()), int(course.blocks[:n_steps].sum())
            at = self.step - self._origin
            self._tokens[at : at + len(course.tokens) - n_steps] -= course.tokens[n_steps:]
            self._blocks[at : at + len(course.tokens) - n_steps] -= course.blocks[n_steps:]
            self._resume_at[request.row] = course.first_step + n_steps
        kv_tokens = course.stored_tokens + n_tokens
        request.emitted_tokens += n_tokens
        self.n -= 1
        self.kv_tokens -= kv_tokens + 1
        self._kept_blocks[request] = self._filled(course.stored_tokens) + n_blocks - self._filled(kv_tokens)
        return kv_tokens

    def pop_kept_blocks(self, request: Request) -> int:
        """Blocks that a request which has left had beyond what it stored; to be asked once, 0 for one never here."""
        return self._kept_blocks.pop(request, 0)

    def advance(self, n_steps: int) -> int:
        """Make so many steps; returns the blocks that they begin."""
        at = self.step - self._origin
        self.step += n_steps
        if n_steps == 1:
            self.kv_tokens += int(self._tokens[at])
            return int(self._blocks[at])
        self.kv_tokens += int(self._tokens[at : at + n_steps].sum())
        return int(self._blocks[at : at + n_steps].sum())

    def tokens_ahead(self, n_steps: int) -> NDArray[np.int64]:
        """What all members together produce in each of the next n_steps, none of which may be beyond a finish."""
        at = self.step - self._origin
        return self._tokens[at : at + n_steps]

    def blocks_to_grow(self, n_steps: int) -> int:
        """Blocks that the next n_steps begin."""
        at = self.step - self._origin
        return int(self._blocks[at]) if n_steps == 1 else int(self._blocks[at : at + n_steps].sum())

    def steps_within(self, free_blocks: int) -> int:
        """The most steps whose new blocks are at most free_blocks, as far as anybody has a step to make."""
        at = self.step - self._origin
        begun = np.cumsum(self._blocks[at : self._ends_at - self._origin])
        return int(begun.searchsorted(free_blocks, side="right"))

    def _course(self, request: Request, stored_tokens: int, n_left: int) -> Course:
        """All that a member will do; the accepted run in which it ends is cut."""
        first_step = self._resume_at.pop(request.row, 0)
        tokens = self._acceptance.accepted(request.row, first_step, n_left)
        tokens += 1
        stored = tokens.cumsum()
        n_steps = int(stored.searchsorted(n_left)) + 1
        tokens, stored = tokens[:n_steps], stored[:n_steps]
        tokens[-1] -= stored[-1] - n_left
        stored[-1] = n_left
        stored += stored_tokens - tokens
        stored += self._n_slots
        np.minimum(stored, request.prompt_tokens + request.max_tokens, out=stored)
        stored += self.block_size - 1
        stored //= self.block_size
        blocks = stored.copy()
        blocks[1:] -= stored[:-1]
        before = self._filled(stored_tokens)
        blocks[0] -= before
        return Course(tokens, blocks, stored_tokens, first_step, n_left, int(stored[-1]) - before)

    def _filled(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def _room_until(self, step: int) -> int:
        """Make calendars reach to a step; returns the place of the present one."""
        if step > self._ends_at:
            self._ends_at = step
        at = self.step - self._origin
        if self._ends_at - self._origin < len(self._tokens):
            return at
        n_steps = max(len(self._tokens), 2 * (self._ends_at - self.step) + 2)
        for name in ("_tokens", "_blocks"):
            fresh = np.zeros(n_steps, np.int64)
            ahead = getattr(self, name)[at:]
            fresh[: len(ahead)] = ahead
            setattr(self, name, fresh)
        self._origin = self.step
        return 0
