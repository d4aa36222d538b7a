"""ReplicaSetup: scheduler, costs and memory of a replica, and its number of ranks."""

from dataclasses import dataclass
from typing import Literal

from simserve.cost.host_tier import HostTierSpec
from simserve.cost.model import CostModel
from simserve.engine.batch_state import BatchState
from simserve.engine.host_tier import HostTier
from simserve.engine.offloading import OffloadingBatchState, SwappingOffloadingBatchState
from simserve.engine.prefixes import CachingBatchState, CachingPool
from simserve.engine.recorder import Recorder
from simserve.engine.speculation import SpeculatingBatchState, SpeculatingCachingBatchState, Speculation
from simserve.engine.swapping import SwappingBatchState, SwappingCachingBatchState
from simserve.schedulers.base import Scheduler
from simserve.state.kv_pool import KvPool


@dataclass(frozen=True)
class ReplicaSetup:
    """Scheduler, costs and memory of a replica."""

    scheduler: Scheduler
    cost: CostModel
    n_blocks: int
    block_size: int
    max_model_len: int
    async_scheduling: bool = False
    """A step is planned while the previous one runs, so a request that arrives meanwhile waits one step more."""
    n_stages: int = 1
    """Pipeline stages, and as many batches in flight: lanes, each with such a scheduler and blocks."""
    n_in_step: int = 1
    """Data-parallel ranks that step together, each with such a scheduler and blocks."""
    role: Literal["both", "prefill", "decode"] = "both"
    """Prefill replicas hand over to decode replicas."""
    block_tokens: int | None = None
    """Tokens per prefix-cache id; None: no prefix caching."""

    host_tier: HostTierSpec | None = None
    """Host memory and disk beside the GPUs."""
    speculation: Speculation | None = None
    """Speculative decoding; None: one token per step."""

    @property
    def has_tier(self) -> bool:
        """A host tier is in use: offloading needs prefix caching."""
        tier = self.host_tier
        return tier is not None and (tier.swaps or (tier.offloads and self.block_tokens is not None))

    def batch(self, index: int, recorder: Recorder) -> BatchState:
        """Return the empty batch state of a replica."""
        if self.has_tier:
            return self._tiered_batch(index, recorder)
        if self.speculation is not None:
            return self._speculating_batch(index, recorder, self.speculation)
        if self.block_tokens is None:
            pool = KvPool(self.n_blocks, self.block_size)
            return BatchState(index, self.scheduler, recorder, pool, self.max_model_len)
        caching = CachingPool(self.n_blocks, self.block_size, self.block_tokens)
        return CachingBatchState(index, self.scheduler, recorder, caching, self.max_model_len)

    def _tiered_batch(self, index: int, recorder: Recorder) -> BatchState:
        """Return the empty batch state of a replica with a host tier."""
        assert self.host_tier is not None, "has_tier is true"
        base = (index, self.scheduler, recorder)
        if self.block_tokens is None:
            swapping = SwappingBatchState(*base, KvPool(self.n_blocks, self.block_size), self.max_model_len)
            swapping.begin(HostTier(self.host_tier))
            return swapping
        pool = CachingPool(self.n_blocks, self.block_size, self.block_tokens)
        if not self.host_tier.offloads:
            kind: type[SwappingCachingBatchState | OffloadingBatchState] = SwappingCachingBatchState
        else:
            kind = SwappingOffloadingBatchState if self.host_tier.swaps else OffloadingBatchState
        batch = kind(*base, pool, self.max_model_len)
        batch.begin(HostTier(self.host_tier, pool.cache.blocks_per_id))
        return batch

    def _speculating_batch(self, index: int, recorder: Recorder, how: Speculation) -> SpeculatingBatchState:
        batch: SpeculatingBatchState
        if self.block_tokens is None:
            pool = KvPool(self.n_blocks, self.block_size)
            batch = SpeculatingBatchState(index, self.scheduler, recorder, pool, self.max_model_len)
        else:
            caching = CachingPool(self.n_blocks, self.block_size, self.block_tokens)
            batch = SpeculatingCachingBatchState(index, self.scheduler, recorder, caching, self.max_model_len)
        batch.speculate(how)
        return batch

    @property
    def n_ranks(self) -> int:
        """Number of schedulers with KV blocks of their own."""
        return self.n_stages * self.n_in_step
