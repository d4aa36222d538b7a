"""Resolve a pool: look up what it names, fill in its defaults, and check its sections against each other."""

from typing import Any

from simserve import catalog
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.overlap import can_overlap
from simserve.errors import CalibrationError
from simserve.plugins.validation import ValueProblem
from simserve.scenario.cards import load_gpu
from simserve.scenario.draft import Draft
from simserve.scenario.host_tier import resolve_host_tier
from simserve.scenario.machine import Machine, calibration_of, check_rate, engine_of, resolve_calibration, with_version
from simserve.scenario.memory import fill_share, fit_memory
from simserve.scenario.parallel import check_parallel, resolve_experts
from simserve.scenario.pool import Defaults, Pool, PoolDraft, stated
from simserve.scenario.scheduler_rules import resolve_scheduler, with_slots_to_verify
from simserve.scenario.speculation import MODELS, check_speculation, resolve_draft
from simserve.schedulers.base import Scheduler


def resolve_pool(draft: Draft, defaults: Defaults, written: Pool) -> Pool:
    """Return a pool with every default filled in, as far as it has no problems."""
    name = draft.absolute_model(defaults.model if written.model is None else written.model)
    model = stated(draft, written, "model").looked_up(catalog.load_model, name)
    gpu, section = _gpu(draft, defaults, written), written.engine or defaults.engine
    at_engine = stated(draft, written, "engine")
    engine = at_engine.looked_up(engine_of, section)
    update: dict[str, Any] = {
        "calibration": resolve_calibration(draft.below("calibration"), written.calibration, section, (gpu, engine)),
        "model": written.model and draft.absolute_model(written.model),
        "gpu": written.gpu and draft.absolute_gpu(written.gpu),
        "engine": written.engine and with_version(at_engine, written.engine),
    }
    scheduler = None
    if engine is not None:
        policy = draft.below("scheduler"), written.scheduler, written.role
        scheduler, update["scheduler"] = resolve_scheduler(*policy, (engine, gpu))
        for key in ("gpu_memory_utilization", "block_size"):
            if getattr(written, key) is None and getattr(engine, key) is not None:
                update[key] = getattr(engine, key)
                draft.set_origin((key,), f"engine {engine.name}")
        update["enable_prefix_caching"] = _caching(draft, written, (engine, scheduler), model)
    pool = written.model_copy(update=update)
    if model is None or gpu is None or engine is None:
        return pool
    machine = Machine(model, gpu, engine)
    own = PoolDraft(**vars(draft), pool=pool, defaults=defaults, machine=machine, scheduler=scheduler)
    own = own.but(expert_routing=resolve_experts(own, pool.parallel, model, pool.expert_routing))
    check_parallel(own, pool.parallel, model, gpu, n_replicas=pool.replicas)
    check_rate(stated(draft, written, "weight_dtype"), own.weight_dtype, gpu)
    _check_moe_backend(own)
    _check_step_options(own)
    _check_timed(own)
    own = fit_memory(_with_speculation(_with_host_tier(own), written))
    _check_draft_length(own)
    return fill_share(own)


def _gpu(draft: Draft, defaults: Defaults, pool: Pool) -> GpuSpec | None:
    """Return the pool's own card, else the scenario's, with the links of the pool's nodes."""
    name = defaults.gpu if pool.gpu is None else pool.gpu
    gpu = stated(draft, pool, "gpu").looked_up(load_gpu, draft.absolute_gpu(name))
    if gpu is None:
        return None
    given = pool.parallel.link_topology
    if given not in (None, gpu.link_topology) and not {given, gpu.link_topology} <= {"switch", "host"}:
        rule = (
            f"{gpu.name} has links of kind {gpu.link_topology}; only those on PCIe choose peer access (switch) or host"
        )
        draft.problem(("parallel", "link_topology"), rule, given, "leave it out")
    return pool.parallel.links_of(gpu)


def _caching(
    draft: Draft, pool: Pool, runs: tuple[EngineSpec, Scheduler | None], model: ModelSpec | None
) -> bool | None:
    """Return the flag as given, else the engine's default for the role where model and policy allow caching."""
    engine, scheduler = runs
    here, given = ("enable_prefix_caching",), pool.enable_prefix_caching
    if scheduler is None or draft.touched(*here):
        return given
    if given and not scheduler.shares_blocks:
        rule = "this policy gives each request memory in one piece, so prefixes are not shared there"
        draft.problem(here, rule, given, "leave it out")
    if given is not None:
        return given
    if model is not None and model.n_state_layers:
        why = f"the states of {model.name} are not kept at the ends of prefixes, as in engines by default"
        draft.set_origin(here, why)
        return False
    why = f"engine {engine.name}" if scheduler.shares_blocks else "its scheduler gives each request its own memory"
    draft.set_origin(here, why)
    default = engine.decode_prefix_caching if pool.role == "decode" else engine.prefix_caching
    return default and scheduler.shares_blocks


def _check_moe_backend(draft: PoolDraft) -> None:
    """Report kernels for experts or a card that they were not made for."""
    given, here = _constant(draft, "moe_backend")
    if given is None or here.touched():
        return
    if draft.machine.model.experts is None or draft.weight_dtype != "mxfp4":
        here.problem((), "needs experts in mxfp4; those in int4 run by Marlin anyway", given, "leave it out")
    elif given != "marlin" and "fp4" not in draft.machine.gpu.flop_per_s:
        rule = f"multiplies blocks with scales, as cards with a rate for fp4 do, and {draft.machine.gpu.name} has none"
        here.problem((), rule, given, "leave it out, or use marlin")


def _check_step_options(draft: PoolDraft) -> None:
    """Report steps without CUDA graphs under an engine with unknown launches, and micro-batches without exchange."""
    machine, parallel = draft.machine, draft.pool.parallel
    given, here = _constant(draft, "enforce_eager")
    if given and not machine.engine.eager_kernel_s and not here.touched():
        rule = f"the time to launch a kernel under engine {machine.engine.name} is not known"
        here.problem((), rule, given, "set engine.eager_kernel_s, such as 4e-5")
    given, here = _constant(draft, "enable_dbo")
    link, kernels = parallel.link_between_nodes(machine.gpu), parallel.exchange_kernels(draft.pool.role)
    is_wrong = here.touched() or draft.touched("parallel")
    if given and not is_wrong and not can_overlap(draft.shard, machine.gpu, link, kernels):
        rule = "has nothing to hide: no rank exchanges tokens with others by DeepEP or all_to_all"
        remedy = "leave it out, or set parallel.data over several nodes, or parallel.exchange: all_to_all"
        here.problem((), rule, given, remedy)


def _constant(draft: PoolDraft, key: str) -> tuple[Any, Draft]:
    """Return the constant of the engine that pool or scenario state, None without, and where it stands."""
    engine = draft.pool.engine or draft.defaults.engine
    return engine.constants.get(key), stated(draft, draft.pool, "engine").below(key)


def _check_timed(draft: PoolDraft) -> None:
    """Report a kernel that the pool's model needs and its calibration lacks."""
    wrong_before = _is_misstated(draft, "expert_routing") or draft.problems.touch(("kv_dtype",))
    if wrong_before or calibration_of(draft.pool.calibration) is None:
        return
    try:
        draft.step_cost().check()
    except CalibrationError as error:
        draft.problems.add(ValueProblem((*draft.at, "calibration"), str(error)))


def _is_misstated(draft: PoolDraft, *keys: str) -> bool:
    """Tell whether there is a problem with what costs depend on, or with further keys."""
    keys = ("calibration", "parallel", "weight_dtype", *keys)
    return draft.touched(*keys) or draft.problems.touch(("weight_dtype",))


def _with_host_tier(draft: PoolDraft) -> PoolDraft:
    """Return the pool with its host tier filled in, where it has one."""
    pool, tier, gpu = draft.pool, draft.pool.host_tier, draft.machine.gpu
    if tier is None or draft.scheduler is None or draft.touched("host_tier"):
        return draft
    n_gpus = pool.replicas * pool.parallel.gpus_per_lane * pool.parallel.data
    here, caches = draft.below("host_tier"), bool(pool.enable_prefix_caching)
    tier = resolve_host_tier(here, tier, gpu, draft.scheduler, role=pool.role, n_gpus=n_gpus, caches=caches)
    return draft.but(host_tier=tier)


def _with_speculation(draft: PoolDraft, written: Pool) -> PoolDraft:
    """Return the pool with its draft filled in, and with its scheduler, perhaps with fewer slots."""
    given, here = draft.pool.speculation, draft.below("speculation")
    if given is None or here.touched():
        return draft
    check_speculation(here, given, draft.machine.model)
    if given.tokens and given.kind in ("eagle", "mtp") and not draft.machine.model.n_attention_layers:
        rule = f"{given.kind} proposes with a layer like those that attend, and {draft.machine.model.name} has none"
        here.problem(("kind",), rule, given.kind, "use draft_model, medusa or ngram")
    plans_ahead, there = _constant(draft, "async_scheduling")
    if plans_ahead and given.kind not in MODELS:
        rule = f"{given.kind} proposes from tokens on the host, so no step is planned ahead"
        there.problem((), rule, True, "leave it out")
    if not given.tokens:
        return draft
    draft = with_slots_to_verify(draft, written.scheduler or {}, given.tokens + 1)
    draft = draft.but(speculation=resolve_draft(here, given, draft.shard, draft.machine.gpu))
    _check_draft_timed(draft)
    return draft


def _check_draft_timed(draft: PoolDraft) -> None:
    """Check that the calibration has the draft's kernels."""
    setup = None if _is_misstated(draft, "speculation") else draft.speculation
    if setup is None:
        return
    try:
        drafted = setup.draft_cost(draft.step_cost())
        if drafted is not None:
            drafted.check()
    except CalibrationError as error:
        draft.problem(("speculation",), str(error))


def _check_draft_length(draft: PoolDraft) -> None:
    """Check that requests are no longer than the draft model's context; a head reads its target's layers instead."""
    speculation, given = draft.pool.speculation, draft.pool.max_model_len
    is_wrong = draft.touched("speculation", "max_model_len")
    if is_wrong or speculation is None or speculation.model is None or speculation.kind == "eagle":
        return
    most = catalog.load_model(speculation.model).max_position_embeddings
    if given is not None and given > most:
        rule = f"must be at most the {most} tokens of the draft model {speculation.model}"
        draft.problem(("max_model_len",), rule, given, f"set max_model_len: {most}")
