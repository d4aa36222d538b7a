"""Tiny makers: transformers of a round number of parameters, and the bare roofline."""

from functools import cache
from typing import Any

from simserve import catalog
from simserve.catalog.specs import ModelSpec
from simserve.cost.step import StepCost

H100 = catalog.load_gpu("h100-sxm")
IDEAL = catalog.load_engine("ideal")


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


@cache
def cost_of(model: str, gpu: str = "h100-sxm", engine: str = "ideal", **kwargs: Any) -> StepCost:
    """The steps of a model of the catalog."""
    return StepCost(catalog.load_model(model), catalog.load_gpu(gpu), catalog.load_engine(engine), **kwargs)
