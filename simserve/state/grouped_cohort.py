"""GroupedCohort: decoding requests of a model with layers that keep different tokens, one token per step."""

from collections.abc import Hashable
from heapq import heappop, heappush

from simserve.state.block_counts import GroupCounts
from simserve.state.cohort import NO_FINISH, Cohort, IdDrops, NIds
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import Request


class GroupedCohort(Cohort):
    """Requests that each produce one token per step, with blocks and keys by group of layers.

    Between two bends, the keys of every group grow by a constant per step, and windows free the same blocks in every
    block_size steps: those of the largest blocks. A member bends as it fills a window, and whenever it enters another
    chunk.

    Invariant: `_window_keys` has, for each window, the sum of the keys that each member attends in the next step;
    `_n_rising` of them attend one more in every step; `_frees` are the blocks that full windows free in step i modulo
    the block size.
    """

    def __init__(self, layers: LayerBlocks, n_ids: NIds | None = None) -> None:
        super().__init__(layers.common_tokens)
        self._windows, self._sizes = layers.windows, [*layers.n_by_tokens.items()]
        self._n_growing = self._sizes[0][1] if len(self._sizes) == 1 else 0
        """Blocks that a member begins at a time, where all are of one size; else 0."""
        self.drops = None if n_ids is None else IdDrops(layers, n_ids, self.stored_at, self.step_with)
        self._window_keys = [0] * len(self._windows)
        self._n_rising = [0] * len(self._windows)
        self._frees = [0] * self.block_size
        self._counts = GroupCounts(layers)
        self._bends: list[tuple[int, int, int, Hashable, int]] = []
        """(step, number of the join, window, member, its stored tokens minus the step) of bends to come, and of some
        members that have left."""
        self._n_joins = 0
        self._joined: dict[Hashable, int] = {}
        """Number of the join of each member."""
        self.next_bend_step = NO_FINISH
        """Value of `step` at which the next member bends."""
        self.n_dropped = 0
        """Blocks that windows freed in the last advance, without those of members due in its last step."""

    @property
    def window_keys(self) -> list[int]:
        """Sum of the keys that each member attends in the next step, by group of layers with a window."""
        return self._window_keys

    @property
    def growth(self) -> list[int]:
        """Keys that each window gains per step until the next bend."""
        return self._n_rising

    def steps_to_bend(self) -> int:
        """Return the steps after which the next member bends."""
        return self.next_bend_step - self.step

    def stored_at(self, request: Request, step: int) -> int:
        """Return the tokens that a member holds at a value of `step` up to its finish."""
        return request.kv_offset + step

    def step_with(self, request: Request, n_tokens: int) -> int:
        """Return the value of `step` at which a member first holds n_tokens, more than now."""
        return n_tokens - request.kv_offset

    def join_windows(self, member: Hashable, kv_offset: int, request: Request | None) -> None:
        """Count a new member in windows; kv_offset: its stored tokens minus the step.

        request: a member of which blocks may have an id; None: none of its blocks has one.
        """
        number = self._n_joins = self._n_joins + 1
        self._joined[member] = number
        n_tokens = kv_offset + self.step
        for i, group in enumerate(self._windows):
            self._count(i, n_tokens, 1)
            size = group.layers.window or 0
            if group.layers.kind == "chunked":
                heappush(self._bends, (self.step + size - n_tokens % size, number, i, member, kv_offset))
            elif n_tokens + 1 < size:
                heappush(self._bends, (self.step + size - 1 - n_tokens, number, i, member, kv_offset))
        if self.drops is not None and request is not None:
            self.drops.join(request, n_tokens)
        self._find_bend()

    def leave_windows(self, member: Hashable, n_tokens: int, request: Request | None) -> None:
        """Count a member with n_tokens no longer in windows."""
        del self._joined[member]
        for i in range(len(self._windows)):
            self._count(i, n_tokens, -1)
        if self.drops is not None and request is not None:
            self.drops.leave(request)
        self._find_bend()

    def _count(self, i: int, n_tokens: int, sign: int) -> None:
        """Add a member with n_tokens to the sums of a window, or remove it."""
        layers = self._windows[i].layers
        self._window_keys[i] += sign * self._counts.keys(i, n_tokens + 1)
        if layers.kind == "chunked" or n_tokens + 1 < (layers.window or 0):
            self._n_rising[i] += sign
        else:
            self._free(i, n_tokens, sign)

    def _free(self, i: int, n_tokens: int, sign: int) -> None:
        """Add a member with n_tokens, or remove it, where a full window frees one of its blocks as a step ends."""
        group = self._windows[i]
        first = (self.step + (group.layers.window or 0) - 2 - n_tokens) % group.tokens
        for residue in range(first, self.block_size, group.tokens):
            self._frees[residue] += sign * group.n_parts

    def _find_bend(self) -> None:
        bends, joined = self._bends, self._joined
        while bends and joined.get(bends[0][3]) != bends[0][1]:
            heappop(bends)
        self.next_bend_step = bends[0][0] if bends else NO_FINISH

    def advance(self, n_steps: int) -> int:
        """Advance n_steps steps, at most to the next bend; return the blocks they begin."""
        n_blocks = self.blocks_begun(n_steps)
        self.n_dropped = self.blocks_dropped(n_steps)
        self.step += n_steps
        self.kv_tokens += n_steps * self.n
        for i, n in enumerate(self._n_rising):
            self._window_keys[i] += n_steps * n
        while self._bends and self._bends[0][0] <= self.step:
            _, number, i, member, kv_offset = heappop(self._bends)
            group = self._windows[i]
            size, n_parts = group.layers.window or 0, group.n_parts
            if group.layers.kind == "chunked":
                n_tokens = kv_offset + self.step
                self._window_keys[i] -= size
                self.n_dropped += n_parts * (n_tokens // group.tokens - (n_tokens - size) // group.tokens)
                heappush(self._bends, (self.step + size, number, i, member, kv_offset))
            else:
                self._n_rising[i] -= 1
                self._free(i, size - 1, 1)
            self._find_bend()
        if self.drops is not None:
            self.n_dropped -= self.drops.advance(self.step)
        return n_blocks

    def blocks_begun(self, n_steps: int) -> int:
        """Return the blocks that the next n_steps begin, whatever windows free meanwhile."""
        if self._n_growing:
            return self._n_growing * super().blocks_to_grow(n_steps)
        n_cycles, rest = divmod(n_steps, self.block_size)
        in_cycle = sum(self._begun_at(i) for i in range(self.block_size)) if n_cycles else 0
        return n_cycles * in_cycle + sum(self._begun_at(self.step + i) for i in range(rest))

    def _begun_at(self, step: int) -> int:
        """Return the blocks that members begin in a step."""
        if self._n_growing:
            return self._n_growing * self.crossings[step % self.block_size]
        n_blocks = 0
        for size, n in self._sizes:
            for i in range(step % size, self.block_size, size):
                n_blocks += n * self.crossings[i]
        return n_blocks

    def blocks_dropped(self, n_steps: int) -> int:
        """Return the blocks that full windows free at the ends of the next n_steps."""
        cycles, rest = divmod(n_steps, self.block_size)
        at = self.step % self.block_size
        few = sum(self._frees[(at + i) % self.block_size] for i in range(rest))
        return few + (cycles * sum(self._frees) if cycles else 0)

    def blocks_to_grow(self, n_steps: int) -> int:
        """Return the blocks that members hold more in the last of the next n_steps, at most to the next bend."""
        return self.blocks_begun(n_steps) - (self.blocks_dropped(n_steps - 1) if n_steps else 0)

    def blocks_of_next(self) -> int:
        """Return the blocks that the next step begins."""
        return self._begun_at(self.step)

    def steps_within(self, free_blocks: int) -> int:
        """Return the most steps, at most to the next bend or to one after which windows leave a block with an id, which
        others may share, with at most free_blocks blocks more. Needs a member."""
        next_drop_step = NO_FINISH if self.drops is None else self.drops.next_step
        most = min(self.next_bend_step, next_drop_step) - self.step
        held, held_in = 0, []
        for i in range(self.block_size):
            residue = (self.step + i) % self.block_size
            held += self._begun_at(residue)
            held_in.append(held)
            held -= self._frees[residue]
        peak, n_cycles = max(held_in), 0
        if peak <= free_blocks:
            n_cycles = (free_blocks - peak) // held + 1 if held else most // self.block_size + 1
        n_steps = n_cycles * self.block_size
        for held_then in held_in:
            if n_cycles * held + held_then > free_blocks or n_steps >= most:
                break
            n_steps += 1
        return min(n_steps, most)
