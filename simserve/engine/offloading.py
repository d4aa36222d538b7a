"""Offloading: batch state with a prefix cache on GPU, host and disk."""

from simserve.engine.host_tier import HostTier
from simserve.engine.prefixes import CachingBatchState
from simserve.engine.swapping import SwappingCachingBatchState
from simserve.state.request import Request


class OffloadingBatchState(CachingBatchState):
    """Batch state that copies prefixes to host memory as soon as they are computed, and reads them back.

    The prefix hit of a waiting request includes GPU, host and disk. At admission, the part on host and disk takes
    blocks and is read before the step begins. Sources: vLLM V1, v1/kv_offload/lru_manager.py; SGLang, HiCache
    (write_through).
    """

    tier: HostTier
    _admitted: list[tuple[Request, int, int, int]]

    def begin(self, tier: HostTier) -> None:
        """Start with an empty tier."""
        self.tier = tier
        self._admitted = []
        """(request, ids of its hit, only on host, only on disk) of admissions since the last step began."""

    def _look_up(self, request: Request) -> None:
        """Look up a waiting request on GPU, host and disk; what is not on the GPU needs free blocks."""
        n_ids = self._n_found(request)
        n_here = self._cache.match(request.chain, n_ids)
        n_idle = self._cache.idle_blocks_among(request.chain, n_here)
        request.prefilled_tokens = n_ids * self._block_tokens
        request.idle_hit_blocks = n_idle + (n_ids - n_here) * self._cache.blocks_per_id

    def _n_found(self, request: Request) -> int:
        """Return the number of leading ids in the hit, on any tier."""
        n_tokens = request.prompt_tokens + request.emitted_tokens
        _, n_ids = self.tier.memory.match(request.chain, (n_tokens - 1) // self._block_tokens)
        return max(n_ids, super()._n_found(request))

    def _hold(self, request: Request, n_ids: int) -> None:
        """Hold the hit; what comes from host and disk can be found on the GPU from the next lookup on."""
        cache = self._cache
        n_here = cache.match(request.chain, n_ids)
        n_new_blocks = (n_ids - n_here) * cache.blocks_per_id
        self.pool.take_at_once(cache.pin(request.chain, n_here) + n_new_blocks)
        cache.insert(request.chain, n_here, n_ids, request.copies)
        n_above_disk = max(n_here, self.tier.memory.match(request.chain, n_ids)[0])
        self._admitted.append((request, n_ids, n_above_disk - n_here, n_ids - n_above_disk))

    def _insert(self, request: Request, kv_tokens: int) -> None:
        """Keep computed blocks on the host too."""
        n_before = request.n_held_ids
        super()._insert(request, kv_tokens)
        if request.n_held_ids > n_before:
            self.tier.keep(request.chain, request.n_held_ids)

    def fetch(self) -> None:
        """Read what admitted requests hit on host and disk. The tiers do not change until all are admitted."""
        cost, tokens = self._cache.blocks_per_id, self._block_tokens
        for request, n_ids, n_on_host, n_on_disk in self._admitted:
            if n_on_host or n_on_disk:
                self.tier.read((n_on_host + n_on_disk) * cost, n_on_disk * cost)
            if not request.n_preemptions:
                self._recorder.read(request.row, n_on_host * tokens, n_on_disk * tokens)
            self.tier.keep(request.chain, n_ids, n_on_disk)
        self._admitted.clear()


class SwappingOffloadingBatchState(SwappingCachingBatchState, OffloadingBatchState):
    """Batch state that both swaps and offloads: swapped requests displace prefixes on the host."""

    def begin(self, tier: HostTier) -> None:
        """Start with an empty tier and no swapped request."""
        SwappingCachingBatchState.begin(self, tier)
        OffloadingBatchState.begin(self, tier)
