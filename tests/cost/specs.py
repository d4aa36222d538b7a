"""Tiny makers: transformers of a round number of parameters, and the bare roofline."""

from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

from simserve import catalog
from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec, ModelSpec
from simserve.cost.kv_groups import kv_layout
from simserve.cost.matrices import n_weights
from simserve.cost.memory import ExtraMemory, MemoryLedger, ledger
from simserve.cost.roofline import Work, matmul_work
from simserve.cost.shard import Shard
from simserve.cost.step import StepCost
from simserve.cost.weights import parameters

H100 = catalog.load_gpu("h100-sxm")
IDEAL = catalog.load_engine("ideal")

SHARD = ("weight_dtype", "kv_dtype", "tensor", "expert", "data", "routing")
LAYOUT = ("block_size", "most_chunk", "max_model_len", "n_states", "keeps_states")


def billions(n: int) -> ModelSpec:
    """A dense model of n layers of exactly 1e9 parameters, next to no vocabulary, as rules of thumb have it.

    A layer: 1e4 x 3e4 (QKV) + 1e4 x 1e4 (output) + 2 matrices of 1e4 x 3e4 (MLP).
    """
    return ModelSpec(
        name=f"{n}b",
        n_layers=n,
        hidden_size=10_000,
        n_heads=100,
        n_kv_heads=100,
        head_dim=100,
        intermediate_size=30_000,
        vocab_size=1,
        max_position_embeddings=10_000,
        gated_mlp=False,
    )


def step_cost(model: ModelSpec, gpu: GpuSpec, engine: EngineSpec, **how: Any) -> StepCost:
    """The steps of a shard, from the fields of it that are no default and other arguments."""
    return StepCost(Shard(model, **_popped(how, SHARD)), gpu, engine, **how)


def ledger_of(model: ModelSpec, gpu: GpuSpec, engine: EngineSpec, **knobs: Any) -> MemoryLedger:
    """The memory of a shard with its keys and values in blocks, from arguments of all three."""
    shard, draft = Shard(model, **_popped(knobs, SHARD)), knobs.pop("extra_memory", ExtraMemory())
    layout = kv_layout(shard, **{"most_chunk": None, "draft": draft.draft, **_popped(knobs, LAYOUT)})
    return ledger(shard, gpu, engine, layout, extra_weights_bytes=draft.weights_bytes, **knobs)


def _popped(arguments: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: arguments.pop(name) for name in names if name in arguments}


def layer_weights(shard: Shard) -> int:
    """Weights in the matrices of a dense layer."""
    return n_weights(shard.attention_matrices) + n_weights(shard.mlp_matrices)


def total_weights(shard: Shard) -> int:
    """The published number of parameters, without norms and biases: embeddings and LM head are one matrix when tied."""
    model, of_moe = shard.model, 0
    if model.experts is not None:
        of_moe = n_weights(shard.shared_matrices) + prod(shard.router) + shard.n_experts * shard.expert_weights
    mixing = model.n_attention_layers * n_weights(shard.attention_matrices)
    mixing += model.n_state_layers * n_weights(shard.linear_matrices)
    in_layers = mixing + model.n_dense_layers * n_weights(shard.mlp_matrices) + model.n_moe_layers * of_moe
    return in_layers + shard.head_weights * (1 if model.tie_word_embeddings else 2)


def active_weights(shard: Shard) -> int:
    """Weights that multiply a token in all layers, without the LM head."""
    n = parameters(shard, is_active=True)
    return n.projections + n.routed_experts + n.gates


def matrix_work(shard: Shard, name: str, n_tokens: Any) -> Work:
    """The product with a matrix of a dense layer."""
    matrices = {**shard.attention_matrices, **shard.mlp_matrices}
    return matmul_work(n_tokens, *matrices[name], BYTES_PER_VALUE[shard.dense_dtype])


@cache
def cost_of(model: str, gpu: str = "h100-sxm", engine: str = "ideal", **kwargs: Any) -> StepCost:
    """The steps of a model of the catalog."""
    return step_cost(catalog.load_model(model), catalog.load_gpu(gpu), catalog.load_engine(engine), **kwargs)
