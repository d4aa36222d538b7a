"""Kernels: how long one GPU takes for the kernels of a step. The seam behind which rooflines and fits stand."""

from dataclasses import dataclass
from typing import Any, Protocol

from simserve.cost.ops import Matrices, Shard


class PrefillAttentionCost(Protocol):
    """Causal attention of all prompt chunks of a step, in one layer."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """For their query tokens, query-key pairs and keys read; scalars or arrays; never less for more of any."""


class Kernels(Protocol):
    """Seconds on one GPU; scalars in, scalars out, arrays too. Nothing is free: no work may still cost a launch."""

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """(m, k) activations times (k, n) weights stored in dtype."""

    def projections_s(self, shard: Shard, n_tokens: Any) -> Any:
        """The matrices around one layer's attention, for all tokens of a step."""

    def experts_s(self, shard: Shard, n_tokens: Any) -> Any:
        """The routed experts of one layer, on the GPU that has most to do; without gate and collectives."""

    def elementwise_s(self, n_bytes: Any, n_kernels: int) -> Any:
        """Kernels that move bytes and compute next to nothing."""

    def all_reduce_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """A sum over the GPUs of a group; 0 for a group of one."""

    def all_gather_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Every GPU of a group ends with n_bytes, of which each had a part."""

    def reduce_scatter_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Every GPU of a group has n_bytes, and ends with a part of their sums."""

    def prefill_attention(self, shard: Shard) -> PrefillAttentionCost:
        """Of one layer of a shard."""

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """(intercept, slope): one layer's attention of n decoding requests takes intercept + slope * keys attended."""


MANY_KEYS = 8192
"""Enough for a product to run at its best speed."""


@dataclass(frozen=True)
class ExpandedPrefill:
    """Prefill over latent vectors: keys and values are made from them first, those of the cached context too."""

    attention: PrefillAttentionCost
    key_s: float
    """To make the keys and values of all heads for one token, among many."""

    @classmethod
    def of(cls, attention: PrefillAttentionCost, kernels: Kernels, shard: Shard) -> "PrefillAttentionCost":
        """That attention as it is where nothing is expanded."""
        if shard.expansion is None:
            return attention
        n_in, n_out = shard.expansion
        return cls(attention, float(kernels.matmul_s(shard.dense_dtype, MANY_KEYS, n_out, n_in)) / MANY_KEYS)

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Of attention, and of the expansion of all keys."""
        return self.attention.seconds(n_tokens, n_pairs, n_context_tokens) + n_context_tokens * self.key_s


def matrices_s(kernels: Kernels, dtype: str, n_tokens: Any, matrices: Matrices) -> Any:
    """One after the other, each (rows in, columns out); 0 for none."""
    return sum(kernels.matmul_s(dtype, n_tokens, n_out, n_in) for n_in, n_out in matrices.values())
