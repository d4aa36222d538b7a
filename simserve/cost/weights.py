"""Weights: their bytes on one GPU, in the layouts of kernels, by stage of a pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from simserve.catalog.specs import STORED_BYTES, ModelSpec
from simserve.cost.shard import ACTIVATION_BYTES, Shard, n_weights

MXFP4_TILE = 256
"""Kernels for mxfp4 pad the inner size of experts to a multiple of this (vLLM, mxfp4.py; gpt-oss: 2880 to 3072)."""


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
        n_moe = _moe_up_to(model, end) - _moe_up_to(model, begin)
        yield Stage(n_dense, n_moe, n_in_groups, is_first=index == 0, is_last=is_last)
        begin = end


def _moe_up_to(model: ModelSpec, n_layers: int) -> int:
    """Return how many of the first layers have experts: those after the dense ones, spread evenly where some are
    bare."""
    n_others = model.n_layers - model.n_dense_layers
    return max(0, n_layers - model.n_dense_layers) * model.n_moe_layers // n_others if model.n_moe_layers else 0


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
    numbers = stage.n_dense_layers * n_weights(shard.mlp_matrices) + stage.n_layers * n_weights(shard.input_matrices)
    for n_layers, group in zip(stage.n_in_groups, model.groups, strict=True):
        matrices = shard.linear_matrices if group.kind == "state" else shard.of(group).attention_matrices
        numbers += n_layers * (n_weights(matrices) if group.kind != "none" else 0)
    in_experts, in_gates = 0, 0
    if stage.n_moe_layers:
        numbers += stage.n_moe_layers * (n_weights(shard.shared_matrices) + n_weights(shard.latent_matrices))
        in_expert = shard.expert_weights
        if shard.weight_dtype == "mxfp4":  # in the layout of the kernels
            in_expert = in_expert // shard.expert_columns * (-(-shard.expert_columns // MXFP4_TILE) * MXFP4_TILE)
        in_experts = stage.n_moe_layers * shard.n_experts * in_expert
        in_gates = stage.n_moe_layers * prod(shard.router)
    n_vocabularies = stage.is_first + stage.is_last
    if model.tie_word_embeddings and n_vocabularies == 2:
        n_vocabularies = 1
    norms = (2 * stage.n_layers + stage.is_last) * model.hidden_size
    # decode applies a copy of kv_b to queries and outputs, unquantized (vLLM, mla/common.py)
    absorbed = stage.n_layers * prod(shard.expansion or (0,))
    own = model.layer_inputs
    looked_up = 0 if own is None else stage.n_layers * own.vocabulary * own.width
    in_16_bits = looked_up + n_vocabularies * shard.head_weights + norms + in_gates + absorbed
    return numbers * dense + in_experts * routed + in_16_bits * ACTIVATION_BYTES
