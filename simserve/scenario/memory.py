"""Check that a model fits the GPUs of a pool, suggest what would fit, and limit the length of requests."""

from dataclasses import replace
from itertools import islice

from simserve import catalog
from simserve.catalog.specs import NEEDS_RATE, GpuSpec, ModelSpec
from simserve.cost.memory import MemoryLedger
from simserve.errors import CatalogError
from simserve.scenario.draft import PoolDraft
from simserve.scenario.host_tier import check_host_room
from simserve.scenario.machine import n_sharing

MEMORY_KEYS = (
    *("parallel", "weight_dtype", "num_gpu_blocks", "gpu_memory_utilization", "block_size", "max_model_len"),
    "speculation",
)
GB = 1e9

MORE_STAGES = (2, 4, 8)
"""Pipeline sizes to suggest for a model that is too large for one node."""


MOST_RANKS = 10_000
"""Limit on the schedulers of a pool; a hundred times the largest published fleet, and seconds to set up."""


def check_parallel(draft: PoolDraft) -> None:
    """Check that heads and layers divide evenly, and that GPUs which communicate in every layer fill their nodes."""
    model, gpu, parallel = draft.machine.model, draft.machine.gpu, draft.pool.parallel
    _check_tensor(draft)
    n_ranks = draft.pool.replicas * parallel.pipeline * parallel.data
    if n_ranks > MOST_RANKS:
        key = ("replicas",) if draft.pool.replicas > parallel.data else ("parallel", "data")
        rule = f"a pool may have at most {MOST_RANKS:,} schedulers (replicas × data × pipeline)"
        draft.problem(key, rule, n_ranks, "simulate a part of the fleet under its share of the load")
    if parallel.pipeline > model.n_layers:
        rule = f"must be at most the {model.n_layers} layers of {model.name}"
        draft.problem(("parallel", "pipeline"), rule, parallel.pipeline)
    if model.experts is None or parallel.data == 1:
        return
    n_gpus, here = parallel.tensor * parallel.data, ("parallel", "data")
    if n_gpus > gpu.gpus_per_node and n_gpus % gpu.gpus_per_node:
        rule = f"ranks that share experts fill one node or several, {gpu.gpus_per_node} GPUs each with parallel.tensor"
        draft.problem(here, f"{rule}: tokens cross to the same place of another node", parallel.data)
    elif n_gpus > gpu.gpus_per_node and gpu.link_topology == "host":
        rule = "ranks that share experts over several nodes write to each other's memory, which needs peer access"
        draft.problem(here, rule, parallel.data, f"use at most {max(1, gpu.gpus_per_node // parallel.tensor)}")
    elif n_gpus > gpu.gpus_per_node and parallel.expert != n_gpus:
        rule = f"must be parallel.tensor times parallel.data, {n_gpus}, over several nodes"
        why = "of an expert divided between them every token would need all parts"
        draft.problem(("parallel", "expert"), f"{rule}: {why}", parallel.expert, f"use {n_gpus}")


def _check_tensor(draft: PoolDraft) -> None:
    model, gpu = draft.machine.model, draft.machine.gpu
    tensor, at = draft.pool.parallel.tensor, ("parallel", "tensor")
    remedy = f"try {_either(valid_tensors(model, gpu))}"
    if model.n_heads % tensor:
        draft.problem(at, f"must divide the model's {model.n_heads} attention heads", tensor, remedy)
    elif model.n_kv_heads % tensor and tensor % model.n_kv_heads:
        draft.problem(at, f"must divide the model's {model.n_kv_heads} KV heads, or be a multiple", tensor, remedy)
    elif tensor > gpu.gpus_per_node and tensor % gpu.gpus_per_node:
        rule = f"must be at most the {gpu.gpus_per_node} GPUs of a node, or fill several"
        draft.problem(at, f"{rule}: a GPU sums with those at its place of the other nodes", tensor, remedy)


def valid_tensors(model: ModelSpec, gpu: GpuSpec) -> list[int]:
    """Return the tensor-parallel degrees that split this model evenly inside a node."""
    n_kv = model.n_kv_heads
    degrees = range(1, gpu.gpus_per_node + 1)
    return [n for n in degrees if model.n_heads % n == 0 and (n_kv % n == 0 or n % n_kv == 0)]


def fit_memory(draft: PoolDraft) -> PoolDraft:
    """Return the pool with `max_model_len` filled in; report a model that does not fit."""
    problems = draft.whole.problems
    wrong_before = draft.touched(*MEMORY_KEYS) or problems.touch(("weight_dtype",), ("kv_dtype",))
    if wrong_before or problems.has_unknown_key(draft.at):
        return draft
    try:
        memory = draft.memory()
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
    check_host_room(draft, memory)
    return _limit_length(draft, memory)


def _refuse(draft: PoolDraft, memory: MemoryLedger) -> None:
    """Report how much memory is missing, and which tensor parallelism or GPU would be enough."""
    machine, dtype, parallel = draft.machine, draft.weight_dtype, draft.pool.parallel
    missing = f"{memory.missing_bytes / GB:.1f} GB are missing on each"
    n_gpus = parallel.tensor * parallel.pipeline * n_sharing(machine.model, parallel.data)
    gpus = f"{n_gpus} {machine.gpu.name}"
    rule = f"{machine.model.name} in {dtype} does not fit the memory of {gpus}: {missing}"
    tensors = valid_tensors(machine.model, machine.gpu)
    degrees = [n for n in tensors if _fits(draft, tensor=n)]
    all_cards = [catalog.load_gpu(name) for name in catalog.names("gpus")]
    cards = [card for card in all_cards if dtype not in NEEDS_RATE or card.multiplies(dtype)]
    enough = [card.name for card in cards if _fits(replace(draft, machine=replace(machine, gpu=card)))]
    remedies = [f"parallel.tensor {_either(degrees)}"] if degrees else []
    if not degrees:
        most = max(tensors)
        counts = [n for n in MORE_STAGES if n <= machine.model.n_layers]
        stages = (n for n in counts if _fits(draft, tensor=most, pipeline=n, data=1))
        remedies += [f"parallel.tensor {most} with parallel.pipeline {n}" for n in islice(stages, 1)]
    remedies += [f"gpu {_either(enough)}"] if enough else []
    remedy = (
        f"try {', or '.join(remedies)}" if remedies else "no GPU of the catalog holds it: try a smaller weight_dtype"
    )
    draft.problem((), rule, None, remedy)


def _fits(draft: PoolDraft, **what_if: int) -> bool:
    try:
        return draft.memory(**what_if).missing_bytes <= 0
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


def _either(items: list[int] | list[str]) -> str:
    """Format a list as "1, 2 or 4"."""
    *most, last = map(str, items)
    return f"{', '.join(most)} or {last}" if most else last
