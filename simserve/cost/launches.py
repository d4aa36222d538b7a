"""Kernels that the host launches one by one in a step with prompts, where no CUDA graph holds it."""

from collections.abc import Sequence

from simserve.catalog.specs import COMPUTES_IN
from simserve.cost.ops import Shard

ATTENTION = 3
"""Rotation, KV write and attention."""
LATENT = 4
"""Norms of both latent vectors, and the joining of plain and rotated parts of queries and keys."""
NORMS = 2
REDUCES = 2
ROUTING = 3
"""Choice of experts, sorting of rows by expert, and the weighted sum; the gate is a product."""
ADDED = 1
"""The sum of shared and routed experts."""


def n_launches(shard: Shard, quantizes_before: Sequence[str] = ()) -> int:
    """Return the kernels of all layers. Experts that groups share are not among them, as `group_ps` has their time."""
    model = shard.model
    around = NORMS + (REDUCES if shard.tensor > 1 else 0)
    per_matrix = 1 if shard.dense_dtype in quantizes_before else _per_matrix(shard.dense_dtype)
    attention = len(shard.attention_matrices) * per_matrix + ATTENTION + (LATENT if model.mla else 0)
    total = model.n_layers * around + model.n_attention_layers * attention
    total += model.n_state_layers * (len(shard.linear_matrices) * per_matrix + ATTENTION)
    total += model.n_dense_layers * (len(shard.mlp_matrices) * per_matrix + 1)
    if model.n_moe_layers:
        experts = ROUTING + 2 * _per_matrix(shard.weight_dtype) + 1 if shard.data == 1 else 0
        shared = len(shard.shared_matrices) * per_matrix + 1 + ADDED if shard.shared_matrices else 0
        total += model.n_moe_layers * (1 + experts + shared)
    return total


def _per_matrix(dtype: str) -> int:
    """Return 2 where activations are quantized before a product, else 1."""
    return 1 if COMPUTES_IN.get(dtype, "bf16") in ("bf16", "fp16") else 2
