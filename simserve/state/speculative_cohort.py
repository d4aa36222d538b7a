"""SpeculativeCohort: decoding requests that produce one token per step plus their accepted proposals."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.state.acceptance import Acceptance
from simserve.state.cohort import NO_FINISH, Cohort, IdDrops, NIds
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import DECODE, Request

FIRST_STEPS = 4096
"""Initial length of a calendar."""


@dataclass(slots=True)
class Course:
    """The planned steps of a member until it finishes, known when it joins."""

    tokens_before: NDArray[np.int64]
    """Tokens produced since it joined, before each of its steps."""
    n_steps: int
    n_tokens: int
    """Tokens of all its steps; the last accepted run is cut at its end."""
    stored_tokens: int
    """Tokens in the cache when it joined."""
    most_slots: int
    """Most tokens it ever has blocks for."""
    first_step: int
    """Number of its own first step, counted across preemptions."""
    join_step: int
    """Step of the cohort when it joined."""
    counted_tokens: int = 0
    """Tokens of its first step, if counted as produced before it joined."""

    def tokens_after(self, n_steps: int) -> int:
        """Return the tokens produced since it joined, after n_steps."""
        return self.n_tokens if n_steps >= self.n_steps else int(self.tokens_before[n_steps])


class SpeculativeCohort(Cohort):
    """Requests that produce one or several tokens per step, as `acceptance` says.

    Before a step a member has blocks for its stored tokens and `n_slots` more, but never for more than its prompt and
    max_tokens, and it keeps them whatever is accepted (vLLM V1, KVCacheManager.allocate_slots).

    Invariant: for each future step, `_keys` is the sum of stored tokens + 1 and `_held` that of blocks, over the
    members in that step; kv_tokens and `held_blocks` are the current sums. Likewise `_freed` counts the blocks that
    windows free at the end of the step, and `_window_keys` has a row of keys for each window.
    """

    def __init__(self, layers: LayerBlocks, acceptance: Acceptance, n_slots: int, *, n_ids: NIds | None = None) -> None:
        super().__init__(layers.id_tokens)
        self.layers = layers
        self._windows = [group.layers for group in layers.windows]
        self._is_plain = not layers.n_states and layers.n_by_tokens == {self.block_size: 1}
        """A block for each block_size tokens, and no others."""
        self._rounds_up = self.block_size - 1 if self._is_plain else 0
        self.drops = None if n_ids is None else IdDrops(layers, n_ids, self.stored_at, self.step_with)
        self.n_dropped = 0
        """Blocks that windows freed in the last advance, without those of members due in its last step."""
        self._acceptance = acceptance
        self.n_slots = n_slots
        self.n_tokens = acceptance.n_proposed + 1
        self._courses: dict[Request, Course] = {}
        self._resume_at: dict[int, int] = {}
        """Steps done by each preempted request, by row."""
        self._keys = np.zeros(FIRST_STEPS, np.int64)
        self._held = np.zeros(FIRST_STEPS, np.int64)
        self._freed = np.zeros(FIRST_STEPS, np.int64)
        self._window_keys = np.zeros((len(self._windows), FIRST_STEPS), np.int64)
        self.held_blocks = 0
        self._ending_keys: dict[int, int] = {}
        """Sum of stored tokens + 1 of members that just made their last step, by step."""
        self._origin = 0
        """First step of the calendars."""
        self._ends_at = 0
        """Step at which all members so far will have finished."""

    def steps_to_bend(self) -> int:
        """Return the steps after which a member next leaves a block with an id."""
        return NO_FINISH if self.drops is None else self.drops.next_step - self.step

    def join(self, request: Request, n_left: int) -> int:
        """Add a prefilled request with n_left tokens, at least one, to produce; return the step that finishes it."""
        step, stored_tokens = self.step, request.prefilled_tokens
        first_step = self._resume_at.pop(request.row, 0)
        before = self._acceptance.tokens_before(request.row, first_step, n_left)
        n_steps = int(before.searchsorted(n_left))
        most_slots = request.prompt_tokens + request.max_tokens
        course = Course(before, n_steps, n_left, stored_tokens, most_slots, first_step, step)
        finish_step = step + n_steps
        self._reach(finish_step)
        self._add(course, 0, 1)
        self._ending_keys[finish_step] = self._ending_keys.get(finish_step, 0) + stored_tokens + n_left + 1
        self._courses[request] = course
        self.held_blocks += self.layers.held(stored_tokens)
        request.phase = DECODE
        request.join_step = step
        self.n += 1
        self.kv_tokens += stored_tokens + 1
        if self.drops is not None:
            self.drops.join(request, stored_tokens)
        return finish_step

    def stored_tokens(self, request: Request) -> int:
        """Return the tokens that a member holds in the cache."""
        return self.stored_at(request, self.step)

    def stored_at(self, request: Request, step: int) -> int:
        """Return the tokens that a member holds at a value of `step` up to its finish."""
        course = self._courses[request]
        return course.stored_tokens + course.tokens_after(step - course.join_step)

    def step_with(self, request: Request, n_tokens: int) -> int:
        """Return the value of `step` at which a member first holds n_tokens, more than now."""
        course = self._courses[request]
        n_more = n_tokens - course.stored_tokens
        if n_more > course.n_tokens:
            return NO_FINISH
        return course.join_step + int(course.tokens_before[: course.n_steps].searchsorted(n_more))

    def count_first(self, request: Request) -> None:
        """Count the tokens of a member's first step, which is about to end, as produced before it joined."""
        course = self._courses[request]
        course.counted_tokens = course.tokens_after(1)
        request.emitted_tokens += course.counted_tokens
        request.join_step = self.step + 1

    def leave(self, request: Request) -> tuple[int, int]:
        """Remove a member; return the tokens it holds in the cache, and its blocks beyond these."""
        if self.drops is not None:
            self.drops.leave(request)
        course = self._courses.pop(request)
        n_steps = self.step - course.join_step
        n_tokens = course.tokens_after(n_steps)
        finish_step = course.join_step + course.n_steps
        if n_steps < course.n_steps:
            self._add(course, n_steps, -1)
            self._resume_at[request.row] = course.first_step + n_steps
        kv_tokens = course.stored_tokens + n_tokens
        self._ending_keys[finish_step] -= course.stored_tokens + course.n_tokens + 1
        if not self._ending_keys[finish_step]:
            del self._ending_keys[finish_step]
        slots = course.stored_tokens
        if n_steps:
            slots = min(slots + int(course.tokens_before[n_steps - 1]) + self.n_slots, course.most_slots)
        n_kept = self.layers.filled(slots) - self.layers.filled(kv_tokens)
        self.held_blocks -= self.layers.held(kv_tokens) + n_kept
        request.emitted_tokens += n_tokens - course.counted_tokens
        self.n -= 1
        self.kv_tokens -= kv_tokens + 1
        return kv_tokens, n_kept

    def advance(self, n_steps: int) -> int:
        """Advance n_steps steps, at most to the next finish; return the blocks they begin."""
        n_blocks = self.blocks_begun(n_steps)
        self.n_dropped = self.blocks_dropped(n_steps)
        self.held_blocks += n_blocks - self.n_dropped
        self.step += n_steps
        if self.drops is not None:
            self.n_dropped -= self.drops.advance(self.step)
        self.kv_tokens = int(self._keys[self.step - self._origin]) + self._ending_keys.get(self.step, 0)
        return n_blocks

    def keys_ahead(self, n_steps: int) -> NDArray[np.int64]:
        """Return kv_tokens of each of the next n_steps, at most to the next finish. Read-only."""
        at = self.step - self._origin
        return self._keys[at : at + n_steps]

    def held_ahead(self, n_steps: int) -> NDArray[np.int64]:
        """Return held_blocks after each of the next n_steps, at most to the next finish. Read-only."""
        at = self.step - self._origin
        held = self._held[at : at + n_steps]
        return held - self._freed[at : at + n_steps] if self._windows else held

    @property
    def window_keys(self) -> list[int]:
        """Sum of the keys that each member attends in the next step, by window."""
        keys: list[int] = self._window_keys[:, self.step - self._origin].tolist()
        return keys

    def window_keys_ahead(self, n_steps: int) -> NDArray[np.int64]:
        """Return window_keys of each of the next n_steps, `(n_windows, n_steps)`, at most to the next finish."""
        at = self.step - self._origin
        return self._window_keys[:, at : at + n_steps]

    def keys_of_next(self) -> int:
        """Return the keys that all members together attend in the next step."""
        return int(self._keys[self.step - self._origin])

    def tokens_of_next(self) -> int:
        """Return the tokens that all members together produce in the next step."""
        after = self.step + 1
        return int(self._keys[after - self._origin]) + self._ending_keys.get(after, 0) - self.kv_tokens

    def accepted(self, n_steps: int) -> Iterator[tuple[Request, int]]:
        """Yield each member that produces more than one token a step in the next n_steps, and how many more."""
        for request, course in self._courses.items():
            n_done = self.step - course.join_step
            n_more = course.tokens_after(n_done + n_steps) - course.tokens_after(n_done) - n_steps
            if n_more:
                yield request, n_more

    def blocks_to_grow(self, n_steps: int) -> int:
        """Return the blocks that members hold more in the last of the next n_steps, at most to the next finish."""
        if not n_steps:
            return 0
        return int(self._held[self.step - self._origin + n_steps - 1]) - self.held_blocks

    def blocks_begun(self, n_steps: int) -> int:
        """Return the blocks that the next n_steps begin, whatever windows free meanwhile."""
        return self.blocks_to_grow(n_steps) + self.blocks_dropped(n_steps - 1)

    def blocks_dropped(self, n_steps: int) -> int:
        """Return the blocks that windows free at the ends of the next n_steps."""
        at = self.step - self._origin
        return int(self._freed[at : max(at, at + n_steps)].sum()) if self._windows else 0

    def blocks_of_next(self) -> int:
        """Return the blocks that the next step begins."""
        return self.blocks_to_grow(1)

    def steps_within(self, free_blocks: int) -> int:
        """Return the most steps that begin at most free_blocks blocks, up to the next finish. Needs a member."""
        held = self._held[self.step - self._origin : self.next_finish_step - self._origin]
        if self._windows:
            held = np.maximum.accumulate(held)
        return int(held.searchsorted(self.held_blocks + free_blocks, side="right"))

    def _add(self, course: Course, first: int, sign: int) -> None:
        """Add a member's steps from its next one, number `first`, to the calendars, or remove them."""
        at = self.step - self._origin
        keys = course.tokens_before[first : course.n_steps] + (course.stored_tokens + 1)
        up = self._rounds_up
        slots = keys + (self.n_slots - 1 + up)
        if course.stored_tokens + course.n_tokens + self.n_slots > course.most_slots:
            np.minimum(slots, course.most_slots + up, out=slots)
        if self._is_plain:
            slots //= self.block_size
            blocks = slots
        else:
            blocks = self.layers.filled(slots) + self.layers.n_states
        if self._windows:
            blocks = blocks - self._add_windows(course, keys, at, sign)
        # fast: an assignment to a slice, which a sum in place ends with, would copy it onto itself
        keys_ahead, held_ahead = self._keys[at : at + len(keys)], self._held[at : at + len(keys)]
        if sign > 0:
            keys_ahead += keys
            held_ahead += blocks
        else:
            keys_ahead -= keys
            held_ahead -= blocks

    def _add_windows(self, course: Course, keys: NDArray[np.int64], at: int, sign: int) -> NDArray[np.int64]:
        """Add a member's keys in windows to the calendars, or remove them; return the blocks that windows have freed
        before each of its steps."""
        if not len(keys):
            return keys
        after = np.append(keys[1:] - 1, course.stored_tokens + course.n_tokens)
        dropped = self.layers.dropped(keys - 1)
        self._freed[at : at + len(keys)] += sign * (self.layers.dropped(after) - dropped)
        for i, group in enumerate(self._windows):
            self._window_keys[i, at : at + len(keys)] += sign * (keys - group.first_kept(keys - 1))
        return dropped  # type: ignore[no-any-return]

    def _reach(self, step: int) -> None:
        """Extend the calendars to include a step."""
        self._ends_at = max(self._ends_at, step)
        if self._ends_at - self._origin < len(self._keys):
            return
        at = self.step - self._origin
        n_steps = max(len(self._keys), 2 * (self._ends_at - self.step) + 2)
        for name in ("_keys", "_held", "_freed", "_window_keys"):
            ahead = getattr(self, name)[..., at:]
            fresh = np.zeros((*ahead.shape[:-1], n_steps), np.int64)
            fresh[..., : ahead.shape[-1]] = ahead
            setattr(self, name, fresh)
        self._origin = self.step
