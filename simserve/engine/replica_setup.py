"""ReplicaSetup: what makes a replica, and how several of its kind hang together."""

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
    """What makes a replica: its policy, its costs and its memory."""

    scheduler: Scheduler
    cost: CostModel
    n_blocks: int
    block_size: int
    max_model_len: int
    async_scheduling: bool = False
    """A step is planned while the one before it runs, so who comes meanwhile waits for one step more."""
    n_stages: int = 1
    """Of its pipeline, in which as many batches are at once: lanes, each with a policy and blocks like these."""
    n_in_step: int = 1
    """Data-parallel ranks that begin and end their steps together, each with a policy and blocks like these."""
    role: Literal["both", "prefill", "decode"] = "both"
    """Prefill replicas hand over to decode replicas."""
    block_tokens: int | None = None
    """It keeps blocks of prefixes for those who come later, by ids that stand for so many tokens; None: it does not."""

    host_tier: HostTierSpec | None = None
    """Memory beside its GPUs."""
    speculation: Speculation | None = None
    """Its steps propose tokens and verify them; None: a token a step."""

    @property
    def has_tier(self) -> bool:
        """It uses memory beside its GPUs: prefixes are kept there only where they are kept at all."""
        tier = self.host_tier
        return tier is not None and (tier.swaps or (tier.offloads and self.block_tokens is not None))

    def batch(self, index: int, recorder: Recorder) -> BatchState:
        """With nobody on them."""
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
        """Likewise, with memory beside the GPUs."""
        assert self.host_tier is not None, "asked for where there is one"
        who = (index, self.scheduler, recorder)
        if self.block_tokens is None:
            swapping = SwappingBatchState(*who, KvPool(self.n_blocks, self.block_size), self.max_model_len)
            swapping.begin(HostTier(self.host_tier))
            return swapping
        pool = CachingPool(self.n_blocks, self.block_size, self.block_tokens)
        if not self.host_tier.offloads:
            kind: type[SwappingCachingBatchState | OffloadingBatchState] = SwappingCachingBatchState
        else:
            kind = SwappingOffloadingBatchState if self.host_tier.swaps else OffloadingBatchState
        batch = kind(*who, pool, self.max_model_len)
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
        """Schedulers with KV blocks of their own."""
        return self.n_stages * self.n_in_step
