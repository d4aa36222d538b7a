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
    """What a member does until it is done, known when it joins."""

    tokens_before: NDArray[np.int64]
    """Produced since it joined, before each of its steps."""
    n_steps: int
    n_tokens: int
    """Of all its steps; the accepted run in which it ends is cut."""
    stored_tokens: int
    """In the cache when it joined."""
    most_slots: int
    """Tokens that it ever has blocks for."""
    first_step: int
    """Of its own steps, preemptions passed over."""


class SpeculativeCohort(Cohort):
    """Requests that produce one token or several a step, as many as `acceptance` says.

    Before a step a member has blocks for what is stored and `n_slots` tokens more, but never for more than its prompt
    and max_tokens, and it keeps them whatever is accepted (vLLM V1, KVCacheManager.allocate_slots).

    Invariant: for each step to come, `_keys` holds the sum of stored tokens + 1 and `_held` that of blocks, over the
    members that will be in it; kv_tokens and `_held_blocks` are those sums of now.
    """

    __slots__ = (
        "_acceptance",
        "_courses",
        "_ending_keys",
        "_ends_at",
        "_held",
        "_held_blocks",
        "_kept_blocks",
        "_keys",
        "_n_slots",
        "_origin",
        "_resume_at",
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
        self._keys = np.zeros(FIRST_STEPS, np.int64)
        self._held = np.zeros(FIRST_STEPS, np.int64)
        self._held_blocks = 0
        self._ending_keys: dict[int, int] = {}
        """By step: stored tokens + 1 of those who have just made their last one."""
        self._origin = 0
        """The step that the calendars begin with."""
        self._ends_at = 0
        """The step at which all who ever joined are done."""

    def join(self, request: Request, n_left: int) -> None:
        """Add a request that has n_left tokens to produce, at least one, all prefilled."""
        step, stored_tokens = self.step, request.prefilled_tokens
        first_step = self._resume_at.pop(request.row, 0)
        before = self._acceptance.tokens_before(request.row, first_step, n_left)
        n_steps = int(before.searchsorted(n_left))
        most_slots = request.prompt_tokens + request.max_tokens
        course = Course(before, n_steps, n_left, stored_tokens, most_slots, first_step)
        finish_step = step + n_steps
        self._reach(finish_step)
        self._add(course, 0, 1)
        self._ending_keys[finish_step] = self._ending_keys.get(finish_step, 0) + stored_tokens + n_left + 1
        self._courses[request] = course
        self._held_blocks += -(-stored_tokens // self.block_size)
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
        n_tokens = course.n_tokens
        finish_step = request.join_step + course.n_steps
        if n_steps < course.n_steps:
            n_tokens = int(course.tokens_before[n_steps])
            self._add(course, n_steps, -1)
            self._resume_at[request.row] = course.first_step + n_steps
        kv_tokens = course.stored_tokens + n_tokens
        self._ending_keys[finish_step] -= course.stored_tokens + course.n_tokens + 1
        if not self._ending_keys[finish_step]:
            del self._ending_keys[finish_step]
        slots = course.stored_tokens
        if n_steps:
            slots = min(slots + int(course.tokens_before[n_steps - 1]) + self._n_slots, course.most_slots)
        n_held = -(-slots // self.block_size)
        self._held_blocks -= n_held
        self._kept_blocks[request] = n_held - -(-kv_tokens // self.block_size)
        request.emitted_tokens += n_tokens
        self.n -= 1
        self.kv_tokens -= kv_tokens + 1
        return kv_tokens

    def pop_kept_blocks(self, request: Request) -> int:
        """Blocks that a request which has left had beyond what it stored; to be asked once, 0 for one never here."""
        return self._kept_blocks.pop(request, 0)

    def advance(self, n_steps: int) -> int:
        """Make so many steps, at most to the next finish; returns the blocks that they begin."""
        n_blocks = self.blocks_to_grow(n_steps)
        self._held_blocks += n_blocks
        self.step += n_steps
        self.kv_tokens = int(self._keys[self.step - self._origin]) + self._ending_keys.get(self.step, 0)
        return n_blocks

    def keys_ahead(self, n_steps: int) -> NDArray[np.int64]:
        """What kv_tokens are in each of the next n_steps, at most to the next finish; not to be changed."""
        at = self.step - self._origin
        return self._keys[at : at + n_steps]

    def held_ahead(self, n_steps: int) -> NDArray[np.int64]:
        """Blocks that each of the next n_steps and those before it begin, at most to the next finish."""
        at = self.step - self._origin
        return self._held[at : at + n_steps] - self._held_blocks

    def tokens_of_next(self) -> int:
        """What all members together produce in the next step."""
        after = self.step + 1
        return int(self._keys[after - self._origin]) + self._ending_keys.get(after, 0) - self.kv_tokens

    def blocks_to_grow(self, n_steps: int) -> int:
        """Blocks that the next n_steps begin, at most to the next finish."""
        if not n_steps:
            return 0
        return int(self._held[self.step - self._origin + n_steps - 1]) - self._held_blocks

    def steps_within(self, free_blocks: int) -> int:
        """The most steps whose new blocks are at most free_blocks, up to the next finish. Needs a member."""
        held = self._held[self.step - self._origin : self.next_finish_step - self._origin]
        return int(held.searchsorted(self._held_blocks + free_blocks, side="right"))

    def _add(self, course: Course, first: int, sign: int) -> None:
        """Put what a member will do from its step number `first` on, which is the next, into the calendars, or take it
        out."""
        at = self.step - self._origin
        keys = course.tokens_before[first : course.n_steps] + (course.stored_tokens + 1)
        slots = keys + (self._n_slots - 1)
        if course.stored_tokens + course.n_tokens + self._n_slots > course.most_slots:
            np.minimum(slots, course.most_slots, out=slots)
        slots += self.block_size - 1
        slots //= self.block_size
        if sign > 0:
            self._keys[at : at + len(keys)] += keys
            self._held[at : at + len(keys)] += slots
        else:
            self._keys[at : at + len(keys)] -= keys
            self._held[at : at + len(keys)] -= slots

    def _reach(self, step: int) -> None:
        """Make the calendars reach to a step, that one included."""
        self._ends_at = max(self._ends_at, step)
        if self._ends_at - self._origin < len(self._keys):
            return
        at = self.step - self._origin
        n_steps = max(len(self._keys), 2 * (self._ends_at - self.step) + 2)
        for name in ("_keys", "_held"):
            fresh = np.zeros(n_steps, np.int64)
            ahead = getattr(self, name)[at:]
            fresh[: len(ahead)] = ahead
            setattr(self, name, fresh)
        self._origin = self.step
