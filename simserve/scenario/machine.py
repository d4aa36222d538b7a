"""Machine: the model, GPU and engine of a pool, with its links, its calibration and its memory ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simserve import catalog, plugins
from simserve.catalog.engine_spec import Engine, EngineSpec
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.calibrated import Calibrated
from simserve.cost.calibration import NO_CALIBRATION, Calibration, calibration_path, host_constants, read_calibration
from simserve.cost.comm import ExchangeKernels, NodeLink
from simserve.cost.kept_free import ServerKnobs, memory_share
from simserve.cost.kv_groups import kv_layout
from simserve.cost.memory import SAMPLED_ROWS, ExtraMemory, MemoryLedger, ledger
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost, exchange_of
from simserve.scenario.models import Experiment
from simserve.scenario.servers import Parallel, Pool
from simserve.scenario.speculation_setup import SpeculationSetup
from simserve.schedulers.base import Scheduler

EXCHANGES: Mapping[str, ExchangeKernels] = {"prefill": "normal", "decode": "low_latency", "both": "by_batch"}
"""Kernels between nodes by the role of a pool (SGLang, --deepep-mode: normal for prefill, low_latency for decode)."""

TOKENS_WITHOUT_BUDGET = 8192
"""Step size for sizing activations where neither scheduler nor engine has a token budget."""


@dataclass(frozen=True)
class Machine:
    """Model, GPU and engine of a pool."""

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineSpec


def n_sharing(model: ModelSpec, data: int) -> int:
    """Return how many of the data-parallel ranks share experts and step together; 1 for a dense model."""
    return 1 if model.experts is None else data


def with_links(gpu: GpuSpec, pool: Pool) -> GpuSpec:
    """Return a card with the links of a pool's nodes."""
    return replace(gpu, link_topology=pool.parallel.link_topology or gpu.link_topology)


def node_link_of(pool: Pool, gpu: GpuSpec) -> NodeLink:
    """Return the link between nodes of a pool: its own, else the card's network adapter."""
    own = pool.parallel.node_link
    return NodeLink(gpu.nic_bytes_per_s) if own is None else NodeLink(own.bytes_per_s, own.latency_s)


def exchange_kernels(parallel: Parallel, role: str) -> ExchangeKernels:
    """Return what moves tokens to experts on other nodes: collectives, or DeepEP's kernels for a pool's role."""
    return "gather" if parallel.exchange == "gather" else EXCHANGES[role]


def calibration_of(pool: Pool) -> Calibration | None:
    """Return the calibration that a resolved pool names. Raises CalibrationError."""
    named = pool.calibration
    return None if named is None or named.file == NO_CALIBRATION else read_calibration(calibration_path(named.file))


def load_engine(engine: Engine, calibration: Calibration | None = None) -> EngineSpec:
    """Return the catalog's engine with its fitted constants and those of the scenario."""
    fitted = None if calibration is None else host_constants(calibration, engine.name)
    of_version = None if calibration is None else calibration.host_version
    return catalog.load_engine(
        engine.name, version=engine.version, fitted=fitted, fitted_version=of_version, **engine.constants
    )


def weight_dtype_of(scenario: Experiment, pool: Pool) -> str:
    """Return the weight dtype of a pool: its own, else the scenario's."""
    return pool.weight_dtype or scenario.weight_dtype


def speculation_of(scenario: Experiment, pool: Pool) -> SpeculationSetup | None:
    """Return how a pool speculates; None without proposals. Raises CatalogError."""
    speculation = pool.speculation
    if speculation is None or not speculation.tokens:
        return None
    model = None if speculation.model is None else catalog.load_model(speculation.model)
    if model is not None and pool.max_model_len is not None:
        model = model.within(pool.max_model_len)
    dtype = speculation.weight_dtype or weight_dtype_of(scenario, pool)
    return SpeculationSetup(speculation.kind, speculation.rates, speculation.propose_s, model, dtype)


def step_cost_of(scenario: Experiment, pool: Pool, machine: Machine) -> StepCost:
    """Return the step costs of a pool before it is resolved. Raises CalibrationError."""
    calibration, parallel = calibration_of(pool), pool.parallel
    degrees = parallel.tensor, parallel.expert, n_sharing(machine.model, parallel.data)
    return StepCost(
        Shard(machine.model, weight_dtype_of(scenario, pool), scenario.kv_dtype, *degrees),
        machine.gpu,
        machine.engine,
        kernels=None if calibration is None else Calibrated(machine.gpu, calibration, machine.engine),
        pipeline=parallel.pipeline,
    )


def memory_of(
    scenario: Experiment, pool: Pool, machine: Machine, scheduler: Scheduler | None, **what_if: int
) -> MemoryLedger:
    """Return the memory ledger of a GPU; `what_if` replaces degrees of parallelism."""
    parallel = pool.parallel.model_copy(update=what_if)
    data = n_sharing(machine.model, parallel.data)
    expert = parallel.expert if parallel.expert == 1 or not what_if else parallel.tensor * data
    dtype = weight_dtype_of(scenario, pool)
    shard = Shard(machine.model, dtype, scenario.kv_dtype, parallel.tensor, expert, data)
    kernels = exchange_kernels(parallel, pool.role)
    exchange = exchange_of(shard, machine.gpu, node_link_of(pool, machine.gpu), kernels)
    speculation = speculation_of(scenario, pool)
    draft = ExtraMemory() if speculation is None else speculation.extra_memory(shard)
    layout = kv_layout(
        shard,
        pool.block_size or machine.engine.block_size,
        _most_chunk(scheduler, speculation),
        pool.max_model_len,
        1 if speculation is None else 1 + speculation.n_proposed,
        keeps_states=bool(pool.enable_prefix_caching),
        draft=draft.draft,
    )
    return ledger(
        shard,
        machine.gpu,
        machine.engine,
        layout,
        gpu_memory_utilization=memory_share_of(pool, machine, scheduler, **what_if),
        max_num_batched_tokens=step_tokens(scheduler, machine.engine),
        max_num_seqs=sampled_rows(scheduler, machine.engine),
        num_gpu_blocks=pool.num_gpu_blocks,
        pipeline=parallel.pipeline,
        extra_weights_bytes=draft.weights_bytes,
        buffer_bytes=0.0 if exchange is None else exchange.buffer_bytes,
    )


def memory_share_of(pool: Pool, machine: Machine, scheduler: Scheduler | None, **what_if: int) -> float:
    """Return the share of memory that an engine takes: the given one, its constant, or that of its own rule."""
    given = pool.gpu_memory_utilization or machine.engine.gpu_memory_utilization
    if given is not None:
        return given
    return memory_share(machine.engine, machine.gpu, server_of(pool, machine, scheduler, **what_if))


def server_of(pool: Pool, machine: Machine, scheduler: Scheduler | None, **what_if: int) -> ServerKnobs:
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
