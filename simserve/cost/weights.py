"""Weights: their bytes on one GPU, in the layouts of kernels, by stage of a pipeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

from simserve.catalog.dtypes import STORED_BYTES
from simserve.catalog.latent import SharedVector
from simserve.catalog.layers import LayerGroup
from simserve.catalog.specs import ModelSpec
from simserve.catalog.states import Matrices
from simserve.cost.layer_shards import mlp_shards, sized
from simserve.cost.matrices import n_weights, own_matrices
from simserve.cost.shard import ACTIVATION_BYTES, Shard

MXFP4_TILE = 256
"""Kernels for mxfp4 pad the inner size of experts to a multiple of this (vLLM, mxfp4.py; gpt-oss: 2880 to 3072)."""


@dataclass(frozen=True)
class Stage:
    """The layers of one stage of a pipeline; a whole model is a pipeline of one."""

    n_in_mlps: tuple[int, ...]
    """Layers with each size of a plain MLP."""
    n_moe_layers: int
    n_layers: int
    n_in_groups: tuple[int, ...]
    """Layers of each group of the model."""
    is_first: bool = True
    """Whether it has the embeddings."""
    is_last: bool = True
    """Whether it has the LM head, and samples."""

    @property
    def n_dense_layers(self) -> int:
        """Layers with a plain MLP."""
        return sum(self.n_in_mlps)


def stages(model: ModelSpec, pipeline: int = 1) -> Iterator[Stage]:
    """Deal out layers evenly; the remainder goes to the stages before the last (vLLM, get_pp_indices). Groups and sizes
    of MLPs are spread evenly over the model's layers, experts over those after the dense ones."""
    most, extra = divmod(model.n_layers, pipeline)
    begin = 0
    for index in range(pipeline):
        is_last = index == pipeline - 1
        end = begin + most + (1 if not is_last and index >= pipeline - 1 - extra else 0)
        *n_in_mlps, n_moe = _mlps_between(model, begin, end)
        n_in_groups = _groups_between(model, begin, end)
        yield Stage(tuple(n_in_mlps), n_moe, end - begin, n_in_groups, is_first=index == 0, is_last=is_last)
        begin = end


def _groups_between(model: ModelSpec, begin: int, end: int) -> tuple[int, ...]:
    """Return how many layers are in each group, those with entries apart, as others count these layers, too."""
    plain, entries = ([each.n_layers for each in model.groups if each.has_entries == has] for has in (False, True))
    of_entries = (_between([n, model.n_layers - n], begin, end)[0] for n in entries)
    return (*_between(plain, begin, end), *of_entries)


def _mlps_between(model: ModelSpec, begin: int, end: int) -> list[int]:
    """Return how many layers have each size of an MLP, and experts: bare ones are among those with experts, or spread
    evenly without any; those with an MLP are before these, or by number."""
    dense = [n_layers for _, n_layers in mlp_shards(Shard(model))]
    if model.experts is None:
        return [*_between([*dense, model.n_bare_layers], begin, end)[:-1], 0]
    dense_at = model.experts.dense_at or range(model.n_dense_layers)
    first, last = (sum(layer < n_layers for layer in dense_at) for n_layers in (begin, end))
    others = _between([model.n_moe_layers, model.n_bare_layers], begin - first, end - last)
    return [*_between(dense, first, last), others[0]]


def _between(sizes: Sequence[int], begin: int, end: int) -> list[int]:
    """Return how many of the layers [begin, end) are in each group of these sizes, spread evenly."""
    n_all, sums = max(1, sum(sizes)), list(accumulate(sizes, initial=0))
    up_to = [end * n // n_all - begin * n // n_all for n in sums]
    return [last - first for first, last in pairwise(up_to)]


@dataclass(frozen=True)
class Parameters:
    """Weights on one GPU by part, each once; embeddings tied to the head are its matrix."""

    embeddings: int
    attention: int
    states: int
    mlp: int
    layer_inputs: int
    """Matrices around embeddings that each layer adds."""
    routed_experts: int
    shared_experts: int
    gates: int
    norms: int
    head: int

    @property
    def projections(self) -> int:
        """Weights of attention, states, MLP, inputs of layers and shared experts, which have one dtype."""
        return self.attention + self.states + self.mlp + self.layer_inputs + self.shared_experts


def parameters(shard: Shard, stage: Stage | None = None, *, is_active: bool = False) -> Parameters:
    """Count a stage's weights on one GPU, or all; active ones leave out embeddings and experts of other tokens, and
    have a shared block as often as a token meets it."""
    model, stage = shard.model, stage or next(stages(shard.model))
    layers, n_moe = [*zip(stage.n_in_groups, model.groups, strict=True)], stage.n_moe_layers
    has_embeddings = stage.is_first and not is_active and not (model.tie_word_embeddings and stage.is_last)
    n_routed = 0 if model.experts is None else model.experts.top_k if is_active else shard.n_experts
    own = None if is_active else model.layer_inputs
    n_own = 0 if own is None else stage.n_layers * own.vocabulary * own.width
    blocks, n_uses = model.shared_blocks, sum(n for n, group in layers if group.attends)
    n_again = 0 if is_active or blocks is None else max(0, n_uses - blocks.n_blocks)
    of_block = n_weights(shard.attention_matrices) - n_weights(own_matrices(model, shard.n_heads))
    shared = n_weights(shard.shared_matrices) + n_weights(shard.latent_matrices)
    n_state, n_matrix, n_none = (
        sum(n for n, group in layers if group.kind == kind) for kind in ("state", "matrix", "none")
    )
    mlps = zip(stage.n_in_mlps, mlp_shards(shard), strict=True)
    attention = sum(_attention_weights(shard, group, n) for n, group in layers if group.attends)
    return Parameters(
        embeddings=shard.head_weights * has_embeddings + n_own,
        attention=attention - n_again * of_block + n_matrix * n_weights(sized(shard, 0).mlp_matrices),
        states=n_state * n_weights(shard.linear_matrices),
        mlp=sum(n * n_weights(each.mlp_matrices) for n, (each, _) in mlps) - n_again * n_weights(shard.mlp_matrices),
        layer_inputs=stage.n_layers * n_weights(shard.input_matrices),
        routed_experts=n_moe and n_moe * n_routed * shard.expert_weights,
        shared_experts=n_moe * shared,
        gates=n_moe and n_moe * prod(shard.router),
        norms=(2 * stage.n_layers - n_none + stage.is_last) * model.hidden_size + _n_mixing(model, stage),
        head=shard.head_weights * stage.is_last,
    )


def matrices_of(shard: Shard, group: LayerGroup) -> Matrices:
    """Return (rows in, columns out) of a layer of a group: of attention, or of entries beside it."""
    match shard.model.mla:
        case SharedVector() as vector if group.has_entries:
            return vector.entry_matrices(shard.model.hidden_size, group.indexer)
    return shard.of(group).attention_matrices


def _attention_weights(shard: Shard, group: LayerGroup, n_layers: int) -> int:
    n_own = group.n_of(n_layers)
    kept, shared = (n_weights(matrices_of(each, group)) for each in (shard, shard.sharing))
    return n_own * kept + (n_layers - n_own) * shared


def _n_mixing(model: ModelSpec, stage: Stage) -> int:
    """Count the weights that mix residual streams, before and after attention and MLP of each layer, and last."""
    n = model.n_streams
    n_rows = 2 * stage.n_layers * (2 + n) * n + stage.is_last * n
    return n_rows * n * model.hidden_size if n > 1 else 0


def weights_bytes(shard: Shard, stage: Stage | None = None) -> float:
    """Return one GPU's weights: layers in their dtype; embeddings and LM head (one matrix when tied), gates and norms
    in 16 bits. Without a stage, the whole model."""
    stage = stage or next(stages(shard.model))
    dense, routed, n = STORED_BYTES[shard.dense_dtype], STORED_BYTES[shard.weight_dtype], parameters(shard, stage)
    in_experts = n.routed_experts
    if in_experts and shard.weight_dtype == "mxfp4":  # in the layout of the kernels
        in_experts = in_experts // shard.expert_columns * (-(-shard.expert_columns // MXFP4_TILE) * MXFP4_TILE)
    # decode applies a copy of kv_b to queries and outputs, unquantized (vLLM, mla/common.py)
    groups = zip(stage.n_in_groups, shard.model.groups, strict=True)
    absorbed = sum(n for n, group in groups if group.attends) * prod(shard.expansion or (0,))
    in_16_bits = n.embeddings + n.head + n.norms + n.gates + absorbed
    return n.projections * dense + in_experts * routed + in_16_bits * ACTIVATION_BYTES
