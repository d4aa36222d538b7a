"""Memory: the ledger of a GPU's bytes, and the number of KV blocks that remain.

Checked against start-up logs of real servers: tests/cost/test_kv_capacity.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import STORED_BYTES, GpuSpec, ModelSpec
from simserve.cost.kv_groups import KvLayout, kv_layout
from simserve.cost.ops import ACTIVATION_BYTES, Shard
from simserve.units import GIB

SAMPLED_ROWS = 256
"""Running requests, where the scheduler has no limit."""

DRIVER_BYTES = 0.55 * GIB
"""Bytes that nvidia-smi counts as total and CUDA does not: 0.46 GiB on an H100, 0.6 on H200 and L40S, 0.75 on A100."""

FAST_LINK_BYTES_PER_S = 450e9
"""Links this fast (NVLink 4) need the engine's whole group_reserve_bytes; slower ones need less."""

MXFP4_TILE = 256
"""Kernels for mxfp4 pad the inner size of experts to a multiple of this (vLLM, mxfp4.py; gpt-oss: 2880 to 3072)."""


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


@dataclass(frozen=True)
class ExtraMemory:
    """Memory of a draft model next to its target."""

    weights_bytes: float = 0.0
    draft: Shard | None = None
    """A GPU's shard of a draft with keys or states of its own."""


@dataclass(frozen=True)
class Stage:
    """The layers of one stage of a pipeline; a whole model is a pipeline of one."""

    n_dense_layers: int
    n_moe_layers: int
    n_in_groups: tuple[int, ...]
    """Layers of each group of the model."""
    is_first: bool = True
    """Whether it has the embeddings."""
    is_last: bool = True
    """Whether it has the LM head, and samples."""

    @property
    def n_layers(self) -> int:
        """Layers of all groups."""
        return sum(self.n_in_groups)


def ledger(
    model: ModelSpec,
    gpu: GpuSpec,
    engine: EngineSpec,
    *,
    weight_dtype: str,
    kv_dtype: str,
    tensor: int,
    gpu_memory_utilization: float,
    block_size: int,
    max_num_batched_tokens: int,
    max_num_seqs: int = SAMPLED_ROWS,
    num_gpu_blocks: int | None = None,
    pipeline: int = 1,
    data: int = 1,
    expert: int = 1,
    extra_memory: ExtraMemory | None = None,
    buffer_bytes: float = 0.0,
    most_chunk: int | None = None,
    max_model_len: int | None = None,
    n_states: int = 1,
    keeps_states: bool = False,
) -> MemoryLedger:
    """Divide a GPU's memory as an engine does: weights, activation peak and reserve first, KV blocks get the rest.

    `expert` GPUs share the experts; with several `data` groups, all their GPUs hold a part. Everything else is
    replicated on every data-parallel rank. `buffer_bytes` are those of exchanges between nodes, which come from the
    share outside where activations do (SGLang: mem_fraction_static is for weights and KV). The last four arguments are
    those of `kv_layout`.
    """
    shard = Shard(model, weight_dtype, kv_dtype, tensor, expert, data)
    rows = min(max_num_batched_tokens, max_num_seqs)
    extra_memory = extra_memory or ExtraMemory()
    bounds = block_size, most_chunk, max_model_len, n_states
    layout = kv_layout(shard, *bounds, keeps_states=keeps_states, draft=extra_memory.draft)

    def of_stage(stage: Stage) -> MemoryLedger:
        logits = rows * model.vocab_size * engine.logit_bytes if stage.is_last else 0.0
        weights = weights_bytes(shard, stage) + extra_memory.weights_bytes
        kept = workspace_bytes(shard, max_num_batched_tokens) if engine.keeps_workspace else 0.0
        peak = activations_bytes(shard, max_num_batched_tokens, logits + kept)
        activations = peak if engine.profiles_activations else 0.0
        buffers = buffer_bytes if engine.profiles_activations else 0.0
        reserve = reserve_bytes(gpu, engine, tensor * data) + buffers
        held = weights + activations + reserve
        usable = _usable_bytes(gpu, engine, gpu_memory_utilization, (reserve, held))
        n_in_parts = [n for n, group in zip(stage.n_in_groups, model.groups, strict=True) if group.kind != "none"]
        block_bytes = layout.stage_bytes(n_in_parts)
        left = usable - held
        n_given = None if num_gpu_blocks is None else num_gpu_blocks // layout.n_merged
        n_blocks = max(0, int(left // block_bytes)) if n_given is None else n_given
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


def stages(model: ModelSpec, pipeline: int = 1) -> Iterator[Stage]:
    """Deal out layers evenly; the remainder goes to the stages before the last (vLLM, get_pp_indices). Groups are
    spread evenly over the model's layers."""
    most, extra = divmod(model.n_layers, pipeline)
    begin = 0
    for index in range(pipeline):
        is_last = index == pipeline - 1
        end = begin + most + (1 if not is_last and index >= pipeline - 1 - extra else 0)
        n_dense = max(0, min(end, model.n_dense_layers) - begin)
        before, after = _up_to(model, begin), _up_to(model, end)
        n_in_groups = tuple(last - first for first, last in zip(before, after, strict=True))
        n_moe = 0 if model.experts is None else end - begin - n_dense
        yield Stage(n_dense, n_moe, n_in_groups, is_first=index == 0, is_last=is_last)
        begin = end


def _up_to(model: ModelSpec, n_layers: int) -> list[int]:
    """Return how many of the first layers are in each group, all groups together n_layers."""
    counts: list[int] = []
    n_grouped = 0
    for group in model.groups:
        n_grouped += group.n_layers
        counts.append(n_layers * n_grouped // model.n_layers - sum(counts))
    return counts


def weights_bytes(shard: Shard, stage: Stage | None = None) -> float:
    """Return one GPU's weights: layers in their dtype; embeddings and LM head (one matrix when tied), gates and norms
    in 16 bits. Without a stage, the whole model."""
    model = shard.model
    stage = stage or next(stages(model))
    dense, routed = STORED_BYTES[shard.dense_dtype], STORED_BYTES[shard.weight_dtype]
    numbers = stage.n_dense_layers * shard.mlp_weights
    for n_layers, group in zip(stage.n_in_groups, model.groups, strict=True):
        of_layer = shard.linear_weights if group.kind == "state" else shard.attention_weights
        numbers += n_layers * (of_layer if group.kind != "none" else 0)
    in_experts, in_gates = 0, 0
    if stage.n_moe_layers:
        numbers += stage.n_moe_layers * shard.shared_weights
        in_experts = stage.n_moe_layers * shard.n_experts * _stored_expert_weights(shard)
        in_gates = stage.n_moe_layers * shard.router_weights
    n_vocabularies = stage.is_first + stage.is_last
    if model.tie_word_embeddings and n_vocabularies == 2:
        n_vocabularies = 1
    norms = (2 * stage.n_layers + stage.is_last) * model.hidden_size
    in_16_bits = n_vocabularies * shard.head_weights + norms + in_gates + stage.n_layers * _absorbed_weights(shard)
    return numbers * dense + in_experts * routed + in_16_bits * ACTIVATION_BYTES


def activations_bytes(shard: Shard, n_tokens: int, logits_bytes: float = 0.0) -> float:
    """Return one GPU's activation peak in a step of n_tokens: in its widest layer, or when it samples after the layers,
    with hidden states, logits and kept buffers alive. A layer's residual and input are alive throughout."""
    model, mla = shard.model, shard.model.mla
    mlp = 3 if model.gated_mlp else 2  # gate, up and product
    widths = [mlp * shard.inner_size] if model.n_dense_layers else []
    if model.experts is not None:
        routed = _expert_buffers(shard)  # shared experts run before
        widths.append(max(routed, mlp * shard.shared_matrices["down"][0] if shard.shared_matrices else 0))
    if mla is not None:
        widths.append(shard.n_heads * (2 * mla.qk_head_dim + 2 * mla.v_head_dim))  # queries, keys, values, outputs
    in_layers = n_tokens * (2 * model.hidden_size + max(widths)) * ACTIVATION_BYTES
    return max(in_layers, n_tokens * model.hidden_size * ACTIVATION_BYTES + logits_bytes)


def workspace_bytes(shard: Shard, n_tokens: int) -> float:
    """Return the buffers of fused experts that stay allocated, for a step of n_tokens: products or outputs, and gate
    and up or inputs (vLLM, fused_moe.py, TritonExperts.workspace_shapes); kernels for mxfp4 have their own."""
    experts = shard.model.experts
    if experts is None or shard.weight_dtype == "mxfp4":
        return 0.0
    columns, hidden = shard.expert_columns, shard.model.hidden_size
    return n_tokens * experts.top_k * (max(columns, hidden) + max(2 * columns, hidden)) * ACTIVATION_BYTES


def _expert_buffers(shard: Shard) -> int:
    """Return the values per token in the three buffers of fused experts, of which the last shares the first (vLLM,
    fused_moe.py): gate and up, or outputs; and products."""
    assert shard.model.experts is not None, "the model has experts"
    columns = shard.expert_columns
    return shard.model.experts.top_k * (max(2 * columns, shard.model.hidden_size) + columns)


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


def _stored_expert_weights(shard: Shard) -> int:
    """Count the weights of an expert in the layout of the kernels."""
    if shard.weight_dtype != "mxfp4":
        return shard.expert_weights
    columns = -(-shard.expert_columns // MXFP4_TILE) * MXFP4_TILE
    return shard.expert_weights // shard.expert_columns * columns


def _absorbed_weights(shard: Shard) -> int:
    """Count the copy of kv_b that decode applies to queries and outputs, unquantized (vLLM, mla/common.py)."""
    if shard.model.mla is None:
        return 0
    n_in, n_out = shard.attention_matrices["kv_b"]
    return n_in * n_out
