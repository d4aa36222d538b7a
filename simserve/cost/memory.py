"""Memory: where the bytes of a GPU go, and how many KV blocks are left."""

from dataclasses import dataclass

from simserve.catalog.specs import EngineSpec, GpuSpec, ModelSpec
from simserve.cost.ops import ACTIVATION_BYTES, Shard

SAMPLED_ROWS = 256
"""Seats where the scheduler does not limit them."""


@dataclass(frozen=True)
class MemoryLedger:
    """Bytes of each GPU of a replica.

    Invariant: weights + activations + reserve + kv <= usable <= total when the model fits (missing_bytes = 0).
    """

    total_bytes: float
    usable_bytes: float
    weights_bytes: float
    activations_bytes: float
    reserve_bytes: float
    kv_bytes: float
    n_blocks: int
    block_size: int
    block_bytes: float
    verified: bool
    """The number of blocks was given, as a real server reported it, and not computed here."""
    missing_bytes: float
    """What lacks for the model and one KV block; 0 when it fits."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.n_blocks * self.block_size


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
) -> MemoryLedger:
    """Divide a GPU's memory as an engine does: weights, activation peak and reserve first, KV blocks get the rest."""
    shard = Shard(model, weight_dtype, kv_dtype, tensor)
    usable = gpu.hbm_bytes * gpu_memory_utilization
    weights = weights_bytes(shard)
    logits = min(max_num_batched_tokens, max_num_seqs) * model.vocab_size * engine.logit_bytes
    activations = activations_bytes(shard, max_num_batched_tokens) + logits
    block_bytes = block_size * shard.kv_bytes_per_token
    left = usable - weights - activations - engine.reserve_bytes
    n_blocks = max(0, int(left // block_bytes)) if num_gpu_blocks is None else num_gpu_blocks
    return MemoryLedger(
        total_bytes=gpu.hbm_bytes,
        usable_bytes=usable,
        weights_bytes=weights,
        activations_bytes=activations,
        reserve_bytes=engine.reserve_bytes,
        kv_bytes=n_blocks * block_bytes,
        n_blocks=n_blocks,
        block_size=block_size,
        block_bytes=block_bytes,
        verified=num_gpu_blocks is not None,
        missing_bytes=0.0 if n_blocks else block_bytes - left,
    )


def weights_bytes(shard: Shard) -> float:
    """Of one GPU: the layers in their dtype; embeddings and LM head (one matrix when tied) in 16 bits; norms."""
    model = shard.model
    layers = model.n_layers * (shard.layer_weights * shard.weight_bytes_per_value)
    vocabulary = shard.head_weights * (1 if model.tie_word_embeddings else 2)
    norms = (2 * model.n_layers + 1) * model.hidden_size
    return layers + (vocabulary + norms) * ACTIVATION_BYTES


def activations_bytes(shard: Shard, n_tokens: int) -> float:
    """Of one GPU, at the peak of a step of n_tokens: in the MLP, where residual, input, gate, up and their product
    are alive at once."""
    model = shard.model
    alive = 2 * model.hidden_size + (3 if model.gated_mlp else 2) * shard.inner_size
    return n_tokens * alive * ACTIVATION_BYTES
