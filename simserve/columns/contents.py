"""BlockContents: what blocks keep after they are freed, and which requests in columns find it again."""

from __future__ import annotations

from typing import cast

from mypy_extensions import i64

from simserve.columns.live import Live
from simserve.engine.memory import CachingMemory
from simserve.engine.replica import Replica
from simserve.state.left_blocks import LeftBlocks
from simserve.state.request import Request


class BlockContents:
    """Blocks that keep nothing; requests are places of `live`."""

    def __init__(self, replica: Replica, live: Live) -> None:
        self._live, self._pool, self._cohort = live, replica.pool, replica.cohort
        self._recorder, self._block_size = replica.recorder, i64(replica.pool.block_size)
        self.n_idle: i64 = 0
        """Free blocks that the last hit takes."""

    def come(self, place: i64, request: Request | None) -> None:
        """Note an arrival, which routers saw as a request."""

    def forget_hits(self) -> None:
        """Look requests up anew from now on."""

    def hit(self, place: i64) -> i64:
        """Return the tokens that a waiting request finds."""
        return 0

    def missing_block(self, place: i64) -> int | None:
        """Return the id of the first whole block to compute of a prompt; None: all are there, or have no id."""
        return None

    def hold(self, place: i64) -> None:
        """Hold what an admitted request finds, and what is reserved for it."""
        n_reserved = self._live.reserved_blocks[place]
        if n_reserved:
            self._pool.reserve(n_reserved)

    def computed(self, place: i64, n_before: i64) -> None:
        """Note that a prompt is computed, as far as it is; n_before of its tokens were before the step."""

    def release(self, place: i64, kv_tokens: i64) -> i64:
        """Free the blocks of a request; return how many become free."""
        pool, n_blocks = self._pool, -(-kv_tokens // self._block_size)
        n_reserved = self._live.reserved_blocks[place]
        if n_reserved:
            pool.release(n_blocks, n_reserved - n_blocks)
            return n_blocks
        pool.used_blocks -= n_blocks
        pool.free_blocks += n_blocks
        pool.freed_blocks += n_blocks
        return n_blocks

    def preempt(self, place: i64, kv_tokens: i64, findable_tokens: i64) -> None:
        """Free the blocks of a preempted request, which finds the whole ones of its first tokens again if they are
        left."""
        self.release(place, kv_tokens)

    def steps_before_recheck(self, head: i64) -> int | None:
        """Return the steps until growing members take blocks that the head of the queue would find; None: never."""
        return None

    # -- prompts that another replica has computed -------------------------------------------------------------------

    def shared_blocks(self, place: i64) -> i64:
        """Return how many blocks of a prompt others hold here."""
        return 0

    def take_ahead(self, place: i64) -> i64:
        """Take blocks for a prompt that another replica has computed; return its tokens found here."""
        self._pool.take(-(-self._live.prompt_tokens[place] // self._block_size), False)
        return 0

    def let_go(self, place: i64) -> i64:
        """Free the blocks taken ahead; return how many become free."""
        n_blocks = -(-self._live.prompt_tokens[place] // self._block_size)
        self._pool.release(n_blocks)
        return n_blocks

    def receive(self, place: i64) -> None:
        """Let a request hold the blocks taken ahead as its own: all its keys and values are here."""


class LeftContents(BlockContents):
    """Blocks that keep what preempted requests left there, and requests have nothing in common."""

    def __init__(self, replica: Replica, live: Live) -> None:
        super().__init__(replica, live)
        self._left = LeftBlocks(replica.pool)

    def hit(self, place: i64) -> i64:
        """Return the tokens that a waiting request finds, of its own: it was preempted."""
        self.n_idle = 0
        if self._live.n_preemptions[place]:
            self.n_idle = self._left.n_found(self._live.row[place])
        return self.n_idle * self._block_size

    def hold(self, place: i64) -> None:
        """Hold what an admitted request finds."""
        live, row = self._live, self._live.row[place]
        if live.n_preemptions[place]:
            live.prefilled_tokens[place] = n_found = self._left.hold(row) * self._block_size
            self._recorder.find(row, n_found, is_first=False)

    def preempt(self, place: i64, kv_tokens: i64, findable_tokens: i64) -> None:
        """Free the blocks of a preempted request, and note what it leaves."""
        self.release(place, kv_tokens)
        self._left.leave(self._live.row[place], findable_tokens // self._block_size)

    def steps_before_recheck(self, head: i64) -> int | None:
        """Return the steps until growing members take blocks that the head of the queue would find; None: never."""
        if not self._live.n_preemptions[head]:
            return None
        return self._left.steps_before_recheck(self._live.row[head], self._cohort.steps_within)


class CachedContents(BlockContents):
    """Blocks with a prefix cache, in the replica's own memory, which looks at requests."""

    def __init__(self, replica: Replica, live: Live) -> None:
        super().__init__(replica, live)
        self._memory = cast(CachingMemory, replica.batch.memory)

    def come(self, place: i64, request: Request | None) -> None:
        """Note an arrival, which routers saw as a request."""
        assert request is not None, "a prefix cache is looked up by the ids of a request"
        request.finder = self._memory

    def forget_hits(self) -> None:
        """Look requests up anew from now on."""
        self._memory.forget_hits()

    def hit(self, place: i64) -> i64:
        """Return the tokens that a waiting request finds."""
        n_tokens, self.n_idle = self._memory.hit(self._live.request(place))
        return n_tokens

    def missing_block(self, place: i64) -> int | None:
        """Return the id of the first whole block to compute of a prompt; None: all are there, or have no id."""
        return self._memory.missing(self._live.request(place))

    def hold(self, place: i64) -> None:
        """Hold what an admitted request finds."""
        request = self._live.request(place)
        request.reserved_blocks = self._live.reserved_blocks[place]
        self._memory.admit(request)
        self._live.prefilled_tokens[place] = request.prefilled_tokens

    def computed(self, place: i64, n_before: i64) -> None:
        """Let requests find the whole blocks of a prompt that are computed."""
        self._memory.computed(self._live.request(place), n_before)

    def release(self, place: i64, kv_tokens: i64) -> i64:
        """Free the blocks of a request, of which contents can be found until they are taken; return how many become
        free."""
        return self._memory.release(self._live.requests[place], kv_tokens)

    def preempt(self, place: i64, kv_tokens: i64, findable_tokens: i64) -> None:
        """Free the blocks of a preempted request."""
        request = self._live.requests[place]
        self._memory.preempt(request, kv_tokens, findable_tokens)
        request.finder = self._memory

    def steps_before_recheck(self, head: i64) -> int | None:
        """Return the steps until growing members evict blocks that the head of the queue would find; None: never."""
        return self._memory.steps_before_recheck(self._live.request(head), self._cohort.steps_within)

    def shared_blocks(self, place: i64) -> i64:
        """Return how many blocks of a prompt others hold here."""
        prompt_tokens = self._live.prompt_tokens[place]
        return self._memory.shared_blocks(self._live.requests[place], prompt_tokens - 1, prompt_tokens)

    def take_ahead(self, place: i64) -> i64:
        """Hold what is here of a prompt, and take blocks for the rest; return its tokens found here."""
        return self._memory.take_ahead(self._live.requests[place])

    def let_go(self, place: i64) -> i64:
        """Free the blocks taken ahead; return how many become free."""
        return self._memory.let_go(self._live.requests[place])

    def receive(self, place: i64) -> None:
        """Let others find a prompt that is all here."""
        self._memory.receive(self._live.requests[place])


def contents_of(replica: Replica, live: Live) -> BlockContents:
    """Return what the blocks of a replica keep."""
    memory = replica.batch.memory
    if memory.caches:
        return CachedContents(replica, live)
    return LeftContents(replica, live) if memory.keeps else BlockContents(replica, live)
