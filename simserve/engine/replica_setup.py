"""ReplicaSetup: scheduler, costs and memory of a replica, and its number of ranks."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

from simserve.cost.memory import HostTierSpec
from simserve.cost.model import CostModel
from simserve.engine.decode import Decode, Speculation, Speculative
from simserve.engine.host_tier import HostStore, HostTier
from simserve.engine.in_flight import InFlight, InFlightWithWindows
from simserve.engine.memory import CachingMemory, CachingPool, KeepingGroupsMemory, Memory
from simserve.engine.recorder import Recorder
from simserve.scenario.parallel import BalanceSection
from simserve.schedulers.base import Scheduler
from simserve.state.cohort import Cohort
from simserve.state.grouped_cohort import GroupedCohort
from simserve.state.kv_pool import KvPool
from simserve.state.layer_blocks import LayerBlocks
from simserve.state.speculative_cohort import SpeculativeCohort

RoleName = Literal["both", "prefill", "decode"]


@dataclass(frozen=True)
class ReplicaSetup:
    """Scheduler, costs and memory of a replica."""

    scheduler: Scheduler
    cost: CostModel
    n_blocks: int
    layers: LayerBlocks
    """What a request holds of the blocks, by group of layers."""
    max_model_len: int
    async_scheduling: bool = False
    """A step is planned while the previous one runs, so a request that arrives meanwhile waits one step more."""
    n_stages: int = 1
    """Pipeline stages, and as many batches in flight: lanes."""
    n_in_step: int = 1
    """Data-parallel ranks that step together in each lane, each with such a scheduler and blocks."""
    role: RoleName = "both"
    """Prefill replicas hand over to decode replicas."""
    caches_prefixes: bool = False
    """Computed blocks are kept for later requests."""
    keeps_contents: bool = False
    """Blocks keep their contents until they are taken, so that a preempted request finds its own; also if no other
    request can find them."""
    host_tier: HostTierSpec | None = None
    """Host memory and disk beside the GPUs."""
    speculation: Speculation | None = None
    """Speculative decoding; None: one token per step."""
    balance: BalanceSection | None = None
    """Ranks in lockstep hold prompts back until each has one; None: none waits for other ranks."""
    pool: int = 0
    """Number of its pool in the scenario."""
    has_common_kv: bool = True
    """Its keys and values are those of the first pool's model: others with such ones can use them."""

    def copies(self, n: int) -> "list[ReplicaSetup]":
        """Return the setup of each of n replicas, with a policy of its own; those of simserve without state are shared.

        A policy of a plug-in may keep state that it does not declare, such as a count of its calls.
        """
        if self.scheduler.is_stateful or not type(self.scheduler).__module__.startswith("simserve."):
            return [replace(self, scheduler=deepcopy(self.scheduler)) for _ in range(n)]
        return [self] * n  # fast: what all replicas look at stays in a processor's cache

    @property
    def block_size(self) -> int:
        """Tokens of a block with a content id."""
        return self.layers.id_tokens

    @property
    def has_tier(self) -> bool:
        """A host tier is in use: offloading needs prefix caching."""
        tier = self.host_tier
        return tier is not None and (tier.swaps or (tier.offloads and self.caches_prefixes))

    def tier(self, store: HostStore | None = None) -> HostTier | None:
        """Return a host tier, if one is in use: empty, or with access to a store that replicas share."""
        if self.host_tier is None or not self.has_tier:
            return None
        return HostTier(self.host_tier, store)

    @property
    def swaps(self) -> bool:
        """Preempted decoding requests go to host memory."""
        return self.host_tier is not None and self.host_tier.swaps

    def in_flight(self, cohort: Cohort, memory: Memory) -> InFlight:
        """Return what keeps the step run in flight of a replica."""
        kind = InFlightWithWindows if self.layers.windows else InFlight
        return kind(cohort, memory, reserves=self.scheduler.reserves)

    def cohort(self, memory: Memory) -> Cohort:
        """Return what counts the decoding requests of a replica."""
        how, layers = self.speculation, self.layers
        n_ids = memory.n_ids if self._has_cache and layers.windows else None
        if how is not None:
            return SpeculativeCohort(layers, how.acceptance, how.n_slots, n_ids=n_ids)
        return Cohort(self.block_size) if layers.is_plain else GroupedCohort(layers, n_ids)

    def memory(self, recorder: Recorder, tier: HostTier | None) -> Memory:
        """Return what a replica's blocks keep."""
        if not self._has_cache:
            plain = KvPool(self.n_blocks, self.layers)
            return Memory(plain, keeps=self._keeps)
        offloads = self.host_tier is not None and self.host_tier.offloads
        pool = CachingPool(self.n_blocks, self.layers, by_part=offloads and tier is not None)
        if not self.caches_prefixes:
            return KeepingGroupsMemory(pool, recorder)
        return CachingMemory(pool, recorder, tier if offloads else None, reserves=self.scheduler.reserves)

    @property
    def _keeps(self) -> bool:
        """Preempted requests may find blocks of their own."""
        return self.keeps_contents and not self.scheduler.reserves

    @property
    def _has_cache(self) -> bool:
        """Blocks have ids: of the load, or of preempted requests where one counter does not tell what is left."""
        return self.caches_prefixes or (self._keeps and not self.layers.is_plain)

    def decode(self, cohort: Cohort, pool: KvPool) -> Decode:
        """Return what steps do to the decoding requests of a cohort."""
        kind: Any = Decode if self.speculation is None else Speculative
        how = {"reserves": self.scheduler.reserves, "waits_for_host": self.waits_for_host}
        decode: Decode = kind(cohort, pool, self.cost, **how)
        return decode

    @property
    def waits_for_host(self) -> bool:
        """The host may take longer than the kernels; ranks in lockstep wait for it together."""
        return self.n_ranks == 1 and self.cost.host_ps(1) > 0

    @property
    def n_ranks(self) -> int:
        """Number of schedulers with KV blocks of their own."""
        return self.n_stages * self.n_in_step
