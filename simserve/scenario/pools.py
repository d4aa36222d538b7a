"""Resolve a pool: its model, GPU, engine and scheduler, and whether the model fits its GPUs."""

from typing import Any

from simserve import catalog
from simserve.catalog.engine_spec import Engine, EngineSpec
from simserve.catalog.layers import UNIFORM_ROUTING
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.kept_free import kept_free_mib
from simserve.plugins.validation import Path
from simserve.scenario.calibrations import check_timed, resolve_calibration
from simserve.scenario.cards import load_gpu
from simserve.scenario.draft import Draft, PoolDraft
from simserve.scenario.host_tier import resolve_host_tier
from simserve.scenario.knobs import resolve_scheduler
from simserve.scenario.machine import Machine, load_engine, memory_share_of, server_of, with_links
from simserve.scenario.memory import check_parallel, fit_memory
from simserve.scenario.servers import Pool
from simserve.scenario.speculation import check_draft_length, resolve_speculation
from simserve.scenario.weights import check_rate
from simserve.schedulers.base import Scheduler
from simserve.units import GIB, MIB


def resolve_pool(draft: Draft, index: int) -> Pool:
    """Return a pool with every default filled in, as far as it has no problems."""
    at: Path = ("cluster", "pools", index)
    pool = draft.scenario.cluster.pools[index]
    model, gpu, engine = _model(draft, pool, at), _gpu(draft, pool, at), _engine(draft, pool, at)
    pool = resolve_calibration(draft, pool, at, (gpu, engine))
    update: dict[str, Any] = {} if pool.model is None else {"model": draft.absolute_model(pool.model)}
    update |= {} if pool.gpu is None else {"gpu": draft.absolute_gpu(pool.gpu)}
    update |= {} if pool.engine is None else {"engine": with_version(draft, pool.engine, (*at, "engine"))}
    scheduler = None
    if engine is not None:
        scheduler, update["scheduler"] = resolve_scheduler(draft, pool, at, (engine, gpu))
        for key in ("gpu_memory_utilization", "block_size"):
            if getattr(pool, key) is None and getattr(engine, key) is not None:
                update[key] = getattr(engine, key)
                draft.origins[*at, key] = f"engine {engine.name}"
        update["enable_prefix_caching"] = _resolve_caching(draft, pool, at, (engine, scheduler), model)
    pool = pool.model_copy(update=update)
    if model is None or gpu is None or engine is None:
        return pool
    own = _resolve_experts(PoolDraft(draft, at, pool, Machine(model, gpu, engine), scheduler))
    check_parallel(own)
    here: Path = (
        ("weight_dtype",) if draft.scenario.cluster.pools[index].weight_dtype is None else (*at, "weight_dtype")
    )
    check_rate(draft, here, own.weight_dtype, gpu)
    _check_moe_backend(own)
    check_timed(own)
    own = fit_memory(resolve_speculation(resolve_host_tier(own)))
    check_draft_length(own)
    return _by_own_rule(own)


def _by_own_rule(draft: PoolDraft) -> Pool:
    """Fill in the share of memory that the engine computes from what is to stay free."""
    pool, machine, scheduler = draft.pool, draft.machine, draft.scheduler
    if pool.gpu_memory_utilization is not None or draft.touched("gpu_memory_utilization", "parallel", "scheduler"):
        return pool
    kept_gib = kept_free_mib(machine.engine, machine.gpu, server_of(pool, machine, scheduler)) * MIB / GIB
    origin = f"engine {machine.engine.name}, its own rule: {kept_gib:.1f} GiB stay free"
    draft.set_origin(("gpu_memory_utilization",), origin)
    share = memory_share_of(pool, machine, scheduler)
    return pool.model_copy(update={"gpu_memory_utilization": share})


def _check_moe_backend(draft: PoolDraft) -> None:
    """Report kernels for experts or a card that they were not made for."""
    engine, at = draft.whole.engine_of(draft.pool, draft.at)
    given, where = engine.constants.get("moe_backend"), (*at, "moe_backend")
    if given is None or draft.whole.problems.touch(where):
        return
    if draft.machine.model.experts is None or draft.weight_dtype != "mxfp4":
        rule = "needs experts in mxfp4; those in int4 run by Marlin anyway"
        draft.whole.problem(where, rule, given, "leave it out")
    elif given != "marlin" and "fp4" not in draft.machine.gpu.flop_per_s:
        rule = f"multiplies blocks with scales, as cards with a rate for fp4 do, and {draft.machine.gpu.name} has none"
        draft.whole.problem(where, rule, given, "leave it out, or use marlin")


def _resolve_caching(
    draft: Draft, pool: Pool, at: Path, runs: tuple[EngineSpec, Scheduler | None], model: ModelSpec | None
) -> bool | None:
    """Return the flag as given, else the engine's default for the role where model and policy allow caching."""
    engine, scheduler = runs
    here, given = (*at, "enable_prefix_caching"), pool.enable_prefix_caching
    if scheduler is None or draft.problems.touch(here):
        return given
    if given and not scheduler.shares_blocks:
        rule = "this policy gives each request memory in one piece, so prefixes are not shared there"
        draft.problem(here, rule, given, "leave it out")
    if given is None and model is not None and model.n_state_layers:
        draft.origins[here] = (
            f"the states of {model.name} are not kept at the ends of prefixes, as in engines by default"
        )
        return False
    if given is None:
        why = f"engine {engine.name}" if scheduler.shares_blocks else "its scheduler gives each request its own memory"
        draft.origins[here] = why
        default = engine.decode_prefix_caching if pool.role == "decode" else engine.prefix_caching
        return default and scheduler.shares_blocks
    return given


def _resolve_experts(draft: PoolDraft) -> PoolDraft:
    """Return the pool with its expert routing filled in; report an expert parallelism that is not of whole experts."""
    model, pool, parallel = draft.machine.model, draft.pool, draft.pool.parallel
    here = ("parallel", "expert")
    if parallel.balance is not None and (model.experts is None or parallel.data == 1):
        rule = "is for data-parallel ranks that step together, and this pool has none"
        remedy = "leave it out, or set parallel.data of a model with experts"
        draft.problem(("parallel", "balance"), rule, None, remedy)
    if model.experts is None:
        if parallel.expert > 1:
            draft.problem(here, f"{model.name} has no experts", parallel.expert, "leave it out")
        if pool.expert_routing is not None:
            draft.problem(("expert_routing",), f"{model.name} has no experts", pool.expert_routing, "leave it out")
        return draft
    n_gpus = parallel.tensor * parallel.data
    if n_gpus % parallel.expert:
        product = "parallel.tensor" if parallel.data == 1 else "parallel.tensor times parallel.data"
        rule = f"must divide {product}, {n_gpus}: the GPUs of a replica share the experts"
        draft.problem(here, rule, parallel.expert, f"use 1 or {n_gpus}")
    if pool.expert_routing is None:
        routing = model.experts.routing
        draft.set_origin(("expert_routing",), "default" if routing == UNIFORM_ROUTING else f"model {model.name}")
        return draft.but(expert_routing=routing)
    return draft


def _model(draft: Draft, pool: Pool, at: Path) -> ModelSpec | None:
    """Return the pool's own model, else the scenario's; the path of a config.json may be relative."""
    name, where = (draft.scenario.model, ("model",)) if pool.model is None else (pool.model, (*at, "model"))
    return draft.looked_up(where, lambda: catalog.load_model(draft.absolute_model(name)))


def _gpu(draft: Draft, pool: Pool, at: Path) -> GpuSpec | None:
    name, where = (draft.scenario.gpu, ("gpu",)) if pool.gpu is None else (pool.gpu, (*at, "gpu"))
    gpu = draft.looked_up(where, lambda: load_gpu(draft.absolute_gpu(name)))
    if gpu is None:
        return None
    given = pool.parallel.link_topology
    if given not in (None, gpu.link_topology) and not {given, gpu.link_topology} <= {"switch", "host"}:
        rule = (
            f"{gpu.name} has links of kind {gpu.link_topology}; only those on PCIe choose peer access (switch) or host"
        )
        draft.problem((*at, "parallel", "link_topology"), rule, given, "leave it out")
    return with_links(gpu, pool)


def _engine(draft: Draft, pool: Pool, at: Path) -> EngineSpec | None:
    engine, where = draft.engine_of(pool, at)
    return draft.looked_up(where, lambda: load_engine(engine))


def with_version(draft: Draft, engine: Engine, at: Path) -> Engine:
    """Return an engine with its version, so that a later default does not change what a stored scenario means."""
    if engine.version is not None or engine.name not in catalog.names("engines"):
        return engine
    draft.origins[*at, "version"] = f"default of engine {engine.name}"
    return engine.model_copy(update={"version": catalog.default_version(engine.name)})
