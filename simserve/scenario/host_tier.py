"""The host memory tier of a pool: its users, its speed, and its blocks."""

from typing import Any

from simserve.catalog.specs import GpuSpec
from simserve.cost.memory import HostTierSpec, MemoryLedger
from simserve.plugins.validation import Path
from simserve.scenario.draft import PoolDraft
from simserve.scenario.servers import HostTierSection, Pool
from simserve.schedulers.base import Scheduler


def resolve_host_tier(draft: PoolDraft) -> PoolDraft:
    """Return the pool with its host tier filled in, where it has one."""
    tier = draft.pool.host_tier
    if tier is None or draft.scheduler is None or draft.touched("host_tier"):
        return draft
    update: dict[str, Any] = {
        "preemption": _preemption(draft, tier, draft.scheduler),
        "offload_prefixes": _offload_prefixes(draft, tier),
    }
    if update["offload_prefixes"]:
        update["reads"] = tier.reads or "overlap"
    if tier.bytes_per_s is None:
        update["bytes_per_s"], origin = _link(draft.pool, draft.machine.gpu)
        draft.set_origin(("host_tier", "bytes_per_s"), origin)
    if update["preemption"] == "recompute" and not update["offload_prefixes"]:
        rule = "nothing would use host memory: requests are not swapped and prefixes are not offloaded"
        swap = "" if tier.scope == "pool" else "preemption: swap or "
        draft.problem(("host_tier",), rule, None, f"set {swap}enable_prefix_caching: true, or leave it out")
    for key in ("disk", "reads"):
        if getattr(tier, key) is not None and not update["offload_prefixes"]:
            draft.problem(("host_tier", key), "is for prefixes, and none are offloaded", None, "leave it out")
    return draft.but(host_tier=tier.model_copy(update=update))


def _link(pool: Pool, gpu: GpuSpec) -> tuple[float, str]:
    """Return the bandwidth between a GPU and host memory, of its own node or of all nodes of a pool, and its origin."""
    parallel, tier = pool.parallel, pool.host_tier
    n_gpus = pool.replicas * parallel.tensor * parallel.pipeline * parallel.data
    is_remote = tier is not None and tier.scope == "pool" and n_gpus > gpu.gpus_per_node
    if is_remote and gpu.nic_bytes_per_s < gpu.pcie_bytes_per_s:
        return gpu.nic_bytes_per_s, f"network adapter of gpu {gpu.name}, as the pool has several nodes"
    return gpu.pcie_bytes_per_s, f"gpu {gpu.name}"


def check_host_room(draft: PoolDraft, memory: MemoryLedger) -> None:
    """Check that host memory and disk hold at least one block for each lane, or one of the pool's."""
    tier = draft.pool.host_tier
    sizes: list[tuple[Path, float]] = [] if tier is None else [(("bytes",), tier.bytes)]
    if tier is not None and tier.disk is not None:
        sizes.append((("disk", "bytes"), tier.disk.bytes))
    for key, n_bytes in sizes:
        least_bytes = _block_bytes(draft.pool, memory)
        if n_bytes < least_bytes:
            each = "" if memory.n_lanes == 1 else " for each lane of the pipeline"
            rule = f"must hold a block of {memory.block_size} tokens{each}, {memory.block_bytes:.0f} bytes of each GPU"
            if tier is not None and tier.scope == "pool":
                rule = f"must hold a block of {memory.block_size} tokens, {least_bytes:.0f} bytes of all its GPUs"
            draft.problem(("host_tier", *key), rule, n_bytes, "give bytes, as 200e9 for 200 GB")


def _preemption(draft: PoolDraft, tier: HostTierSection, scheduler: Scheduler) -> str:
    """Return the preemption mode as given, else swap where requests are preempted while they decode."""
    at, why, remedy = ("host_tier", "preemption"), None, "leave it out"
    if tier.scope == "pool":
        remedy = "leave it out, or use scope: replica"
        why = "a store that replicas share holds prefixes; a swapped request is of use to its own replica only"
    elif scheduler.reserves or scheduler.runs_to_completion:
        why = "this policy reserves all blocks at admission, so it never preempts"
    elif draft.pool.role == "prefill":
        why = "prefill pools do not decode"
    if why is None:
        return tier.preemption or "swap"
    if tier.preemption == "swap":
        draft.problem(at, why, "swap", remedy)
    draft.set_origin(at, why)
    return "recompute"


def _offload_prefixes(draft: PoolDraft, tier: HostTierSection) -> bool:
    """Return the flag as given, else whether the pool caches prefixes."""
    given, at, caches = tier.offload_prefixes, ("host_tier", "offload_prefixes"), draft.pool.enable_prefix_caching
    if given is None:
        draft.set_origin(at, "enable_prefix_caching")
        return bool(caches)
    if given and not caches:
        draft.problem(at, "this pool caches no prefixes", given, "set enable_prefix_caching: true, or leave it out")
    return given


def _block_bytes(pool: Pool, memory: MemoryLedger) -> float:
    """Return the bytes of a tier for each block. With `scope: pool`, these are the parts of all GPUs of a rank; else
    that of one GPU, and each lane of a pipeline has an equal part of the tier, as the virtual engines of vLLM 0 had
    (core/scheduler.py, num_cpu_blocks)."""
    if pool.host_tier is not None and pool.host_tier.scope == "pool":
        return memory.block_bytes * pool.parallel.tensor * pool.parallel.pipeline
    return memory.block_bytes * memory.n_lanes


def host_tier_spec(pool: Pool, tier: HostTierSection, memory: MemoryLedger) -> HostTierSpec:
    """Convert a resolved host tier to blocks; the GPUs of a replica copy their shards of a block in parallel, and one
    disk of a pool stores all of them."""
    block_bytes, disk = _block_bytes(pool, memory), tier.disk
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
