"""Cohort: the requests of a replica that decode in lockstep, kept as aggregates, not as a loop."""

from heapq import heapify, heappop, heappush

from simserve.state.request import DECODE, Request

NOBODY_FINISHES = 1 << 62
"""Later than any step."""


class Cohort:
    """Requests that each produce one token a step.

    A request that joins with K tokens in the cache attends K + 1 keys in its next step (the new token's key is
    written in that step), K + 2 in the one after, and so on.

    Invariant: kv_tokens = sum of the keys that each member attends in the next step; sum(crossings) = 2 n.
    """

    __slots__ = (
        "_finishes",
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
        """Decode steps done by this cohort since the start of the run."""
        self.n = 0
        self.kv_tokens = 0
        self.crossings = [0] * (2 * block_size)
        """How many members begin a new block in the steps whose number is i modulo the block size, twice over, so
        that a run of up to block_size steps is one slice."""
        self.lingering: list[Request] = []
        """Members that have finished and stay, at full cost, until the whole batch has."""
        self._finishes: list[tuple[int, int, Request]] = []
        self._n_joins = 0
        self.next_finish_step = NOBODY_FINISHES
        """The value of `step` at which the next member will have produced all its tokens."""

    def join(self, request: Request, n_left: int) -> None:
        """Add a request that has n_left tokens to produce, all prefilled; with none left it will linger."""
        step = self.step
        kv_tokens = request.padding_tokens + request.prefilled_tokens
        request.phase = DECODE
        request.kv_offset = kv_tokens - step
        request.join_step = step
        self.n += 1
        self.kv_tokens += kv_tokens + 1
        residue = (step - kv_tokens) % self.block_size
        self.crossings[residue] += 1
        self.crossings[residue + self.block_size] += 1
        if n_left:
            finish_step = step + n_left
            heappush(self._finishes, (finish_step, self._n_joins, request))
            self._n_joins += 1
            if finish_step < self.next_finish_step:
                self.next_finish_step = finish_step

    def leave(self, request: Request) -> int:
        """Take a member out; returns the tokens it holds in the cache, padding included."""
        kv_tokens = request.kv_offset + self.step
        request.emitted_tokens += self.step - request.join_step
        self.n -= 1
        self.kv_tokens -= kv_tokens + 1
        residue = -request.kv_offset % self.block_size
        self.crossings[residue] -= 1
        self.crossings[residue + self.block_size] -= 1
        return kv_tokens

    def drop(self, request: Request) -> int:
        """Take out a member that has not finished; like `leave`, and its finish is forgotten."""
        kv_tokens = self.leave(request)
        self.forget(request)
        return kv_tokens

    def forget(self, request: Request) -> None:
        """A member will never finish; it stays until it leaves."""
        self._finishes = [entry for entry in self._finishes if entry[2] is not request]
        heapify(self._finishes)
        self.next_finish_step = self._finishes[0][0] if self._finishes else NOBODY_FINISHES

    def pop_finished(self) -> list[Request]:
        """Members whose last token came with the last step, by the order in which they joined; still members."""
        finished: list[Request] = []
        finishes, step = self._finishes, self.step
        while finishes and finishes[0][0] <= step:
            finished.append(heappop(finishes)[2])
        self.next_finish_step = finishes[0][0] if finishes else NOBODY_FINISHES
        return finished

    def advance(self, n_steps: int) -> int:
        """Make so many steps; returns the blocks that they begin."""
        at = self.step % self.block_size
        is_few = n_steps < self.block_size  # fast: as in blocks_to_grow, without the call
        n_blocks = sum(self.crossings[at : at + n_steps]) if is_few else self.blocks_to_grow(n_steps)
        self.step += n_steps
        self.kv_tokens += n_steps * self.n
        return n_blocks

    def blocks_to_grow(self, n_steps: int) -> int:
        """Blocks that the next n_steps begin."""
        block_size = self.block_size
        at = self.step % block_size
        if n_steps < block_size:
            return sum(self.crossings[at : at + n_steps])
        cycles, rest = divmod(n_steps, block_size)
        return cycles * self.n + sum(self.crossings[at : at + rest])

    def steps_within(self, free_blocks: int) -> int:
        """The most steps whose new blocks are at most free_blocks. Needs a member."""
        cycles, left_blocks = divmod(free_blocks, self.n)
        n_steps = cycles * self.block_size
        while True:
            left_blocks -= self.crossings[(self.step + n_steps) % self.block_size]
            if left_blocks < 0:
                return n_steps
            n_steps += 1
