"""Memory: what a request may hold on a replica: KV blocks, with or without a prefix cache and tiers behind it."""

from collections.abc import Callable

from simserve.engine.host_tier import HostTier, Read
from simserve.engine.recorder import Recorder
from simserve.state.id_runs import Chain
from simserve.state.kv_pool import KvPool
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.prefix_cache import PrefixCache
from simserve.state.request import Request


class Memory:
    """KV blocks of one replica, each held by one request."""

    caches = False
    """Blocks keep their contents after they are freed, and requests find them."""
    has_ids = False
    """Blocks have ids."""

    def __init__(self, pool: KvPool, *, keeps: bool = False) -> None:
        self.pool, self.keeps = pool, keeps
        """keeps: blocks keep their contents after they are freed, and preempted requests find their own."""
        self.reading: dict[Request, Read] = {}
        """Waiting requests with a prefix on its way, read for themselves or for another."""

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the tokens that a waiting request finds, and the free blocks that they take."""
        return 0, 0

    def missing(self, request: Request) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        return None

    def n_ids(self, request: Request) -> int:
        """Return how many blocks of a request, from its first on, have an id or get one."""
        return 0

    def drop(self, request: Request, tokens: tuple[int, int], to_reserved: bool) -> None:
        """Free what windows keep no longer of a request with ids, as its tokens computed grow from the first number to
        the second; reserved blocks stay so."""

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens that a request finds here."""
        return 0

    def reclaim(self, n_blocks: int) -> None:
        """Evict what n_blocks free blocks hold."""

    # -- host memory -----------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Read what admitted requests hit on host and disk."""

    def reads_first(self, request: Request) -> bool:
        """Return whether a request has to wait for its prefix, and begin to read it if no other request does."""
        return False

    def end_reads(self, now_ps: int) -> int:
        """Put what has been read by now into the cache; return the blocks that become free."""
        return 0


class CachingPool(KvPool):
    """A pool of blocks that keep their contents after they are freed, until they are taken."""

    __slots__ = ("cache",)

    def __init__(self, total_blocks: int, layers: LayerBlocks, *, by_part: bool = False) -> None:
        super().__init__(total_blocks, layers)
        self.cache = PrefixCache(layers, by_part=by_part)

    def take(self, n_blocks: int, from_reserved: bool) -> None:
        """Put tokens into blocks; the cache evicts what they held. Reserved blocks keep their contents until then."""
        super().take(n_blocks, from_reserved)
        self.keep_within(self.free_blocks + self.reserved_blocks)

    def take_at_once(self, n_blocks: int) -> None:
        """Put tokens into free blocks when a step is about to take others; eviction follows then."""
        super().take(n_blocks, from_reserved=False)

    def keep_within(self, n_blocks: int) -> None:
        """Evict what does not fit n_blocks."""
        n_lost = self.cache.idle_blocks - n_blocks
        if n_lost > 0:
            self.cache.evict(min(n_lost, self.cache.idle_blocks))

    def drop(self, n_blocks: int, to_reserved: bool) -> None:
        """Free blocks without ids; they are evicted in turn with the others."""
        self.cache.add_idle(n_blocks)
        self.count_dropped(n_blocks, to_reserved)


class CachingMemory(Memory):
    """KV blocks with a prefix cache: blocks computed for other requests are used again.

    A hit is held from admission on, so it is never counted twice; computed blocks can be found as soon as the step is
    over. The last prompt token is always computed. Sources: vLLM V1, kv_cache_manager.py and block_pool.py; SGLang,
    radix_cache.py.

    With a tier, prefixes are copied to host memory as soon as they are computed, and read back: the hit of a waiting
    request includes GPU, host and disk. The part on host and disk takes blocks when the request is to be admitted, and
    is read: before the step begins, or while it waits and others go on. A request with a prefix that is being read for
    another waits with it. Sources: vLLM V1, v1/kv_offload/lru_manager.py, OffloadingConnector and the scheduler's
    WAITING_FOR_REMOTE_KVS; SGLang, HiCache (write_through).

    A preempted request gets ids of its own for the whole blocks that it holds without one, so that it finds those that
    are left. What windows left before that has none.

    Requests share blocks of windows, too, but one that leaves a shared block needs another. So where a policy reserves,
    each request pays for all blocks that it has in windows, also while its prefix is read.
    """

    caches = True
    has_ids = True

    def __init__(
        self, pool: CachingPool, recorder: Recorder, tier: HostTier | None = None, *, reserves: bool = False
    ) -> None:
        super().__init__(pool, keeps=True)
        self._cache = pool.cache
        self._recorder = recorder
        self._tier = tier
        self._reserves = reserves
        self._n_ahead: dict[Request, int] = {}
        """Ids found here of requests with blocks taken ahead; the rest comes over the link."""
        self._hits: dict[Request, tuple[int, int]] = {}
        """Hits looked up since the last plan began."""
        self._chains: dict[Request, Chain] = {}
        """Chains of preempted requests, with the ids of their own."""
        self._last_own_id = 0
        """The ids of a load are not negative."""
        self._admitted: list[tuple[Request, int, Chain, Chain]] = []
        """(request, ids of its hit, blocks of these read, those from disk) of admissions since the last step began."""
        self._fetched: dict[Request, tuple[int, int]] = {}
        """Ids read from host and from disk ahead of an admission."""

    # -- lookups -----------------------------------------------------------------------------------------------------

    def _chain(self, request: Request) -> Chain:
        """Return the ids of a request, its own included."""
        if self._chains and request in self._chains:
            return self._chains[request]
        return self._named(request)

    def _named(self, request: Request) -> Chain:
        """Return the ids that the load gives a request."""
        return request.chains[self.pool.block_size]

    def n_ids(self, request: Request) -> int:
        """Return how many blocks of a request, from its first on, have an id or get one."""
        return len(self._chain(request))

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the tokens that a waiting request finds, and the free blocks that they take: idle ones, and those for
        what is not on the GPU.

        fast: once a plan, and only where the policy asks. A plan holds all its hits before any block is taken.
        """
        hit = self._hits.get(request)
        if hit is None:
            chain = self._chain(request)
            n_ids = self._n_found(request, request.prompt_tokens + request.emitted_tokens - 1)
            cache, n_tokens = self._cache, n_ids * self.pool.block_size
            n_blocks = cache.idle_blocks_among(chain, n_ids, n_tokens)
            if self._tier is not None:
                n_blocks += len(cache.missing(chain, n_ids))
            hit = self._hits[request] = (n_tokens, n_blocks)
        return hit

    def missing(self, request: Request) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        chain, n_tokens = self._chain(request), request.prompt_tokens + request.emitted_tokens
        n_ids = self._n_found(request, n_tokens)
        return chain[n_ids] if n_ids < min(n_tokens // self.pool.block_size, len(chain)) else None

    def forget_hits(self) -> None:
        """Look requests up anew from now on."""
        self._hits.clear()

    def _n_found(self, request: Request, n_tokens: int) -> int:
        """Return the number of leading ids of n_tokens in the hit, on any tier. The last token to compute is never
        among these: its output is needed."""
        chain, most = self._chain(request), n_tokens // self.pool.block_size
        if self._tier is None:
            return self._cache.match(chain, most)
        return self._cache.match_beyond(chain, most, self._tier.memory)

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the cache and in its own host memory; what replicas share is as near to all."""
        n_tokens = request.prompt_tokens - 1
        if self._tier is not None and self._tier.is_shared:
            return self._n_here(request, n_tokens) * self.pool.block_size
        return self._n_found(request, n_tokens) * self.pool.block_size

    def reclaim(self, n_blocks: int) -> None:
        """Evict what n_blocks free blocks hold."""
        self.pool.keep_within(self.pool.free_blocks + self.pool.reserved_blocks - n_blocks)

    def steps_before_recheck(self, head: Request, steps_within: Callable[[int], int]) -> int | None:
        """Return the steps until growing members evict blocks of the head's hit, which changes its need."""
        if not head.idle_hit_blocks:
            return None
        return 1 + steps_within(self.pool.free_blocks + self.pool.reserved_blocks - self._cache.idle_blocks)

    # -- holding and releasing -----------------------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        """Hold the cache hit of an admitted request: its blocks are no longer free."""
        request.prefilled_tokens, _ = self.hit(request)
        request.finder = None
        n_ids = request.prefilled_tokens // self.pool.block_size
        request.n_held_ids, request.copies = n_ids, set()
        cache, n_tokens, n_doubled = self._cache, request.prefilled_tokens, self._cache.n_doubled
        if self._tier is None:
            self.pool.take(cache.pin(self._chain(request), n_ids, n_tokens), from_reserved=False)
        else:
            self._hold_from_tiers(request, n_ids, self._tier)
        if request.reserved_blocks:
            self.pool.reserve(request.reserved_blocks - cache.n_blocks(n_ids, n_tokens) + cache.n_doubled - n_doubled)
        self._recorder.find(request.row, request.prefilled_tokens, is_first=not request.n_preemptions)

    def _hold_from_tiers(self, request: Request, n_ids: int, tier: HostTier) -> None:
        """Hold the hit; what comes from host and disk can be found on the GPU from the next lookup on."""
        cache, chain = self._cache, self._chain(request)
        missing = cache.missing(chain, n_ids)
        self.pool.take_at_once(cache.pin(chain, n_ids, request.prefilled_tokens) + len(missing))
        cache.insert_missing(chain, n_ids, missing, request.copies)
        self._admitted.append((request, n_ids, missing, tier.memory.on_disk(missing)))

    def computed(self, request: Request, n_before: int) -> None:
        """Insert the whole blocks of a computed prompt into the cache."""
        n_tokens = min(request.prefilled_tokens, request.prompt_tokens + request.emitted_tokens)
        self._insert(request, n_tokens, n_before)

    def drop(self, request: Request, tokens: tuple[int, int], to_reserved: bool) -> None:
        """Free what windows keep no longer of a request; it can be found until it is taken."""
        self._insert(request, tokens[1], tokens[0])
        n_free = self._cache.drop(self._chain(request), request.n_held_ids, tokens, request.copies)
        self.pool.count_dropped(n_free, to_reserved)

    def release(self, request: Request, kv_tokens: int) -> int:
        """Free the blocks of a request; their contents can be found until they are taken."""
        self._insert(request, kv_tokens, kv_tokens)
        n_free = self._free(request, kv_tokens)
        self.forget(request)
        return n_free

    def preempt(self, request: Request, kv_tokens: int, findable_tokens: int) -> None:
        """Free the blocks of a preempted request, with ids for all whole ones of its first findable_tokens."""
        chain = self._chain(request)
        n_new = max(0, findable_tokens // self.pool.block_size - len(chain))
        self._last_own_id -= n_new
        self._chains[request] = [*chain, *range(self._last_own_id, self._last_own_id + n_new)]
        self._insert(request, findable_tokens, kv_tokens)
        self._free(request, kv_tokens)

    def forget(self, request: Request) -> None:
        """Forget the ids of its own; what they stand for is evicted in turn."""
        self._chains.pop(request, None)

    def _free(self, request: Request, kv_tokens: int) -> int:
        """Free the blocks of a request; return how many become free."""
        n_doubled = self._cache.n_doubled
        n_free = self._release(request, request.n_held_ids, kv_tokens, request.copies)
        n_reserved = request.reserved_blocks
        if n_reserved:
            n_reserved -= self.pool.blocks_for(kv_tokens) - n_doubled + self._cache.n_doubled
        self.pool.release(n_free, n_reserved)
        request.reserved_blocks = 0
        return n_free

    def _release(self, request: Request, n_ids: int, n_tokens: int, copies: set[int]) -> int:
        """Release the blocks of a request in the cache, some with ids; return those that become free."""
        own_blocks = self.pool.blocks_for(n_tokens) - self._cache.n_blocks(n_ids, n_tokens)
        return self._cache.release(self._chain(request), n_ids, own_blocks, copies, n_tokens)

    def _insert(self, request: Request, kv_tokens: int, kept_tokens: int) -> None:
        """Let requests find the whole blocks of the first kv_tokens; on the host, too, those that others may need. In
        windows only what they keep with kept_tokens computed."""
        chain, n_held = self._chain(request), request.n_held_ids
        n_ids = min(kv_tokens // self.pool.block_size, len(chain))
        if n_ids > n_held:
            self._cache.insert(chain, n_held, n_ids, request.copies, kept_tokens)
            request.n_held_ids = n_ids
            if self._tier is not None and n_held < len(self._named(request)):
                self._keep(self._tier, request, n_ids, kept_tokens)

    def _keep(self, tier: HostTier, request: Request, n_ids: int, n_tokens: int, from_disk: Chain = ()) -> None:
        """Use on the host what a request with n_tokens computed holds here, as far as others may need it."""
        named = self._named(request)
        tier.keep(*self._cache.keys(named, min(n_ids, len(named)), n_tokens), from_disk)

    # -- prompts that another replica computes -----------------------------------------------------------------------

    def take_ahead(self, request: Request, n_tokens: int) -> int:
        """Hold what the GPU has of the first n_tokens, and take blocks for the rest; return the tokens found.

        The last token always comes over the link, and so does what only the host has (vLLM V1, MultiConnector: one
        connector loads all).
        """
        n_ids = self._n_ahead[request] = self._hold(request, n_tokens - 1, n_tokens)
        return n_ids * self.pool.block_size

    def let_go(self, request: Request, n_tokens: int) -> int:
        """Free the blocks taken ahead; those found here can be found again."""
        n_free = self._release(request, self._n_ahead.pop(request), n_tokens, set())
        self.pool.release(n_free)
        return n_free

    def receive(self, request: Request, n_tokens: int) -> None:
        """Let other requests find the whole prompt, as it is all here (vLLM V1, _update_waiting_for_remote_kv)."""
        request.n_held_ids, request.copies = self._n_ahead.pop(request), set()
        self._insert(request, n_tokens, n_tokens)

    # -- host memory -----------------------------------------------------------------------------------------------

    def shared_blocks(self, request: Request, findable_tokens: int, n_tokens: int) -> int:
        """Return how many blocks of a request with n_tokens computed others hold on the GPU, of findable tokens."""
        cache, n_ids = self._cache, self._n_here(request, findable_tokens)
        return cache.n_blocks(n_ids, n_tokens) - cache.idle_blocks_among(self._chain(request), n_ids, n_tokens)

    def take_back(self, request: Request) -> int:
        """Hold the blocks still in the cache, and take blocks for the rest, which can be found again."""
        chain, n_here = self._chain(request), self._hold(request, request.prefilled_tokens, request.prefilled_tokens)
        request.n_held_ids = min(request.prefilled_tokens // self.pool.block_size, len(chain))
        self._cache.insert(chain, n_here, request.n_held_ids, request.copies, request.prefilled_tokens)
        return self._cache.n_blocks(n_here, request.prefilled_tokens)

    def _hold(self, request: Request, findable_tokens: int, n_tokens: int) -> int:
        """Hold the ids on the GPU of the findable tokens, and take blocks for the rest of n_tokens; return the ids."""
        n_ids = self._n_here(request, findable_tokens)
        self.pool.take(self._cache.pin(self._chain(request), n_ids, n_tokens), from_reserved=False)
        n_blocks = self.pool.blocks_for(n_tokens) - self._cache.n_blocks(n_ids, n_tokens)
        self.pool.take(n_blocks, from_reserved=False)
        return n_ids

    def _n_here(self, request: Request, n_tokens: int) -> int:
        return self._cache.match(self._chain(request), n_tokens // self.pool.block_size)

    def fetch(self) -> None:
        """Read what admitted requests hit on host and disk. The tiers do not change until all are admitted."""
        tier, tokens = self._tier, self.pool.block_size
        if tier is None:
            return
        for request, n_ids, missing, from_disk in self._admitted:
            if missing:
                tier.read(len(missing), len(from_disk))
                tier.hold(missing)
            if not request.n_preemptions:
                here = self._counted(request, n_ids, missing, from_disk)
                n_host, n_disk = self._fetched.pop(request, here)
                n_disk = min(n_disk, n_ids)  # evicted again, it may have been computed
                self._recorder.read(request.row, min(n_host, n_ids - n_disk) * tokens, n_disk * tokens)
        for request, n_ids, _, from_disk in self._admitted:
            self._keep(tier, request, n_ids, n_ids * tokens, from_disk)
        self._admitted.clear()

    def _counted(self, request: Request, n_ids: int, missing: Chain, from_disk: Chain) -> tuple[int, int]:
        """Return the ids of a hit of which blocks are read: from the host only, and from disk."""
        chain = self._chain(request)
        n_disk = self._cache.n_ids(from_disk, chain, n_ids)
        return self._cache.n_ids(missing, chain, n_ids) - n_disk, n_disk

    def reads_first(self, request: Request) -> bool:
        """Return whether a request has to wait for its prefix, and begin to read it if no other request does.

        It holds the part on the GPU and blocks for the rest until all is there. Then it waits as before, and finds it.
        """
        tier, chain, n_tokens = self._tier, self._chain(request), self.hit(request)[0]
        n_ids = n_tokens // self.pool.block_size
        missing = self._cache.missing(chain, n_ids)
        if tier is None or not missing:
            return False
        read = next((each for each in self.reading.values() if missing[0] in each.missing), None)
        if read is None:
            from_disk = tier.memory.on_disk(missing)
            read, n_doubled = Read(request, n_ids, dict.fromkeys(missing), from_disk), self._cache.n_doubled
            self.pool.take(self._cache.pin(chain, n_ids, n_tokens) + len(missing), from_reserved=False)
            if self._reserves:
                self.pool.reserve(self._cache.n_doubled - n_doubled)
            n_host, n_disk = self._fetched.get(request, (0, 0))
            n_more_host, n_more_disk = self._counted(request, n_ids, missing, from_disk)
            self._fetched[request] = n_host + n_more_host, n_disk + n_more_disk
            tier.read_ahead(read)
            tier.hold(missing)
            self._keep(tier, request, n_ids, n_tokens, from_disk)
        self.reading[request] = read
        return True

    def end_reads(self, now_ps: int) -> int:
        """Put what has been read by now into the cache; return the blocks that become free."""
        n_free, n_doubled = 0, self._cache.n_doubled
        for read in dict.fromkeys(self.reading.values()):
            if read.end_ps <= now_ps:
                chain = self._chain(read.request)
                copies: set[int] = set()
                self._cache.insert_missing(chain, read.n_ids, list(read.missing), copies)
                n_free += self._cache.release(chain, read.n_ids, 0, copies, read.n_ids * self.pool.block_size)
        self.pool.release(n_free, n_doubled - self._cache.n_doubled if self._reserves else 0)
        self.reading = {request: read for request, read in self.reading.items() if read.end_ps > now_ps}
        return n_free


class KeepingGroupsMemory(CachingMemory):
    """KV blocks that keep their contents until they are taken again, where layers keep different tokens and requests
    have nothing in common: only preempted requests have ids, of their own, and the blocks of all others are counted."""

    caches = False

    def _named(self, request: Request) -> Chain:
        """Return no ids."""
        return ()

    def preempt(self, request: Request, kv_tokens: int, findable_tokens: int) -> None:
        """Free the blocks of a preempted request, with ids for all whole ones of its first findable_tokens."""
        if request not in self._chains:
            request.n_held_ids, request.copies = 0, set()
        super().preempt(request, kv_tokens, findable_tokens)
