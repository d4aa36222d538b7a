"""FLOP and bytes of each kernel of a step, on one GPU of a tensor-parallel group. Numbers in, numbers out; arrays too.

Sources: operation counts of a transformer layer as in Kaplan et al. 2020 (table 1) and Pope et al. 2022 (section 2);
Megatron-LM for what tensor parallelism divides (Shoeybi et al. 2019, section 3).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.catalog.specs import BYTES_PER_VALUE, ModelSpec

ACTIVATION_BYTES = 2
"""Activations travel in 16 bits, whatever the weights are stored in."""

HEAD_DTYPE = "bf16"
"""Embeddings and LM head stay in 16 bits, whatever the layers are stored in."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a kernel computes and moves; both scalars, or both arrays of one shape."""

    flop: Any
    bytes: Any


@dataclass(frozen=True)
class Shard:
    """The part of a model that one GPU of a tensor-parallel group holds, and what it does for n tokens.

    KV heads are replicated when there are more GPUs than KV heads.
    """

    model: ModelSpec
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    tensor: int = 1

    @property
    def n_heads(self) -> int:
        """Query heads here."""
        return self.model.n_heads // self.tensor

    @property
    def n_kv_heads(self) -> int:
        """KV heads here."""
        return max(1, self.model.n_kv_heads // self.tensor)

    @property
    def inner_size(self) -> int:
        """Columns of the MLP here; padded where the group does not divide them."""
        return -(-self.model.intermediate_size // self.tensor)

    @property
    def weight_bytes_per_value(self) -> float:
        """Of the layers' matrices; embeddings and LM head stay in 16 bits."""
        return BYTES_PER_VALUE[self.weight_dtype]

    @cached_property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows in, columns out) of each matrix of a layer."""
        model = self.model
        width, inner = self.n_heads * model.head_dim, self.inner_size
        return {
            "qkv": (model.hidden_size, width + 2 * self.n_kv_heads * model.head_dim),
            "output": (width, model.hidden_size),
            "gate_up": (model.hidden_size, inner * (2 if model.gated_mlp else 1)),
            "down": (inner, model.hidden_size),
        }

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of a layer."""
        return sum(n_in * n_out for n_in, n_out in self.matrices.values())

    @property
    def head_columns(self) -> int:
        """Columns of the LM head here: the vocabulary is divided."""
        return -(-self.model.vocab_size // self.tensor)

    @property
    def head_weights(self) -> int:
        """Numbers in the LM head."""
        return self.model.hidden_size * self.head_columns

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token, all layers: 2 for K and V."""
        per_layer = 2 * self.n_kv_heads * self.model.head_dim * BYTES_PER_VALUE[self.kv_dtype]
        return per_layer * self.model.n_layers

    def matmul(self, name: str, n_tokens: Any) -> Kernel:
        """A matrix of a layer applied to n tokens: 2 FLOP a weight and token; weights read once."""
        n_in, n_out = self.matrices[name]
        return matmul(n_tokens, n_in, n_out, self.weight_bytes_per_value)

    def lm_head(self, n_rows: Any) -> Kernel:
        """Hidden states of n positions to logits."""
        return matmul(n_rows, self.model.hidden_size, self.head_columns, BYTES_PER_VALUE[HEAD_DTYPE])

    def elementwise(self, n_tokens: Any) -> Kernel:
        """Norms and residuals, rotary embedding, activation and KV write of one layer: memory traffic, hardly FLOP.

        Each of two norms reads input and residual and writes both; rotation reads and writes queries and keys; the
        activation reads gate and up and writes one; keys and values are written once.
        """
        model = self.model
        rotated = (self.n_heads + self.n_kv_heads) * model.head_dim
        values = 2 * 4 * model.hidden_size + 2 * rotated + (3 if model.gated_mlp else 2) * self.inner_size
        n_bytes = values * ACTIVATION_BYTES + self.kv_bytes_per_token / model.n_layers
        return Kernel(n_tokens * values, n_tokens * n_bytes)

    def prefill_attention(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Kernel:
        """Causal attention of prompt chunks in one layer: 4 FLOP a pair, head and width (scores, then values)."""
        return Kernel(
            4 * self.n_heads * self.model.head_dim * n_pairs,
            n_context_tokens * (self.kv_bytes_per_token / self.model.n_layers) + n_tokens * self._query_bytes,
        )

    def decode_attention(self, n: Any, kv_tokens: Any) -> Kernel:
        """Attention of n decoding requests that attend kv_tokens keys in all, in one layer."""
        return Kernel(
            4 * self.n_heads * self.model.head_dim * kv_tokens,
            kv_tokens * (self.kv_bytes_per_token / self.model.n_layers) + n * self._query_bytes,
        )

    def all_reduce_bytes(self, n_tokens: Any) -> Any:
        """What each of the two all-reduces of a layer sums over the group."""
        return n_tokens * self.model.hidden_size * ACTIVATION_BYTES

    @property
    def _query_bytes(self) -> int:
        """A token's queries read and outputs written, in one layer."""
        return 2 * self.n_heads * self.model.head_dim * ACTIVATION_BYTES


def matmul(n_tokens: Any, n_in: int, n_out: int, weight_bytes: float) -> Kernel:
    """(n, n_in) x (n_in, n_out); no tokens, no work: the weights are not read either."""
    n_bytes = (n_tokens > 0) * (n_in * n_out * weight_bytes) + n_tokens * ((n_in + n_out) * ACTIVATION_BYTES)
    return Kernel(n_tokens * (2 * n_in * n_out), n_bytes)
