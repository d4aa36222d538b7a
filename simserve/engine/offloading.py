"""Offloading: seats whose prefix cache goes on in host memory and on disk."""

from simserve.engine.host_tier import HostTier
from simserve.engine.prefixes import CachingBatchState
from simserve.engine.swapping import SwappingCachingBatchState
from simserve.state.request import Request


class OffloadingBatchState(CachingBatchState):
    """Seats whose prefixes are copied to host memory as soon as they are computed, and can be read back from there.

    A request that waits sees as computed what GPU, host and disk have of its prompt. When it is let in, what only host
    and disk have takes blocks and is read before its step begins. Sources: vLLM V1, v1/kv_offload/lru_manager.py;
    SGLang, HiCache (write_through).
    """

    tier: HostTier
    _result: list[tuple[Request, int, int, int]]

    def begin(self, tier: HostTier) -> None:
        """With nothing kept."""
        self.tier = tier
        self._result = []
        """Who has been let in since the last step began, how many ids it found, and of them on host and disk only."""

    def _look_up(self, request: Request) -> None:
        """What GPU, host and disk have for a request that waits; what is not on the GPU takes free blocks."""
        n_ids = self._n_found(request)
        n_here = self._cache.match(request.chain, n_ids)
        n_idle = self._cache.idle_blocks_among(request.chain, n_here)
        request.prefilled_tokens = n_ids * self._block_tokens
        request.idle_hit_blocks = n_idle + (n_ids - n_here) * self._cache.blocks_per_id

    def _n_found(self, request: Request) -> int:
        """Ids from the beginning, wherever they are."""
        n_tokens = request.prompt_tokens + request.emitted_tokens
        _, n_ids = self.tier.memory.match(request.chain, (n_tokens - 1) // self._block_tokens)
        return max(n_ids, super()._n_found(request))

    def _hold(self, request: Request, n_ids: int) -> None:
        """It holds what it has found; what host and disk have can be found on the GPU from the next look on."""
        cache = self._cache
        n_here = cache.match(request.chain, n_ids)
        n_new_blocks = (n_ids - n_here) * cache.blocks_per_id
        self.pool.take_at_once(cache.pin(request.chain, n_here) + n_new_blocks)
        cache.insert(request.chain, n_here, n_ids, request.copies)
        n_above_disk = max(n_here, self.tier.memory.match(request.chain, n_ids)[0])
        self._result.append((request, n_ids, n_above_disk - n_here, n_ids - n_above_disk))

    def _insert(self, request: Request, kv_tokens: int) -> None:
        """What it has computed is kept on the host too."""
        n_before = request.n_held_ids
        super()._insert(request, kv_tokens)
        if request.n_held_ids > n_before:
            self.tier.keep(request.chain, request.n_held_ids)

    def fetch(self) -> None:
        """Read what those who have been let in found beside the GPU. Until all are in, nothing changes there."""
        cost, tokens = self._cache.blocks_per_id, self._block_tokens
        for request, n_ids, n_on_host, n_on_disk in self._result:
            if n_on_host or n_on_disk:
                self.tier.read((n_on_host + n_on_disk) * cost, n_on_disk * cost)
            if not request.n_preemptions:
                self._recorder.read(request.row, n_on_host * tokens, n_on_disk * tokens)
            self.tier.keep(request.chain, n_ids, n_on_disk)
        self._result.clear()


class SwappingOffloadingBatchState(SwappingCachingBatchState, OffloadingBatchState):
    """Both: prefixes make way on the host for those who are swapped out."""

    def begin(self, tier: HostTier) -> None:
        """With nothing kept and nobody swapped out."""
        SwappingCachingBatchState.begin(self, tier)
        OffloadingBatchState.begin(self, tier)
