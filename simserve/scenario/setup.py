"""PoolSetup: a pool of a resolved scenario with everything looked up and built, ready for the engine; Distortion: what
perturbs its costs, to measure what cost-model error does to an answer."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from simserve import catalog, plugins
from simserve.autoscalers.base import Autoscaler
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.layers import UNIFORM_ROUTING
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import Calibration, host_constants
from simserve.cost.comm import NodeLink
from simserve.cost.memory import HostTierSpec, MemoryLedger
from simserve.cost.overlap import TwoBatchCost
from simserve.cost.step import StepCost
from simserve.cost.timed_forms import borrowed
from simserve.scenario.cards import load_gpu
from simserve.scenario.host_tier import host_tier_spec
from simserve.scenario.machine import Machine, calibration_of, engine_of
from simserve.scenario.memory import captures_prompts, memory_of
from simserve.scenario.parallel import Parallel
from simserve.scenario.pool import Defaults, Pool
from simserve.scenario.proposals import SpeculationSetup, speculation_setup
from simserve.schedulers.base import Scheduler

HOST = ("step_host_s", "request_host_s", "exposed_step_s", "eager_kernel_s", "mask_token_s", "gap_s")
FRONT_END = ("receive_s", "receive_token_s", "respond_s", "hand_over_s")


@dataclass(frozen=True)
class Distortion:
    """Factors on times and on the number of KV blocks; 1 is the prediction."""

    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    host: float = 1.0
    front_end: float = 1.0
    kv_blocks: float = 1.0


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
    parallel: Parallel
    node_link: NodeLink
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
    autoscaler: Autoscaler | None = None
    """What changes the number of replicas; None: it stays."""
    structured_frac: float = 0.0
    """Share of requests with structured output."""
    scaler_note: str | None = None
    """What of the autoscaler's manifest is not simulated; None: all is, or it has none."""

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
    def most_replicas(self) -> int:
        """Most replicas at a time, as far as its autoscaler decides."""
        policy = self.autoscaler
        return self.n_replicas if policy is None else max(self.n_replicas, policy.most_replicas(self.gpus_per_replica))

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of all ranks."""
        return self.parallel.n_gpus

    @property
    def gpus_per_lane(self) -> int:
        """GPUs that hold parts of a block."""
        return self.parallel.gpus_per_lane

    @property
    def ranks_per_replica(self) -> int:
        """Schedulers of a replica: its data-parallel ranks times the lanes of a pipeline."""
        return self.parallel.data * self.parallel.pipeline

    @property
    def n_sharing(self) -> int:
        """Data-parallel ranks that share experts and step together; 1 for a dense model."""
        return self.parallel.n_sharing(self.model)

    @property
    def n_independent(self) -> int:
        """Replicas, each with all ranks that step together; ranks that share nothing are replicas of their own."""
        return self.n_replicas * self.parallel.data // self.n_sharing

    @property
    def plans_ahead(self) -> bool:
        """Whether a step is planned while the one before it runs."""
        return self.engine.async_scheduling and not (self.speculation and self.speculation.proposes_on_host)

    @property
    def hides_host(self) -> bool:
        """Whether the host's work for a step hides behind the kernels of the one before it. The batches of a pipeline
        keep it from that: the host plans for all of them."""
        return self.plans_ahead and self.engine.exposed_step_s is not None and self.parallel.pipeline == 1

    @property
    def mask_s(self) -> float:
        """Mean host time of a request in a step for the masks of all tokens that are sampled for it."""
        n_proposed = self.speculation.n_proposed if self.speculation else 0
        return self.structured_frac * (1 + n_proposed) * self.engine.mask_token_s

    @property
    def borrowed(self) -> list[str]:
        """Parts of the model that the calibration lacks and takes from the default one."""
        return [] if self.calibration is None else borrowed(self.calibration, self.model)

    def step_cost(self) -> StepCost:
        """Return the step costs of one replica. Raises CalibrationError for kernels that were never timed."""
        return self._step_cost

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _step_cost(self) -> StepCost:
        """fast: costs are pure, so that all runs of a process share their tables."""
        return (TwoBatchCost if self.engine.enable_dbo else StepCost)(
            self.parallel.shard(self.model, self.weight_dtype, self.kv_dtype, self.expert_routing),
            self.gpu,
            replace(self.engine, request_host_s=self.engine.request_host_s + self.mask_s),
            kernels=None if self.calibration is None else Calibrated(self.gpu, self.calibration, self.engine),
            pipeline=self.parallel.pipeline,
            node_link=self.node_link,
            exchange=self.parallel.exchange_kernels(self.role),
            hides_host=self.hides_host,
        )

    def distorted(self, by: Distortion) -> "PoolSetup":
        """Return the pool with GPU, engine and memory perturbed; a block count that the user gave stays."""
        gpu = replace(
            self.gpu,
            flop_per_s={dtype: flop_per_s / by.compute for dtype, flop_per_s in self.gpu.flop_per_s.items()},
            hbm_bytes_per_s=self.gpu.hbm_bytes_per_s / by.memory,
            link_bytes_per_s=self.gpu.link_bytes_per_s / by.link,
            nic_bytes_per_s=self.gpu.nic_bytes_per_s / by.link,
            link_latency_s=self.gpu.link_latency_s * by.link,
        )
        node_link = replace(self.node_link, bytes_per_s=self.node_link.bytes_per_s / by.link)
        factors = dict.fromkeys(HOST, by.host) | dict.fromkeys(FRONT_END, by.front_end)
        given = {name: each for name in factors if (each := getattr(self.engine, name)) is not None}
        engine = replace(self.engine, **{name: each * factors[name] for name, each in given.items()})
        ledger = self.ledger
        if not ledger.verified:
            least = ledger.n_lanes * ledger.layout.blocks.most(self.max_model_len)
            ledger = replace(ledger, n_blocks=max(least, round(ledger.n_blocks * by.kv_blocks)))
        tier = self.host_tier and replace(self.host_tier, block_s=self.host_tier.block_s * by.link)
        return replace(self, gpu=gpu, node_link=node_link, engine=engine, ledger=ledger, host_tier=tier)


def pool_setup(scenario: Defaults, pool: Pool, structured_frac: float = 0.0) -> PoolSetup:
    """Return a pool of a resolved scenario, ready for the engine."""
    gpu = pool.parallel.links_of(load_gpu(pool.gpu or scenario.gpu))
    calibration = calibration_of(pool.calibration)
    named = pool.engine or scenario.engine
    engine = engine_of(named, calibration, pool.parallel.gpus_per_lane)
    if "async_scheduling" not in named.constants and _excludes_async(engine, pool):
        engine = replace(engine, async_scheduling=False)
    machine = Machine(catalog.load_model(pool.model or scenario.model), gpu, engine)
    captures = "eager_kernel_s" not in named.constants and captures_prompts(pool, machine)
    machine = replace(machine, engine=replace(engine, captures_prompts=captures))
    scheduler: Scheduler = plugins.build("schedulers", pool.scheduler or dict(machine.engine.scheduler))
    memory = memory_of(scenario, pool, machine, scheduler)
    max_model_len = pool.max_model_len
    assert max_model_len is not None, "resolved"
    weight_dtype = pool.weight_dtype or scenario.weight_dtype
    tier = pool.host_tier
    return PoolSetup(
        name=pool.name,
        role=pool.role,
        n_replicas=pool.replicas,
        model=machine.model.within(max_model_len),
        gpu=machine.gpu,
        engine=machine.engine,
        weight_dtype=weight_dtype,
        kv_dtype=scenario.kv_dtype,
        parallel=pool.parallel,
        node_link=pool.parallel.link_between_nodes(machine.gpu),
        expert_routing=pool.expert_routing or UNIFORM_ROUTING,
        scheduler=scheduler,
        max_model_len=max_model_len,
        caches_prefixes=bool(pool.enable_prefix_caching),
        ledger=memory,
        calibration=calibration,
        asked_version=None if named.version == catalog.default_version(named.name) else named.version,
        host_tier=None if tier is None else host_tier_spec(tier, pool.parallel, memory, pool.name),
        speculation=speculation_setup(pool.speculation, weight_dtype, max_model_len),
        autoscaler=None if pool.autoscaler is None else plugins.build("autoscalers", pool.autoscaler),
        structured_frac=structured_frac,
    )


def _excludes_async(engine: EngineSpec, pool: Pool) -> bool:
    """Tell whether the engine plans no steps ahead by default with the pool's pipeline or speculation."""
    used = {"pipeline"} if pool.parallel.pipeline > 1 else set()
    if pool.speculation is not None:
        used.add(pool.speculation.kind)
    return not used.isdisjoint(engine.async_excludes)
