"""Kernels: how long one GPU takes for the kernels of a step. The seam behind which rooflines and fits stand."""

from typing import Any, Protocol

from simserve.cost.ops import Shard


class PrefillAttentionCost(Protocol):
    """Causal attention of all prompt chunks of a step, in one layer."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """For their query tokens, query-key pairs and keys read; scalars or arrays; never less for more of any."""


class Kernels(Protocol):
    """Seconds on one GPU; scalars in, scalars out, arrays too. Nothing is free: no work may still cost a launch."""

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """(m, k) activations times (k, n) weights stored in dtype."""

    def elementwise_s(self, n_bytes: Any, n_kernels: int) -> Any:
        """Kernels that move bytes and compute next to nothing."""

    def all_reduce_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """A sum over the GPUs of a group; 0 for a group of one."""

    def prefill_attention(self, shard: Shard) -> PrefillAttentionCost:
        """Of one layer of a shard."""

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """(intercept, slope): one layer's attention of n decoding requests takes intercept + slope * keys attended."""
