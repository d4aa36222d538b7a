"""The memory of a pool's GPUs: its ledger, whether the model fits, what would, and how long requests may be."""

from dataclasses import replace
from itertools import islice

from simserve import catalog, plugins
from simserve.catalog.dtypes import NEEDS_RATE
from simserve.catalog.engine_spec import EngineSpec
from simserve.cost.exchange import exchange_of
from simserve.cost.kept_free import ServerKnobs, kept_free_mib, memory_share
from simserve.cost.kv_groups import kv_layout
from simserve.cost.memory import SAMPLED_ROWS, ExtraMemory, MemoryLedger, ledger
from simserve.errors import CatalogError
from simserve.scenario.host_tier import check_host_room
from simserve.scenario.machine import Machine
from simserve.scenario.parallel import either, valid_tensors
from simserve.scenario.pool import Defaults, Pool, PoolDraft
from simserve.scenario.proposals import speculation_setup
from simserve.schedulers.base import Scheduler
from simserve.units import GIB, MIB

MEMORY_KEYS = (
    *("parallel", "weight_dtype", "num_gpu_blocks", "gpu_memory_utilization", "block_size", "max_model_len"),
    "speculation",
)
GB = 1e9

MORE_STAGES = (2, 4, 8)
"""Pipeline sizes to suggest for a model that is too large for one node."""

TOKENS_WITHOUT_BUDGET = 8192
"""Step size for sizing activations where neither scheduler nor engine has a token budget."""


def memory_of(defaults: Defaults, pool: Pool, machine: Machine, scheduler: Scheduler | None) -> MemoryLedger:
    """Return the memory ledger of a GPU."""
    parallel, dtype = pool.parallel, pool.weight_dtype or defaults.weight_dtype
    shard = parallel.shard(machine.model, dtype, defaults.kv_dtype)
    link, kernels = parallel.link_between_nodes(machine.gpu), parallel.exchange_kernels(pool.role)
    exchange = exchange_of(shard, machine.gpu, link, kernels)
    speculation = speculation_setup(pool.speculation, dtype, pool.max_model_len)
    draft = ExtraMemory() if speculation is None else speculation.extra_memory(shard)
    most_chunk = None if scheduler is None else scheduler.most_chunk
    if most_chunk is not None and speculation is not None:  # a step also computes what is proposed
        most_chunk = max(most_chunk, speculation.n_slots)
    layout = kv_layout(
        shard,
        (pool.block_size or machine.engine.block_size) * shard.decode_context,
        most_chunk,
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
        gpu_memory_utilization=memory_share_of(pool, machine, scheduler),
        max_num_batched_tokens=step_tokens(scheduler, machine.engine),
        max_num_seqs=sampled_rows(scheduler, machine.engine),
        num_gpu_blocks=pool.num_gpu_blocks,
        pipeline=parallel.pipeline,
        extra_weights_bytes=draft.weights_bytes,
        buffer_bytes=0.0 if exchange is None else exchange.buffer_bytes,
    )


def memory_share_of(pool: Pool, machine: Machine, scheduler: Scheduler | None) -> float:
    """Return the share of memory that an engine takes: the given one, its constant, or that of its own rule."""
    given = pool.gpu_memory_utilization or machine.engine.gpu_memory_utilization
    if given is not None:
        return given
    return memory_share(machine.engine, machine.gpu, server_of(pool, machine, scheduler))


def server_of(pool: Pool, machine: Machine, scheduler: Scheduler | None) -> ServerKnobs:
    """Return what an engine's rule for free memory depends on."""
    parallel, n_ranks = pool.parallel, pool.parallel.n_sharing(machine.model)
    return ServerKnobs(
        step_tokens=step_tokens(scheduler, machine.engine),
        n_gpus=parallel.gpus_per_lane * n_ranks,
        n_ranks=n_ranks,
        drafts=None if pool.speculation is None else pool.speculation.kind,
        has_latent=machine.model.mla is not None,
        captures_prompts=captures_prompts(pool, machine),
    )


def captures_prompts(pool: Pool, machine: Machine) -> bool:
    """Tell whether the engine's CUDA graphs hold steps with prompts: not with a role, a pipeline, ranks or host memory,
    nor on the cards and for the models that it leaves out."""
    n_ranks, rule = pool.parallel.n_sharing(machine.model), (machine.engine.kept_free_mib or {}).get("piecewise")
    if machine.engine.enforce_eager or machine.engine.captures_prompts:
        return not machine.engine.enforce_eager
    is_alone = pool.role == "both" and n_ranks == pool.parallel.pipeline == 1 and pool.host_tier is None
    return is_alone and rule is not None and not {machine.gpu.name, machine.model.name}.intersection(rule["except"])


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


def fit_memory(draft: PoolDraft) -> PoolDraft:
    """Return the pool with `max_model_len` filled in; report a model that does not fit."""
    problems = draft.problems
    wrong_before = draft.touched(*MEMORY_KEYS) or problems.touch(("weight_dtype",), ("kv_dtype",))
    if wrong_before or problems.has_unknown_key(draft.at):
        return draft
    try:
        memory = _ledger(draft)
    except CatalogError as error:
        draft.problem((), str(error))
        return draft
    if memory.missing_bytes > 0:
        _refuse(draft, memory)
        return draft
    needed_bytes = memory.weights_bytes + memory.kv_bytes
    if needed_bytes > memory.total_bytes:  # only a user's num_gpu_blocks can be too large
        has, needs = f"{memory.total_bytes / GB:.1f} GB", f"{needed_bytes / GB:.1f} GB"
        rule = f"a GPU has {has}, and the weights with these blocks need {needs}"
        most = int((memory.total_bytes - memory.weights_bytes) // memory.block_bytes)
        remedy = f"at most {most} fit" if most > 0 else None
        draft.problem(("num_gpu_blocks",), rule, draft.pool.num_gpu_blocks, remedy)
        return draft
    if draft.pool.host_tier is not None:
        check_host_room(draft.below("host_tier"), draft.pool.host_tier, draft.pool.parallel, memory)
    return _limit_length(draft, memory)


def _refuse(draft: PoolDraft, memory: MemoryLedger) -> None:
    """Report how much memory is missing, and which tensor parallelism or GPU would be enough."""
    machine, dtype, parallel = draft.machine, draft.weight_dtype, draft.pool.parallel
    missing = f"{memory.missing_bytes / GB:.1f} GB are missing on each"
    gpus = f"{parallel.gpus_per_lane * parallel.n_sharing(machine.model)} {machine.gpu.name}"
    rule = f"{machine.model.name} in {dtype} does not fit the memory of {gpus}: {missing}"
    tensors = valid_tensors(machine.model, machine.gpu)
    degrees = [n for n in tensors if _fits(_split(draft, tensor=n))]
    all_cards = [catalog.load_gpu(name) for name in catalog.names("gpus")]
    cards = [card for card in all_cards if dtype not in NEEDS_RATE or card.multiplies(dtype)]
    enough = [card.name for card in cards if _fits(replace(draft, machine=replace(machine, gpu=card)))]
    remedies = [f"parallel.tensor {either(degrees)}"] if degrees else []
    if not degrees:
        most = max(tensors)
        counts = [n for n in MORE_STAGES if n <= machine.model.n_layers]
        stages = (n for n in counts if _fits(_split(draft, tensor=most, pipeline=n, data=1)))
        remedies += [f"parallel.tensor {most} with parallel.pipeline {n}" for n in islice(stages, 1)]
    remedies += [f"gpu {either(enough)}"] if enough else []
    remedy = (
        f"try {', or '.join(remedies)}" if remedies else "no GPU of the catalog holds it: try a smaller weight_dtype"
    )
    draft.problem((), rule, None, remedy)


def _split(draft: PoolDraft, **degrees: int) -> PoolDraft:
    """Return the pool with other degrees of parallelism; distributed experts stay distributed over all GPUs."""
    parallel = draft.pool.parallel.model_copy(update={"decode_context": 1, **degrees})
    if parallel.expert > 1:
        n_gpus = parallel.tensor * parallel.n_sharing(draft.machine.model)
        parallel = parallel.model_copy(update={"expert": n_gpus})
    return draft.but(parallel=parallel)


def _ledger(draft: PoolDraft) -> MemoryLedger:
    return memory_of(draft.defaults, draft.pool, draft.machine, draft.scheduler)


def _fits(draft: PoolDraft) -> bool:
    try:
        return _ledger(draft).missing_bytes <= 0
    except CatalogError:  # this GPU does not support the dtype
        return False


def _limit_length(draft: PoolDraft, memory: MemoryLedger) -> PoolDraft:
    """Resolve max_model_len: check the given value, else take the most that model and KV cache allow."""
    model, here = draft.machine.model, ("max_model_len",)
    most = min(model.max_position_embeddings, memory.lane_tokens)
    given = draft.pool.max_model_len
    if given is not None and given > model.max_position_embeddings:
        draft.problem(here, f"must be at most the {model.max_position_embeddings} tokens of {model.name}", given)
    elif given is not None and given > memory.lane_tokens:
        of_lane = f" for each of {memory.n_lanes} lanes" if memory.n_lanes > 1 else ""
        rule = f"must fit the KV cache, which holds {memory.lane_tokens} tokens{of_lane}"
        draft.problem(here, rule, given, "use more memory or GPUs, or a smaller kv_dtype")
    elif given is None:
        is_models = most == model.max_position_embeddings
        draft.set_origin(here, f"model {model.name}" if is_models else "what the KV cache holds")
        return draft.but(max_model_len=most)
    return draft


def fill_share(draft: PoolDraft) -> Pool:
    """Fill in the share of memory that the engine computes from what is to stay free."""
    pool, machine, scheduler = draft.pool, draft.machine, draft.scheduler
    if pool.gpu_memory_utilization is not None or draft.touched("gpu_memory_utilization", "parallel", "scheduler"):
        return pool
    kept_gib = kept_free_mib(machine.engine, machine.gpu, server_of(pool, machine, scheduler)) * MIB / GIB
    origin = f"engine {machine.engine.name}, its own rule: {kept_gib:.1f} GiB stay free"
    draft.set_origin(("gpu_memory_utilization",), origin)
    share = memory_share_of(pool, machine, scheduler)
    return pool.model_copy(update={"gpu_memory_utilization": share})
