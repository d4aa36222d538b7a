"""The host_tier section: the host memory and disk of a pool, what uses them, their speed and their blocks."""

from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.catalog.specs import GpuSpec
from simserve.catalog.types import Positive, Section
from simserve.cost.memory import HostTierSpec, MemoryLedger
from simserve.plugins.validation import Path
from simserve.scenario.draft import Draft
from simserve.scenario.parallel import Parallel
from simserve.schedulers.base import Scheduler


class Disk(Section):
    """The disk tier for prefixes that host memory evicts."""

    bytes: Positive
    """[bytes] Capacity per GPU; of the whole pool with `scope: pool`."""
    bytes_per_s: Annotated[float, Field(ge=1e7)]
    """[bytes/s] Bandwidth per GPU, or of the whole pool with `scope: pool`, shared by reads and writes; at least that
    of a hard disk."""


class HostTierSection(Section):
    """The host memory tier of a pool. Resolving fills in values of None."""

    bytes: Positive
    """[bytes] Capacity per GPU; of the whole pool with `scope: pool` (vLLM `--kv-offloading-size`, SGLang
    `--hicache-size`, TensorRT-LLM `host_cache_size`)."""
    scope: Literal["replica", "pool"] = "replica"
    """`replica`: each replica has host memory of its own; `pool`: those of the pool share one store of prefixes."""
    bytes_per_s: Annotated[float, Field(ge=1e8)] | None = None
    """[bytes/s] Bandwidth between a GPU and host memory, both directions together; null: one direction of its PCIe
    link, or its network adapter if a pool of several nodes shares a store."""
    preemption: Literal["swap", "recompute"] | None = None
    """What preemption does with the KV blocks of a decoding request; null: `swap`, where supported (vLLM
    `--preemption-mode`)."""
    offload_prefixes: bool | None = None
    """Keep copies of prefixes in host memory; null: where the pool caches prefixes."""
    reads: Literal["overlap", "blocking"] | None = None
    """What waits for a prefix that is read back: its own request (`overlap`), or the whole next step (`blocking`);
    null: `overlap`."""
    disk: Disk | None = None
    """Disk for prefixes that host memory evicts; null: none."""


def resolve_host_tier(
    draft: Draft, tier: HostTierSection, gpu: GpuSpec, scheduler: Scheduler, *, role: str, n_gpus: int, caches: bool
) -> HostTierSection:
    """Return the tier with every value filled in, from its pool's role, GPUs, and whether it caches prefixes."""
    update: dict[str, Any] = {
        "preemption": _preemption(draft, tier, scheduler, role),
        "offload_prefixes": _offload_prefixes(draft, tier, caches=caches),
    }
    if update["offload_prefixes"]:
        update["reads"] = tier.reads or "overlap"
    if tier.bytes_per_s is None:
        update["bytes_per_s"], origin = _link(tier, gpu, n_gpus)
        draft.set_origin(("bytes_per_s",), origin)
    if update["preemption"] == "recompute" and not update["offload_prefixes"]:
        rule = "nothing would use host memory: requests are not swapped and prefixes are not offloaded"
        swap = "" if tier.scope == "pool" else "preemption: swap or "
        draft.problem((), rule, None, f"set {swap}enable_prefix_caching: true, or leave it out")
    for key in ("disk", "reads"):
        if getattr(tier, key) is not None and not update["offload_prefixes"]:
            draft.problem((key,), "is for prefixes, and none are offloaded", None, "leave it out")
    return tier.model_copy(update=update)


def _link(tier: HostTierSection, gpu: GpuSpec, n_gpus: int) -> tuple[float, str]:
    """Return the bandwidth between a GPU and host memory, of its own node or of all nodes of a pool, and its origin."""
    is_remote = tier.scope == "pool" and n_gpus > gpu.gpus_per_node
    if is_remote and gpu.nic_bytes_per_s < gpu.pcie_bytes_per_s:
        return gpu.nic_bytes_per_s, f"network adapter of gpu {gpu.name}, as the pool has several nodes"
    return gpu.pcie_bytes_per_s, f"gpu {gpu.name}"


def check_host_room(draft: Draft, tier: HostTierSection, parallel: Parallel, memory: MemoryLedger) -> None:
    """Check that host memory and disk hold at least one block for each lane, or one of the pool's."""
    sizes: list[tuple[Path, float]] = [(("bytes",), tier.bytes)]
    if tier.disk is not None:
        sizes.append((("disk", "bytes"), tier.disk.bytes))
    least_bytes = _block_bytes(tier, parallel, memory)
    for key, n_bytes in sizes:
        if n_bytes < least_bytes:
            each = "" if memory.n_lanes == 1 else " for each lane of the pipeline"
            rule = f"must hold a block of {memory.block_size} tokens{each}, {memory.block_bytes:.0f} bytes of each GPU"
            if tier.scope == "pool":
                rule = f"must hold a block of {memory.block_size} tokens, {least_bytes:.0f} bytes of all its GPUs"
            draft.problem(key, rule, n_bytes, "give bytes, as 200e9 for 200 GB")


def _preemption(draft: Draft, tier: HostTierSection, scheduler: Scheduler, role: str) -> str:
    """Return the preemption mode as given, else swap where requests are preempted while they decode."""
    at, why, remedy = ("preemption",), None, "leave it out"
    if tier.scope == "pool":
        remedy = "leave it out, or use scope: replica"
        why = "a store that replicas share holds prefixes; a swapped request is of use to its own replica only"
    elif scheduler.reserves or scheduler.runs_to_completion:
        why = "this policy reserves all blocks at admission, so it never preempts"
    elif role == "prefill":
        why = "prefill pools do not decode"
    if why is None:
        return tier.preemption or "swap"
    if tier.preemption == "swap":
        draft.problem(at, why, "swap", remedy)
    draft.set_origin(at, why)
    return "recompute"


def _offload_prefixes(draft: Draft, tier: HostTierSection, *, caches: bool) -> bool:
    """Return the flag as given, else whether the pool caches prefixes."""
    given, at = tier.offload_prefixes, ("offload_prefixes",)
    if given is None:
        draft.set_origin(at, "enable_prefix_caching")
        return caches
    if given and not caches:
        draft.problem(at, "this pool caches no prefixes", given, "set enable_prefix_caching: true, or leave it out")
    return given


def _block_bytes(tier: HostTierSection, parallel: Parallel, memory: MemoryLedger) -> float:
    """Return the bytes of a tier for each block. With `scope: pool`, these are the parts of all GPUs of a rank; else
    that of one GPU, and each lane of a pipeline has an equal part of the tier, as the virtual engines of vLLM 0 had
    (core/scheduler.py, num_cpu_blocks)."""
    if tier.scope == "pool":
        return memory.block_bytes * parallel.gpus_per_lane
    return memory.block_bytes * memory.n_lanes


def host_tier_spec(tier: HostTierSection, parallel: Parallel, memory: MemoryLedger, pool: str) -> HostTierSpec:
    """Convert a resolved host tier to blocks; the GPUs of a replica copy their shards of a block in parallel, and one
    disk of a pool stores all of them."""
    block_bytes, disk = _block_bytes(tier, parallel, memory), tier.disk
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
        store=pool if is_shared else None,
    )
