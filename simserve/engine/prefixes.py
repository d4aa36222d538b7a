"""Prefix caching: batch state that reuses KV blocks computed for other requests."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import SupportsIndex, cast

from simserve.engine.batch_state import BatchState
from simserve.engine.recorder import Recorder
from simserve.schedulers.base import Scheduler
from simserve.state.kv_pool import KvPool
from simserve.state.prefix_cache import PrefixCache
from simserve.state.queues import Ordered
from simserve.state.request import Request


class CachingPool(KvPool):
    """A pool of blocks that keep their contents after they are freed, until they are taken."""

    __slots__ = ("cache",)

    def __init__(self, total_blocks: int, block_size: int, block_tokens: int) -> None:
        super().__init__(total_blocks, block_size)
        self.cache = PrefixCache(block_tokens // block_size)

    def take(self, n_blocks: int, from_reserved: bool) -> None:
        """Put tokens into blocks; the cache evicts what they held."""
        super().take(n_blocks, from_reserved)
        self.keep_within(self.free_blocks)

    def take_at_once(self, n_blocks: int) -> None:
        """Put tokens into free blocks when a step is about to take others; eviction follows then."""
        super().take(n_blocks, from_reserved=False)

    def keep_within(self, n_blocks: int) -> None:
        """Evict what does not fit n_blocks free blocks."""
        n_lost = self.cache.idle_blocks - n_blocks
        if n_lost > 0:
            self.cache.evict(n_lost)


class Queue(deque[Request]):
    """First-come, first-served queue; iterating looks up the cache hit of each request."""

    look_up: Callable[[Request], None]

    def __iter__(self) -> Iterator[Request]:
        for request in super().__iter__():
            self.look_up(request)
            yield request


class OrderedQueue:
    """Policy-ordered queue; iterating looks up the cache hit of each request."""

    def __init__(self, waiting: Ordered, look_up: Callable[[Request], None]) -> None:
        self._waiting = waiting
        self._look_up = look_up
        self.append, self.appendleft, self.extend = waiting.append, waiting.appendleft, waiting.extend
        self.popleft, self.remove, self.may_lead = waiting.popleft, waiting.remove, waiting.may_lead

    def __contains__(self, request: object) -> bool:
        return request in self._waiting

    def __getitem__(self, place: SupportsIndex) -> Request:
        return self._waiting[place]

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        for request in self._waiting:
            self._look_up(request)
            yield request


class CachingBatchState(BatchState):
    """Batch state with a prefix cache.

    A hit is held from admission on, so it is never counted twice; computed blocks can be found as soon as the step is
    over. The last prompt token is always computed. Sources: vLLM V1, kv_cache_manager.py and block_pool.py; SGLang,
    radix_cache.py.
    """

    def __init__(
        self, index: int, scheduler: Scheduler, recorder: Recorder, pool: CachingPool, max_model_len: int
    ) -> None:
        queue = OrderedQueue(cast(Ordered, scheduler.queue()), self._look_up) if scheduler.orders else self._fifo()
        super().__init__(index, scheduler, recorder, pool, max_model_len, queue)
        self.pool: CachingPool = pool
        self._cache = pool.cache
        self._block_tokens = pool.cache.blocks_per_id * pool.block_size

    def _fifo(self) -> Queue:
        """Return a first-come, first-served queue."""
        queue = Queue()
        queue.look_up = self._look_up
        return queue

    def _look_up(self, request: Request) -> None:
        """Look up the cache hit of a waiting request."""
        n_ids = self._n_found(request)
        request.prefilled_tokens = n_ids * self._block_tokens
        request.idle_hit_blocks = self._cache.idle_blocks_among(request.chain, n_ids)

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the cache."""
        return self._n_found(request) * self._block_tokens

    def reclaim(self, n_blocks: int) -> None:
        """Evict what n_blocks free blocks hold."""
        self.pool.keep_within(self.pool.free_blocks - n_blocks)

    def steps_before_recheck(self) -> int | None:
        """Return the steps until growing members evict blocks of the head's hit, which changes its need."""
        if not self.waiting or not self.waiting[0].idle_hit_blocks:
            return None
        return 1 + self.cohort.steps_within(self.pool.free_blocks - self._cache.idle_blocks)

    def _n_found(self, request: Request) -> int:
        """Return the number of leading ids in the cache; never all tokens, as the last one must be computed."""
        n_tokens = request.prompt_tokens + request.emitted_tokens
        return self._cache.match(request.chain, (n_tokens - 1) // self._block_tokens)

    def admit(self, request: Request, reserve_tokens: int, now_ps: int) -> None:
        """Admit a request and hold its cache hit."""
        is_first = not request.n_preemptions
        super().admit(request, reserve_tokens, now_ps)
        n_ids = request.prefilled_tokens // self._block_tokens
        request.n_held_ids, request.copies, request.idle_hit_blocks = n_ids, set(), 0
        self._hold(request, n_ids)
        self._recorder.find(request.row, request.prefilled_tokens, is_first=is_first)

    def _hold(self, request: Request, n_ids: int) -> None:
        """Pin the hit: its blocks are no longer free."""
        self.pool.take(self._cache.pin(request.chain, n_ids), from_reserved=False)

    def computed(self, request: Request) -> None:
        """Insert the whole blocks of a computed prompt into the cache."""
        self._insert(request, min(request.prefilled_tokens, request.prompt_tokens + request.emitted_tokens))

    def give_back(self, request: Request, kv_tokens: int) -> int:
        """Free the blocks of a request; their contents can be found until they are taken."""
        self._insert(request, kv_tokens)
        cache = self._cache
        n_blocks = -(-kv_tokens // self.pool.block_size)
        n_own = n_blocks - request.n_held_ids * cache.blocks_per_id
        n_free = cache.release(request.chain, request.n_held_ids, n_own, request.copies)
        self.pool.release(n_free)
        return n_free

    def _insert(self, request: Request, kv_tokens: int) -> None:
        n_ids = min(kv_tokens // self._block_tokens, len(request.chain))
        if n_ids > request.n_held_ids:
            self._cache.insert(request.chain, request.n_held_ids, n_ids, request.copies)
            request.n_held_ids = n_ids
