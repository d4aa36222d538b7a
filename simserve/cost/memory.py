"""Memory: the ledger of a GPU's bytes, and the number of KV blocks that remain.

Checked against start-up logs of real servers: tests/cost/test_kv_capacity.py.
"""

from dataclasses import dataclass

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.cost.kv_layout import KvLayout
from simserve.cost.layer_shards import mlp_shards
from simserve.cost.shard import ACTIVATION_BYTES, Shard
from simserve.cost.weights import Stage, stages, weights_bytes
from simserve.state.layer_blocks import ANY_LENGTH
from simserve.units import GIB

SAMPLED_ROWS = 256
"""Running requests, where the scheduler has no limit."""

DRIVER_BYTES = 0.55 * GIB
"""Bytes that nvidia-smi counts as total and CUDA does not: 0.46 GiB on an H100, 0.6 on H200 and L40S, 0.75 on A100."""

FAST_LINK_BYTES_PER_S = 450e9
"""Links this fast (NVLink 4) need the engine's whole group_reserve_bytes; slower ones need less."""


@dataclass(frozen=True)
class MemoryLedger:
    """Bytes of each GPU of a replica; with pipeline parallelism, of the stage with room for the fewest tokens.

    Invariant: weights + activations + reserve + kv <= usable <= total when the model fits (missing_bytes = 0).
    """

    total_bytes: float
    usable_bytes: float
    weights_bytes: float
    activations_bytes: float
    reserve_bytes: float
    kv_bytes: float
    n_blocks: int
    layout: KvLayout
    """What requests hold by layer group; all stages of a pipeline together."""
    block_bytes: float
    verified: bool
    """Whether the number of blocks was given, as a real server reported it, rather than computed."""
    missing_bytes: float
    """Missing memory for the model and a token's KV blocks per lane of a pipeline; 0 when it fits."""
    n_lanes: int = 1
    """Concurrent batches of a pipeline, which divide the blocks among them."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.layout.block_size

    @property
    def kv_tokens(self) -> int:
        """Tokens that the blocks hold, as engines print it: as if layers with a window kept all of them."""
        return self.layout.blocks.tokens_in(self.n_blocks)

    @property
    def lane_blocks(self) -> int:
        """Blocks per lane."""
        return self.n_blocks // self.n_lanes

    @property
    def lane_tokens(self) -> int:
        """Tokens of the longest request that the blocks of each lane hold."""
        return self.layout.blocks.longest(self.lane_blocks)

    @property
    def longest_tokens(self) -> int | None:
        """Tokens of that request; None: it may have any number, as no layer keeps all of them."""
        return None if self.lane_tokens >= ANY_LENGTH else self.lane_tokens


@dataclass(frozen=True)
class HostTierSpec:
    """Size and speed of a host tier. Sizes are in blocks of a replica, or of the store that replicas share."""

    n_blocks: int
    """Blocks in host memory."""
    block_s: float
    """Time per block over the link between GPU and host; both directions share it, one copy at a time."""
    swaps: bool = False
    """Whether preempted decoding requests are swapped there."""
    offloads: bool = False
    """Whether prefixes are kept there."""
    disk_blocks: int = 0
    disk_block_s: float = 0.0
    """Time per block to or from the disk, one at a time."""
    overlaps: bool = False
    """Whether a prefix is read while others go on, rather than before the step that needs it."""
    store: str | None = None
    """Name of the memory and disk that replicas share; None: each has its own."""


@dataclass(frozen=True)
class ExtraMemory:
    """Memory of a draft model next to its target."""

    weights_bytes: float = 0.0
    draft: Shard | None = None
    """A GPU's shard of a draft with keys or states of its own."""


def ledger(
    shard: Shard,
    gpu: GpuSpec,
    engine: EngineSpec,
    layout: KvLayout,
    *,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int = SAMPLED_ROWS,
    num_gpu_blocks: int | None = None,
    pipeline: int = 1,
    extra_weights_bytes: float = 0.0,
    buffer_bytes: float = 0.0,
) -> MemoryLedger:
    """Divide a GPU's memory as an engine does: weights, activation peak and reserve first, KV blocks get the rest.

    `buffer_bytes` are those of exchanges between nodes, which come from the share outside where activations do (SGLang:
    mem_fraction_static is for weights and KV).
    """
    model, rows = shard.model, min(max_num_batched_tokens, max_num_seqs)

    def of_stage(stage: Stage) -> MemoryLedger:
        logits = rows * model.vocab_size * engine.logit_bytes if stage.is_last else 0.0
        weights = weights_bytes(shard, stage) + extra_weights_bytes
        kept = workspace_bytes(shard, max_num_batched_tokens) if engine.keeps_workspace else 0.0
        peak = activations_bytes(shard, max_num_batched_tokens, logits + kept)
        activations, buffers = (peak, buffer_bytes) if engine.profiles_activations else (0.0, 0.0)
        reserve = reserve_bytes(gpu, engine, shard.tensor * shard.data * shard.prefill_context) + buffers
        held = weights + activations + reserve
        usable = _usable_bytes(gpu, engine, gpu_memory_utilization, (reserve, held))
        n_in_parts = [each.n_of(n) for n, each in zip(stage.n_in_groups, model.groups, strict=True) if each.n_keeping]
        block_bytes, left = layout.stage_bytes(n_in_parts), usable - held
        n_blocks = max(0, int(left // block_bytes)) if num_gpu_blocks is None else num_gpu_blocks // layout.n_merged
        n_least = pipeline * layout.blocks.most(1)
        return MemoryLedger(
            total_bytes=gpu.hbm_bytes,
            usable_bytes=usable,
            weights_bytes=weights,
            activations_bytes=activations,
            reserve_bytes=reserve,
            kv_bytes=n_blocks * block_bytes,
            n_blocks=n_blocks,
            layout=layout,
            block_bytes=block_bytes,
            verified=num_gpu_blocks is not None,
            missing_bytes=0.0 if n_blocks >= n_least else n_least * block_bytes - left,
            n_lanes=pipeline,
        )

    return min(map(of_stage, stages(model, pipeline)), key=lambda stage: (stage.n_blocks, -stage.missing_bytes))


def activations_bytes(shard: Shard, n_tokens: int, logits_bytes: float = 0.0) -> float:
    """Return one GPU's activation peak in a step of n_tokens: in its widest layer, or when it samples after the layers,
    with hidden states, logits and kept buffers alive. A layer's residual and input are alive throughout."""
    model, mla = shard.model, shard.model.mla
    mlp = 3 if model.gated_mlp else 2  # gate, up and product
    widths = [mlp * each.inner_size for each, n_layers in mlp_shards(shard) if n_layers]
    if model.experts is not None:
        # three buffers of fused experts, of which the last shares the first: gate and up, or outputs; and products
        # (vLLM, fused_moe.py); shared experts run before
        rows = mlp - 1
        routed = model.experts.top_k * (max(rows * shard.expert_columns, model.hidden_size) + shard.expert_columns)
        widths.append(max(routed, mlp * shard.shared_matrices["down"][0] if shard.shared_matrices else 0))
    if mla is not None:
        n_kinds = 1 if shard.expansion is None else 2  # queries and outputs; where expanded, keys and values
        widths.append(n_kinds * shard.n_heads * (mla.qk_head_dim + mla.v_head_dim))
    if shard.state is not None and not widths:
        widths.append(2 * shard.state.widths["mixed"])  # inputs before and after the convolution
    in_layers = n_tokens * ((1 + model.n_streams) * model.hidden_size + max(widths, default=0)) * ACTIVATION_BYTES
    return max(in_layers, n_tokens * model.hidden_size * ACTIVATION_BYTES + logits_bytes)


def workspace_bytes(shard: Shard, n_tokens: int) -> float:
    """Return the buffers of fused experts that stay allocated, for a step of n_tokens: products or outputs, and gate
    and up or inputs (vLLM, fused_moe.py, TritonExperts.workspace_shapes); kernels for mxfp4 have their own."""
    experts = shard.model.experts
    if experts is None or shard.weight_dtype == "mxfp4":
        return 0.0
    columns, hidden = shard.expert_columns, shard.model.hidden_size
    return n_tokens * experts.top_k * (max(columns, hidden) + max(2 * columns, hidden)) * ACTIVATION_BYTES


def reserve_bytes(gpu: GpuSpec, engine: EngineSpec, n_gpus: int) -> float:
    """Return the bytes of libraries, and of communication buffers where n_gpus reduce or exchange together; stages of a
    pipeline send without such buffers (start-up logs of vLLM 0.19)."""
    share = min(1.0, gpu.link_bytes_per_s / FAST_LINK_BYTES_PER_S) if n_gpus > 1 else 0.0
    return engine.reserve_bytes + share * engine.group_reserve_bytes


def _usable_bytes(gpu: GpuSpec, engine: EngineSpec, share: float, taken: tuple[float, float]) -> float:
    """Return a share of the memory that CUDA sees, or what is taken and a share of the rest: `taken` are the bytes
    before weights are loaded, and before the KV cache."""
    first = {"total": 0.0, "before_weights": taken[0], "after_weights": taken[1]}[engine.share_of]
    return first + share * (gpu.hbm_bytes - DRIVER_BYTES - first)
