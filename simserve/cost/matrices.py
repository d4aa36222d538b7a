"""Matrices: those that attention and experts multiply on one GPU, and the weights in any."""

from dataclasses import dataclass

from simserve.catalog.specs import ModelSpec
from simserve.catalog.states import Matrices


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of a layer and the GPUs that share them, as a cost form needs them.

    GPUs that do not divide the experts hold copies of some, so that each has as many (vLLM, num_redundant_experts).
    """

    hidden: int
    inter: int
    """Inner size of one expert, before `tensor` GPUs divide it."""
    n_experts: int
    """Experts of all GPUs, copies included."""
    top_k: int
    tensor: int
    """GPUs that divide each expert."""
    expert: int
    """GPUs that distribute the experts."""


def attention_matrices(model: ModelSpec, n_heads: int, n_kv_heads: int) -> dict[str, tuple[int, int]]:
    """Return (rows in, columns out) by name for heads of a GPU; no KV heads: with the keys of another layer."""
    mla, hidden = model.mla, model.hidden_size
    if mla is not None:
        index = {} if model.indexer is None else model.indexer.matrices(hidden, mla.q_lora_rank)
        return {**mla.matrices(hidden, n_heads), **index}
    value_size = model.value_head_dim or model.head_dim
    queries = n_heads * (2 if model.gated_attention else 1) * model.head_dim
    keys, output = n_kv_heads * (model.head_dim + value_size), {"output": (n_heads * value_size, hidden)}
    if model.shared_blocks is not None:
        return {"qkv": (model.shared_blocks.width, queries + keys), **output, **own_matrices(model, n_heads)}
    rank = model.query_rank
    if rank is None:
        return {"qkv": (hidden, queries + keys), **output}
    return {"qkv": (hidden, rank + keys), "q_b": (rank, queries), **output}


def own_matrices(model: ModelSpec, n_heads: int) -> dict[str, tuple[int, int]]:
    """Return (rows in, columns out) by name of what each use of a shared block has of its own; empty without any."""
    blocks, inner = model.shared_blocks, -(-model.intermediate_size * n_heads // model.n_heads)
    return {} if blocks is None else blocks.matrices(model.hidden_size, inner)


def n_weights(matrices: Matrices) -> int:
    """Count the weights in matrices."""
    return sum(n_in * n_out for n_in, n_out in matrices.values())
