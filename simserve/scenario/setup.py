"""PoolSetup: a pool of a resolved scenario with everything looked up and built, ready for the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from simserve import catalog, plugins
from simserve.catalog.engine_spec import Engine, EngineSpec
from simserve.catalog.layers import UNIFORM_ROUTING
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.calibrated import Calibrated, borrowed
from simserve.cost.calibration import NO_CALIBRATION, Calibration, calibration_path, host_constants, read_calibration
from simserve.cost.comm import ExchangeKernels, NodeLink
from simserve.cost.host_tier import HostTierSpec
from simserve.cost.kept_free import ServerKnobs, memory_share
from simserve.cost.memory import SAMPLED_ROWS, MemoryLedger, ledger
from simserve.cost.ops import Shard
from simserve.cost.step import StepCost, exchange_of
from simserve.scenario.cards import load_gpu
from simserve.scenario.speculation_setup import SpeculationSetup, speculation_of, weight_dtype_of
from simserve.schedulers.base import Scheduler

if TYPE_CHECKING:
    from simserve.scenario.models import Experiment
    from simserve.scenario.servers import BalanceSection, HostTierSection, Pool

EXCHANGES: Mapping[str, ExchangeKernels] = {"prefill": "normal", "decode": "low_latency", "both": "by_batch"}
"""Kernels between nodes by the role of a pool (SGLang, --deepep-mode: normal for prefill, low_latency for decode)."""

TOKENS_WITHOUT_BUDGET = 8192
"""Step size for sizing activations where neither scheduler nor engine has a token budget."""


@dataclass(frozen=True)
class PoolSetup:
    """All that the engine, explain and the metrics need to know of a pool."""

    name: str
    role: Literal["both", "prefill", "decode"]
    n_replicas: int
    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec
    weight_dtype: str
    kv_dtype: str
    tensor: int
    pipeline: int
    data: int
    expert: int
    node_link: NodeLink
    gathers: bool
    """Whether NCCL's collectives move tokens to experts on other nodes, in place of DeepEP's kernels."""
    expert_routing: str
    scheduler: Scheduler
    max_model_len: int
    caches_prefixes: bool
    ledger: MemoryLedger
    calibration: Calibration | None
    """None selects the plain roofline."""
    asked_version: str | None
    """The engine version that the scenario names, if it is not the default."""
    host_tier: HostTierSpec | None = None
    """Host memory tier of each replica."""
    speculation: SpeculationSetup | None = None
    """None: one token per step."""
    balance: "BalanceSection | None" = None
    """Steps for which ranks in lockstep hold prompts back; None: none waits for other ranks."""

    @property
    def calibrated(self) -> bool:
        """Whether the kernels were timed on this GPU under this engine."""
        calibration = self.calibration
        return calibration is not None and (calibration.gpu, calibration.engine) == (self.gpu.name, self.engine.name)

    @property
    def calibration_name(self) -> str | None:
        """The card and engine version of its kernels, `h100-sxm/vllm 0.24.0`; None: a plain roofline."""
        result = self.calibration
        return None if result is None else f"{result.gpu}/{result.engine} {result.engine_version}"

    @property
    def has_fitted_host(self) -> bool:
        """Whether host times were fitted to servers, before what the version and the scenario change."""
        return self.calibration is not None and bool(host_constants(self.calibration, self.engine.name))

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of all ranks."""
        return self.tensor * self.ranks_per_replica

    @property
    def gpus_per_lane(self) -> int:
        """GPUs that hold parts of a block."""
        return self.tensor * self.pipeline

    @property
    def ranks_per_replica(self) -> int:
        """Schedulers of a replica: its data-parallel ranks times the lanes of a pipeline."""
        return self.data * self.pipeline

    @property
    def n_sharing(self) -> int:
        """Data-parallel ranks that share experts and step together; 1 for a dense model."""
        return n_sharing(self.model, self.data)

    @property
    def plans_ahead(self) -> bool:
        """Whether a step is planned while the one before it runs."""
        return self.engine.async_scheduling and not (self.speculation and self.speculation.proposes_on_host)

    @property
    def hides_host(self) -> bool:
        """Whether the host's work for a step hides behind the kernels of the one before it. The batches of a pipeline
        keep it from that: the host plans for all of them."""
        return self.plans_ahead and self.engine.exposed_step_s is not None and self.pipeline == 1

    @property
    def borrowed(self) -> list[str]:
        """Parts of the model that the calibration lacks and takes from the default one."""
        return [] if self.calibration is None else borrowed(self.calibration, self.model)

    def step_cost(self) -> StepCost:
        """Return the step costs of one replica. Raises CalibrationError for kernels that were never timed."""
        return StepCost(
            self.model,
            self.gpu,
            self.engine,
            kernels=None if self.calibration is None else Calibrated(self.gpu, self.calibration, self.engine),
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.n_sharing,
            expert=self.expert,
            routing=self.expert_routing,
            node_link=self.node_link,
            exchange=exchange_kernels(self.gathers, self.role),
            hides_host=self.hides_host,
        )


@dataclass(frozen=True)
class Machine:
    """Model, GPU and engine of a pool."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec


def n_sharing(model: ModelSpec, data: int) -> int:
    """Return how many of the data-parallel ranks share experts and step together; 1 for a dense model."""
    return 1 if model.experts is None else data


def pool_setup(scenario: "Experiment", pool: "Pool") -> PoolSetup:
    """Return a pool of a resolved scenario, ready for the engine."""
    gpu = with_links(load_gpu(pool.gpu or scenario.gpu), pool)
    calibration = calibration_of(pool)
    named = pool.engine or scenario.engine
    engine = load_engine(named, calibration)
    if "async_scheduling" not in named.constants and _excludes_async(engine, pool):
        engine = replace(engine, async_scheduling=False)
    machine = Machine(catalog.load_model(pool.model or scenario.model), gpu, engine)
    scheduler: Scheduler = plugins.build("schedulers", pool.scheduler or dict(machine.engine.scheduler))
    memory = memory_of(scenario, pool, machine, scheduler)
    max_model_len = pool.max_model_len
    assert max_model_len is not None, "resolved"
    return PoolSetup(
        name=pool.name,
        role=pool.role,
        n_replicas=pool.replicas,
        model=machine.model.within(max_model_len),
        gpu=machine.gpu,
        engine=machine.engine,
        weight_dtype=weight_dtype_of(scenario, pool),
        kv_dtype=scenario.kv_dtype,
        tensor=pool.parallel.tensor,
        pipeline=pool.parallel.pipeline,
        data=pool.parallel.data,
        expert=pool.parallel.expert,
        node_link=node_link_of(pool, machine.gpu),
        gathers=pool.parallel.exchange == "gather",
        expert_routing=pool.expert_routing or UNIFORM_ROUTING,
        scheduler=scheduler,
        max_model_len=max_model_len,
        caches_prefixes=bool(pool.enable_prefix_caching),
        ledger=memory,
        calibration=calibration,
        asked_version=None if named.version == catalog.default_version(named.name) else named.version,
        host_tier=None if pool.host_tier is None else host_tier_spec(pool, pool.host_tier, memory),
        speculation=speculation_of(scenario, pool),
        balance=pool.parallel.balance,
    )


def _excludes_async(engine: EngineSpec, pool: "Pool") -> bool:
    """Tell whether the engine plans no steps ahead by default with the pool's pipeline or speculation."""
    used = {"pipeline"} if pool.parallel.pipeline > 1 else set()
    if pool.speculation is not None:
        used.add(pool.speculation.kind)
    return not used.isdisjoint(engine.async_excludes)


def host_block_bytes(pool: "Pool", memory: MemoryLedger) -> float:
    """Return the bytes of a tier for each block. With `scope: pool`, these are the parts of all GPUs of a rank; else
    that of one GPU, and each lane of a pipeline has an equal part of the tier, as the virtual engines of vLLM 0 had
    (core/scheduler.py, num_cpu_blocks)."""
    if pool.host_tier is not None and pool.host_tier.scope == "pool":
        return memory.block_bytes * pool.parallel.tensor * pool.parallel.pipeline
    return memory.block_bytes * memory.n_lanes


def host_tier_spec(pool: "Pool", tier: "HostTierSection", memory: MemoryLedger) -> HostTierSpec:
    """Convert a resolved host tier to blocks; the GPUs of a replica copy their shards of a block in parallel, and one
    disk of a pool stores all of them."""
    block_bytes, disk = host_block_bytes(pool, memory), tier.disk
    is_shared = tier.scope == "pool"
    on_disk_bytes = block_bytes if is_shared else memory.block_bytes
    assert tier.bytes_per_s is not None, "resolved"
    return HostTierSpec(
        n_blocks=int(tier.bytes // block_bytes),
        block_s=memory.block_bytes / tier.bytes_per_s,
        swaps=tier.preemption == "swap",
        offloads=bool(tier.offload_prefixes),
        overlaps=tier.reads == "overlap",
        disk_blocks=0 if disk is None else int(disk.bytes // block_bytes),
        disk_block_s=0.0 if disk is None else on_disk_bytes / disk.bytes_per_s,
        store=pool.name if is_shared else None,
    )


def with_links(gpu: GpuSpec, pool: "Pool") -> GpuSpec:
    """Return a card with the links of a pool's nodes."""
    return replace(gpu, link_topology=pool.parallel.link_topology or gpu.link_topology)


def node_link_of(pool: "Pool", gpu: GpuSpec) -> NodeLink:
    """Return the link between nodes of a pool: its own, else the card's network adapter."""
    own = pool.parallel.node_link
    return NodeLink(gpu.nic_bytes_per_s) if own is None else NodeLink(own.bytes_per_s, own.latency_s)


def exchange_kernels(gathers: bool, role: str) -> ExchangeKernels:
    """Return what moves tokens to experts on other nodes: collectives, or DeepEP's kernels for a pool's role."""
    return "gather" if gathers else EXCHANGES[role]


def calibration_of(pool: "Pool") -> Calibration | None:
    """Return the calibration that a resolved pool names. Raises CalibrationError."""
    named = pool.calibration
    return None if named is None or named.file == NO_CALIBRATION else read_calibration(calibration_path(named.file))


def load_engine(engine: "Engine", calibration: Calibration | None = None) -> EngineSpec:
    """Return the catalog's engine with its fitted constants and those of the scenario."""
    fitted = None if calibration is None else host_constants(calibration, engine.name)
    of_version = None if calibration is None else calibration.host_version
    return catalog.load_engine(
        engine.name, version=engine.version, fitted=fitted, fitted_version=of_version, **engine.constants
    )


def memory_of(
    scenario: "Experiment", pool: "Pool", machine: Machine, scheduler: Scheduler | None, **what_if: int
) -> MemoryLedger:
    """Return the memory ledger of a GPU; `what_if` replaces degrees of parallelism."""
    parallel = pool.parallel.model_copy(update=what_if)
    data = n_sharing(machine.model, parallel.data)
    expert = parallel.expert if parallel.expert == 1 or not what_if else parallel.tensor * data
    dtypes = weight_dtype_of(scenario, pool), scenario.kv_dtype
    shard = Shard(machine.model, *dtypes, parallel.tensor, expert, data)
    kernels = exchange_kernels(parallel.exchange == "gather", pool.role)
    exchange = exchange_of(shard, machine.gpu, node_link_of(pool, machine.gpu), kernels)
    speculation = speculation_of(scenario, pool)
    return ledger(
        machine.model,
        machine.gpu,
        machine.engine,
        weight_dtype=weight_dtype_of(scenario, pool),
        kv_dtype=scenario.kv_dtype,
        tensor=parallel.tensor,
        gpu_memory_utilization=memory_share_of(pool, machine, scheduler, **what_if),
        block_size=pool.block_size or machine.engine.block_size,
        max_num_batched_tokens=step_tokens(scheduler, machine.engine),
        max_num_seqs=sampled_rows(scheduler, machine.engine),
        num_gpu_blocks=pool.num_gpu_blocks,
        pipeline=parallel.pipeline,
        data=data,
        expert=expert,
        extra_memory=None if speculation is None else speculation.extra_memory(shard),
        buffer_bytes=0.0 if exchange is None else exchange.buffer_bytes,
        most_chunk=_most_chunk(scheduler, speculation),
        max_model_len=pool.max_model_len,
        n_states=1 if speculation is None else 1 + speculation.n_proposed,
        keeps_states=bool(pool.enable_prefix_caching),
    )


def memory_share_of(pool: "Pool", machine: Machine, scheduler: Scheduler | None, **what_if: int) -> float:
    """Return the share of memory that an engine takes: the given one, its constant, or that of its own rule."""
    given = pool.gpu_memory_utilization or machine.engine.gpu_memory_utilization
    if given is not None:
        return given
    return memory_share(machine.engine, machine.gpu, server_of(pool, machine, scheduler, **what_if))


def server_of(pool: "Pool", machine: Machine, scheduler: Scheduler | None, **what_if: int) -> ServerKnobs:
    """Return what an engine's rule for free memory depends on."""
    parallel = pool.parallel.model_copy(update=what_if)
    n_ranks = n_sharing(machine.model, parallel.data)
    is_alone = pool.role == "both" and n_ranks == parallel.pipeline == 1 and pool.host_tier is None
    return ServerKnobs(
        step_tokens=step_tokens(scheduler, machine.engine),
        n_gpus=parallel.tensor * parallel.pipeline * n_ranks,
        n_ranks=n_ranks,
        drafts=None if pool.speculation is None else pool.speculation.kind,
        has_latent=machine.model.mla is not None,
        captures_prompts=is_alone,
    )


def _most_chunk(scheduler: Scheduler | None, speculation: SpeculationSetup | None) -> int | None:
    """Return the most tokens of one request that a step computes, proposed ones included."""
    n_slots = 1 if speculation is None else speculation.n_slots
    chunk = None if scheduler is None else scheduler.most_chunk
    return None if chunk is None else max(chunk, n_slots)


def step_cost_of(scenario: "Experiment", pool: "Pool", machine: Machine) -> StepCost:
    """Return the step costs of a pool's target before the pool is resolved. Raises CalibrationError."""
    calibration = calibration_of(pool)
    return StepCost(
        machine.model,
        machine.gpu,
        machine.engine,
        kernels=None if calibration is None else Calibrated(machine.gpu, calibration, machine.engine),
        weight_dtype=weight_dtype_of(scenario, pool),
        kv_dtype=scenario.kv_dtype,
        tensor=pool.parallel.tensor,
        expert=min(pool.parallel.tensor, pool.parallel.expert),
    )


def step_tokens(scheduler: Scheduler | None, engine: EngineSpec) -> int:
    """Return the token budget of a step, which sizes activations."""
    budget_tokens = None if scheduler is None else scheduler.budget_tokens
    if budget_tokens is None:
        own: Scheduler = plugins.build("schedulers", dict(engine.scheduler))
        budget_tokens = own.budget_tokens
    return TOKENS_WITHOUT_BUDGET if budget_tokens is None else budget_tokens


def sampled_rows(scheduler: Scheduler | None, engine: EngineSpec) -> int:
    """Return the rows that an engine samples as it measures its memory, which size logits."""
    slots = scheduler.max_running if scheduler is not None and engine.samples_slots else None
    return SAMPLED_ROWS if slots is None else slots
