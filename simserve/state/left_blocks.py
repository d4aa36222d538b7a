"""LeftBlocks: what preempted requests left in blocks that keep their contents until they are taken again."""

from collections.abc import Callable, Hashable

from simserve.state.kv_pool import KvPool


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
