"""Attention over grouped heads: prompts (prefill), and one token of each decoding request (decode)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simserve.catalog.specs import BYTES_PER_VALUE, GpuSpec
from simserve.cost.forms.base import Form, higher, root

ACTIVATION_BYTES = 2
"""Queries and outputs travel in 16 bits."""

TILE = 128
"""Queries that a thread block works on together, in every kernel of the FlashAttention family."""


@dataclass(frozen=True)
class PrefillCost:
    """Prefill attention of one layer on one GPU.

    Only + - * /, the larger of two and square roots: scalars and arrays agree bit by bit.
    """

    launch_s: float
    pair_s: float
    tile_s: float
    tail_s: float
    query_s: float
    key_s: float
    write_s: float

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """For the query tokens, query-key pairs and keys read of all chunks of a step."""
        compute_s = n_pairs * self.pair_s + n_tokens * self.tile_s + root(n_pairs) * self.tail_s
        memory_s = n_tokens * self.query_s + n_context_tokens * self.key_s
        return self.launch_s + higher(compute_s, memory_s) + n_tokens * self.write_s


@dataclass(frozen=True)
class PrefillAttention(Form):
    """launch + the higher of compute and memory + the write of the new keys and values.

    compute = 4 FLOP * heads * head width a pair, at `compute_frac` of the 16-bit peak; softmax costs as much as `width`
    more; `tile_pairs` more for each query (masked halves of diagonal tiles, the start of a tile); and a tail while the
    last tiles of the longest prompt run on a few SMs: a row of tiles is as long as its keys, about the root of twice
    the pairs.
    """

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]] = {
        "launch_s": (1e-5, 1e-6, 1e-4),
        "compute_frac": (0.9, 0.1, 1.0),
        "width": (30.0, 0.0, 400.0),
        "tile_pairs": (200.0, 0.0, 2048.0),
        "tail_frac": (0.3, 0.0, 5.0),
        "memory_frac": (0.7, 0.05, 1.0),
        "writes": (2.0, 0.0, 20.0),
    }

    launch_s: float
    compute_frac: float
    width: float
    tile_pairs: float
    tail_frac: float
    memory_frac: float
    writes: float
    """Times that the new keys and values cross the bus on their way into the cache."""

    def at(self, gpu: GpuSpec, n_heads: Any, n_kv_heads: Any, head_dim: Any, kv_dtype: str) -> PrefillCost:
        """For the heads of one GPU. Attention computes in 16 bits whatever the cache is stored in."""
        bytes_per_s = gpu.hbm_bytes_per_s * self.memory_frac
        pair_s = 4 * n_heads * (head_dim + self.width) / (gpu.flop_per_s["bf16"] * self.compute_frac)
        key_bytes = 2 * n_kv_heads * head_dim * ACTIVATION_BYTES
        return PrefillCost(
            launch_s=self.launch_s,
            pair_s=pair_s,
            tile_s=self.tile_pairs * pair_s,
            tail_s=self.tail_frac * pair_s * gpu.n_sms * TILE / n_heads * 2**0.5,
            query_s=2 * n_heads * head_dim * ACTIVATION_BYTES / bytes_per_s,
            key_s=key_bytes / ACTIVATION_BYTES * BYTES_PER_VALUE[kv_dtype] / bytes_per_s,
            write_s=self.writes * key_bytes / gpu.hbm_bytes_per_s,
        )


@dataclass(frozen=True)
class DecodeAttention(Form):
    """For n requests a line in the keys they attend, all together: launch + per request + bytes of the keys.

    Keys are read in tiles, so a request reads `tile_keys` more than it attends (half a tile of 128 is expected). Where
    requests * KV heads are fewer than the SMs, each is split over several SMs and the parts are combined.
    """

    BOUNDS: ClassVar[dict[str, tuple[float, float, float]]] = {
        "launch_s": (9e-6, 1e-6, 1e-4),
        "memory_frac": (0.9, 0.2, 1.0),
        "tile_keys": (64.0, 0.0, 512.0),
        "unit_s": (1.5e-8, 0.0, 1e-5),
        "combine_s": (2e-6, 0.0, 2e-5),
    }

    launch_s: float
    memory_frac: float
    tile_keys: float
    unit_s: float
    """For each request and KV head: a thread block's start and end, spread over the SMs."""
    combine_s: float

    def line(
        self, gpu: GpuSpec, n_heads: Any, n_kv_heads: Any, head_dim: Any, kv_dtype: str, n: Any
    ) -> tuple[Any, Any]:
        """(intercept_s, slope_s per key) of one layer for n requests, a scalar or `(k,)`."""
        units = n * n_kv_heads
        key_s = 2 * n_kv_heads * head_dim * BYTES_PER_VALUE[kv_dtype] / (gpu.hbm_bytes_per_s * self.memory_frac)
        query_s = 2 * n_heads * head_dim * ACTIVATION_BYTES / gpu.hbm_bytes_per_s
        combine_s = self.combine_s * np.maximum(1 - units / gpu.n_sms, 0.0)
        intercept_s = self.launch_s + combine_s + units * self.unit_s + n * (self.tile_keys * key_s + query_s)
        return intercept_s, key_s + 0.0 * n
