"""BlockContents: what blocks keep after they are freed, and which requests in columns find it again."""

from __future__ import annotations

from typing import cast

from mypy_extensions import i64

from simserve.columns.live import Live
from simserve.engine.memory import CachingMemory
from simserve.engine.replica import Replica
from simserve.state.kv_pool import LeftBlocks
from simserve.state.request import Finder, Request


class BlockContents:
    """Blocks that keep nothing; requests are places of `live`."""

    def __init__(self, replica: Replica, live: Live) -> None:
        self._live, self._pool, self._cohort = live, replica.pool, replica.cohort
        self._recorder, self._counts = replica.recorder, replica.pool.counts
        self._block_size: i64 = replica.pool.block_size
        self._reserves, self._is_plain = replica.scheduler.reserves, replica.pool.layers is None
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

    def drop(self, place: i64, n_before: i64, n_tokens: i64) -> None:
        """Free what windows keep no longer of a prompt, as its tokens computed grow."""
        n_dropped = self._counts.dropped(n_tokens) - self._counts.dropped(n_before)
        if n_dropped:
            self._pool.drop(n_dropped, self._reserves)

    def named(self, place: i64) -> Request | None:
        """Return a request of which blocks may have an id; None: none of them has one."""
        return None

    def release(self, place: i64, kv_tokens: i64) -> i64:
        """Free the blocks of a request; return how many become free."""
        pool, n_blocks = self._pool, self._counts.held(kv_tokens)
        n_reserved = self._live.reserved_blocks[place]
        if n_reserved:
            pool.release(n_blocks, n_reserved - n_blocks)
            self._live.reserved_blocks[place] = 0
            return n_blocks
        if self._is_plain:  # fast: the pool's drop, inlined
            pool.used_blocks -= n_blocks
            pool.free_blocks += n_blocks
            pool.freed_blocks += n_blocks
        else:
            pool.drop(n_blocks, False)
        return n_blocks

    def preempt(self, place: i64, kv_tokens: i64, findable_tokens: i64) -> None:
        """Free the blocks of a preempted request, which may find the whole ones of its first tokens again."""
        self.release(place, kv_tokens)

    def requeued(self, place: i64) -> None:
        """Let a policy see what a preempted request finds, as it waits again."""

    def forget(self, place: i64) -> None:
        """Note that a preempted request does not return."""

    def steps_before_recheck(self, head: i64) -> int | None:
        """Return the steps until growing members take blocks that the head of the queue would find; None: never."""
        return None

    def shared_blocks(self, place: i64) -> i64:
        """Return how many blocks of a prompt others hold here."""
        return 0

    def shared_with_others(self, place: i64) -> i64:
        """Return how many blocks of a swapped request others hold here."""
        return 0

    def take_back(self, place: i64) -> i64:
        """Take the blocks of a swapped request; return how many of them were still here."""
        self._pool.take(self._counts.held(self._live.prefilled_tokens[place]), False)
        return 0

    def take_ahead(self, place: i64) -> i64:
        """Take blocks for a prompt that another replica has computed; return its tokens found here."""
        self._pool.take(self._counts.held(self._live.sent_tokens(place)), False)
        return 0

    def let_go(self, place: i64) -> i64:
        """Free the blocks taken ahead; return how many become free."""
        n_blocks = self._counts.held(self._live.sent_tokens(place))
        self._pool.drop(n_blocks, False)
        return n_blocks

    def receive(self, place: i64) -> None:
        """Let a request hold the blocks taken ahead as its own: all its keys and values are here."""


class LeftFinder(Finder):
    """What a policy that looks at requests as objects is told about such contents."""

    def __init__(self, contents: LeftContents, live: Live) -> None:
        self._contents, self._live = contents, live

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the tokens that a waiting request finds, and how many of their blocks are idle."""
        return self._contents.hit(self._live.place_of(request)), self._contents.n_idle

    def missing(self, request: Request) -> int | None:
        """Return None: no block has an id."""
        return None


class LeftContents(BlockContents):
    """Blocks that keep what preempted requests left there, and requests have nothing in common."""

    def __init__(self, replica: Replica, live: Live) -> None:
        super().__init__(replica, live)
        self._left, self._finder = LeftBlocks(replica.pool), LeftFinder(self, live)

    def _show(self, place: i64, finder: Finder | None) -> None:
        """Let a policy that looks at requests see what one finds."""
        request = self._live.requests.get(place) if self._live.requests else None
        if request is not None:
            request.finder = finder

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
            self._show(place, None)

    def preempt(self, place: i64, kv_tokens: i64, findable_tokens: i64) -> None:
        """Free the blocks of a preempted request, and note what it leaves."""
        self.release(place, kv_tokens)
        self._left.leave(self._live.row[place], findable_tokens // self._block_size)

    def requeued(self, place: i64) -> None:
        """Let a policy see what a preempted request finds, as it waits again."""
        self._show(place, self._finder)

    def forget(self, place: i64) -> None:
        """Note that a preempted request does not return."""
        self._left.forget(self._live.row[place])

    def take_back(self, place: i64) -> i64:
        """Hold the blocks of a swapped request that are left, and take blocks for the rest."""
        n_blocks = self._left.hold(self._live.row[place])
        self._pool.take(self._counts.held(self._live.prefilled_tokens[place]) - n_blocks, False)
        return n_blocks

    def steps_before_recheck(self, head: i64) -> int | None:
        """Return the steps until growing members take blocks that the head of the queue would find; None: never."""
        if not self._live.n_preemptions[head]:
            return None
        return self._left.steps_before_recheck(self._live.row[head], self._cohort.steps_within)


class CachedContents(BlockContents):
    """Blocks with ids in the replica's own memory, which looks at requests as objects: at all with a prefix cache, at
    preempted ones where layers keep different tokens and requests have nothing in common."""

    def __init__(self, replica: Replica, live: Live) -> None:
        super().__init__(replica, live)
        self._memory = cast(CachingMemory, replica.memory)
        self._caches = self._memory.caches
        self._requests = live.requests if self._caches else dict[int, Request]()

    def come(self, place: i64, request: Request | None) -> None:
        """Note an arrival, which routers saw as a request."""
        if self._caches and request is not None:
            request.finder = self._memory

    def named(self, place: i64) -> Request | None:
        """Return a request of which blocks may have an id; None: none of them has one."""
        return self._requests.get(place)

    def _now(self, place: i64) -> Request | None:
        """Return such a request as it is now."""
        request = self._requests.get(place)
        return None if request is None else self._live.updated(request, place)

    def forget_hits(self) -> None:
        """Look requests up anew from now on."""
        self._memory.forget_hits()

    def hit(self, place: i64) -> i64:
        """Return the tokens that a waiting request finds."""
        request, n_tokens, self.n_idle = self._now(place), 0, 0
        if request is not None:
            n_tokens, self.n_idle = self._memory.hit(request)
        return n_tokens

    def missing_block(self, place: i64) -> int | None:
        """Return the id of the first whole block to compute of a prompt; None: all are there, or have no id."""
        request = self._now(place) if self._caches else None
        return None if request is None else self._memory.missing(request)

    def hold(self, place: i64) -> None:
        """Hold what an admitted request finds, and what is reserved for it."""
        request = self._now(place)
        if request is None:
            super().hold(place)
        else:
            request.reserved_blocks = self._live.reserved_blocks[place]
            self._memory.admit(request)
            self._live.prefilled_tokens[place] = request.prefilled_tokens

    def computed(self, place: i64, n_before: i64) -> None:
        """Let requests find the whole blocks of a prompt that are computed."""
        request = self._now(place)
        if request is not None:
            self._memory.computed(request, n_before)

    def drop(self, place: i64, n_before: i64, n_tokens: i64) -> None:
        """Free what windows keep no longer of a prompt; it can be found until it is taken."""
        request = self._requests.get(place)
        if request is None:
            super().drop(place, n_before, n_tokens)
        else:
            self._memory.drop(request, (n_before, n_tokens), self._reserves)

    def release(self, place: i64, kv_tokens: i64) -> i64:
        """Free the blocks of a request, which can be found until they are taken; return how many become free."""
        request = self._requests.get(place)
        if request is None:
            return super().release(place, kv_tokens)
        if not self._caches:
            del self._requests[place]
        self._live.reserved_blocks[place] = 0
        return self._memory.release(request, kv_tokens)

    def preempt(self, place: i64, kv_tokens: i64, findable_tokens: i64) -> None:
        """Free the blocks of a preempted request, which have ids from now on."""
        live = self._live
        if not self._caches and place not in self._requests:
            seen = live.requests.get(place)
            if seen is None:
                seen = Request(live.row[place], 0, live.prompt_tokens[place], live.most_tokens[place])
            self._requests[place] = seen
        request = self._now(place)
        assert request is not None, "its blocks have ids"
        self._memory.preempt(request, kv_tokens, findable_tokens)

    def requeued(self, place: i64) -> None:
        """Let a policy see what a preempted request finds, as it waits again."""
        self._requests[place].finder = self._memory

    def forget(self, place: i64) -> None:
        """Note that a preempted request does not return."""
        request = self._requests.get(place)
        if request is not None:
            self._memory.forget(request)
            if not self._caches:
                del self._requests[place]

    def steps_before_recheck(self, head: i64) -> int | None:
        """Return the steps until growing members evict blocks that the head of the queue would find; None: never."""
        request = self._now(head)
        return None if request is None else self._memory.steps_before_recheck(request, self._cohort.steps_within)

    def shared_blocks(self, place: i64) -> i64:
        """Return how many blocks of a prompt others hold here."""
        request, n_tokens = self._requests.get(place), self._live.sent_tokens(place)
        return 0 if request is None else self._memory.shared_blocks(request, n_tokens - 1, n_tokens)

    def shared_with_others(self, place: i64) -> i64:
        """Return how many blocks of a swapped request others hold here."""
        request, n_tokens = self._requests.get(place), self._live.prefilled_tokens[place]
        return 0 if request is None else self._memory.shared_blocks(request, n_tokens, n_tokens)

    def take_back(self, place: i64) -> i64:
        """Hold the blocks of a swapped request that are still in the cache, and take blocks for the rest."""
        request = self._now(place)
        assert request is not None, "preempted requests have ids"
        return self._memory.take_back(request)

    def take_ahead(self, place: i64) -> i64:
        """Hold what is here of a prompt, and take blocks for the rest; return its tokens found here."""
        request = self._requests.get(place)
        n_tokens = self._live.sent_tokens(place)
        return super().take_ahead(place) if request is None else self._memory.take_ahead(request, n_tokens)

    def let_go(self, place: i64) -> i64:
        """Free the blocks taken ahead; return how many become free."""
        request = self._requests.get(place)
        n_tokens = self._live.sent_tokens(place)
        return super().let_go(place) if request is None else self._memory.let_go(request, n_tokens)

    def receive(self, place: i64) -> None:
        """Let others find a prompt that is all here."""
        request = self._requests.get(place)
        if request is not None:
            self._memory.receive(request, self._live.sent_tokens(place))


def contents_of(replica: Replica, live: Live) -> BlockContents:
    """Return what the blocks of a replica keep."""
    memory = replica.memory
    if memory.has_ids:
        return CachedContents(replica, live)
    return LeftContents(replica, live) if memory.keeps else BlockContents(replica, live)
