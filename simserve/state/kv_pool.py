"""KvPool: counts of free, used and reserved KV blocks; LeftBlocks: what preempted requests left in blocks that keep
their contents until they are taken again."""

from collections.abc import Callable, Hashable

from simserve.state.block_counts import counts_of
from simserve.state.layer_blocks import LayerBlocks


class KvPool:
    """Counts of KV blocks of one replica.

    Invariant: used_blocks + reserved_blocks + free_blocks = total_blocks, and none is negative.
    """

    __slots__ = (
        "block_size",
        "counts",
        "free_blocks",
        "freed_blocks",
        "layers",
        "least_free_blocks",
        "reserved_blocks",
        "total_blocks",
        "used_blocks",
    )

    def __init__(self, total_blocks: int, layers: LayerBlocks) -> None:
        self.total_blocks = total_blocks
        self.block_size = layers.id_tokens
        self.layers = None if layers.is_plain else layers
        """Blocks by group of layers; None: all layers keep all tokens."""
        self.counts = counts_of(layers)
        """Counts the blocks of a request."""
        self.free_blocks = total_blocks
        self.least_free_blocks = total_blocks
        """Minimum of free_blocks so far."""
        self.freed_blocks = 0
        """Blocks freed so far."""
        self.used_blocks = 0
        """Blocks that hold tokens."""
        self.reserved_blocks = 0
        """Blocks reserved for running requests that hold no token yet."""

    def blocks_for(self, n_tokens: int) -> int:
        """Return the blocks of a request between steps, with n_tokens computed."""
        return self.counts.held(n_tokens)

    def blocks_in_step(self, n_tokens: int, n_next: int) -> int:
        """Return the blocks of a request in a step that adds n_next tokens to n_tokens computed ones."""
        return self.counts.held(n_tokens) + self.counts.begun(n_tokens, n_next)

    def most_blocks(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds."""
        return self.counts.most(n_tokens, 0)

    def reserve(self, n_blocks: int) -> None:
        """Reserve free blocks."""
        self.reserved_blocks += n_blocks
        self.free_blocks = free_blocks = self.free_blocks - n_blocks
        if free_blocks < self.least_free_blocks:
            self.least_free_blocks = free_blocks

    def take(self, n_blocks: int, from_reserved: bool) -> None:
        """Put tokens into reserved or free blocks."""
        self.used_blocks += n_blocks
        if from_reserved:
            self.reserved_blocks -= n_blocks
            return
        self.free_blocks = free_blocks = self.free_blocks - n_blocks
        if free_blocks < self.least_free_blocks:
            self.least_free_blocks = free_blocks

    def drop(self, n_blocks: int, to_reserved: bool) -> None:
        """Free blocks of a request that goes on, or those for its proposed tokens; reserved blocks stay so."""
        self.count_dropped(n_blocks, to_reserved)

    def count_dropped(self, n_blocks: int, to_reserved: bool) -> None:
        """Count used blocks as free, or as reserved."""
        if to_reserved:
            self.take(-n_blocks, from_reserved=True)
        else:
            self.release(n_blocks)

    def take_at_once(self, n_blocks: int) -> None:
        """Put tokens into free blocks when a step is about to take others; what these held goes then."""
        self.take(n_blocks, from_reserved=False)

    def keep_within(self, n_blocks: int) -> None:
        """Let only n_blocks free blocks keep what they held; here none does."""

    def release(self, n_used: int, n_reserved: int = 0) -> None:
        """Free used blocks and reserved blocks."""
        self.used_blocks -= n_used
        n_blocks = n_used
        if n_reserved:
            self.reserved_blocks -= n_reserved
            n_blocks += n_reserved
        self.free_blocks += n_blocks
        self.freed_blocks += n_blocks


class LeftBlocks:
    """Whole blocks that preempted requests left in a pool, where requests have nothing in common.

    Blocks are taken in the order in which they were freed, those of one request from its last to its first. So what is
    left of a preempted request are its first blocks, and as many as there are free ones beyond those freed after them.
    Source: vLLM V1, block_pool.py and kv_cache_utils.py (FreeKVCacheBlockQueue).
    """

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._left: dict[Hashable, list[int]] = {}
        """Whole blocks that each left, and the pool's freed_blocks then; in this order. Blocks that are found leave the
        order, so they count as freed before those that were freed earlier."""

    def leave(self, request: Hashable, n_blocks: int) -> None:
        """Note the whole blocks of a request, which were just freed."""
        self._left[request] = [n_blocks, self._pool.freed_blocks]

    def forget(self, request: Hashable) -> None:
        """Note that a request does not return."""
        self._left.pop(request, None)

    def _up_to(self, request: Hashable) -> int:
        """Return the free blocks up to the last of those that a request left: these, and those taken before them."""
        return self._pool.free_blocks - (self._pool.freed_blocks - self._left[request][1])

    def n_found(self, request: Hashable) -> int:
        """Return the blocks that a request finds."""
        return max(0, min(self._left[request][0], self._up_to(request)))

    def steps_before_recheck(self, head: Hashable, steps_within: Callable[[int], int]) -> int | None:
        """Return the steps until growing members take blocks that the head would find; None: it finds none.

        steps_within: the steps that begin at most a number of blocks.
        """
        n_found = self.n_found(head)
        return 1 + steps_within(self._up_to(head) - n_found) if n_found else None

    def hold(self, request: Hashable) -> int:
        """Hold the blocks that a request finds; return their number."""
        n_blocks = self.n_found(request)
        self._pool.take(n_blocks, from_reserved=False)
        for other, left in self._left.items():
            if other == request:
                break
            left[1] += n_blocks
        del self._left[request]
        return n_blocks
