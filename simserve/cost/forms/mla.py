"""Multi-head latent attention (DeepSeek-V3 family): prefill over whole heads, decode over the latent cache.

Widths are those of DeepSeek-V3 (arXiv:2412.19437, section 4.2) and of Kimi K2, which has half the heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient, Form, LaunchTime, PeakShare, WorkTime, smooth_max
from simserve.cost.shard import ACTIVATION_BYTES

HIDDEN = 7168
QUERY_RANK = 1536
KEY_RANK = 512
"""Width of the latent vector that the cache holds for keys and values."""
ROTARY = 64
"""Width of the rotated part of a key, shared by all heads; cached with the latent vector."""
PLAIN = 128
"""Width of the unrotated part of a head's key."""
VALUE = 128
"""Width of a head's value."""

CACHED = KEY_RANK + ROTARY
"""Cached values per token and layer, whatever the heads."""
DOWN_WEIGHTS = HIDDEN * (QUERY_RANK + KEY_RANK + ROTARY)
"""Down projections, replicated on every GPU of a tensor-parallel group."""
UP_WEIGHTS = KEY_RANK * (PLAIN + VALUE)
"""Weights of a head from latent vectors to keys and values; in decode they apply to queries and outputs instead."""
HEAD_WEIGHTS = QUERY_RANK * (PLAIN + ROTARY) + VALUE * HIDDEN
"""Weights of a head's queries and of its part of the output projection."""

PAIR_WIDTH = PLAIN + ROTARY + VALUE
"""Multiplications per query-key pair and head in prefill: score and value."""
KEY_WIDTH = CACHED + KEY_RANK
"""Multiplications per query-key pair and head in decode, on latent vectors."""


@dataclass(frozen=True)
class MlaPrefill(Form):
    """launch + max(FLOP of padded pairs, bytes of queries, keys, values and outputs): attention alone."""

    launch_s: Annotated[float, LaunchTime(1e-5, 1e-6, 5e-4)]
    flop_share: Annotated[float, PeakShare(0.6, 0.02, 1.0)]
    """Share of the peak for PAIR_WIDTH."""
    byte_share: Annotated[float, PeakShare(0.5, 0.02, 1.0)]
    pad_keys: Annotated[float, Coefficient(64.0, 0.1, 512.0)]
    """Extra keys that a query's tile computes."""
    sharpness: Annotated[float, Coefficient(2.0, 1.0, 10.0)]

    def seconds(self, gpu: GpuSpec, n_heads: Any, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds for query tokens of prompt chunks, query-key pairs, and all keys; `(n,)` each."""
        flop = 2 * PAIR_WIDTH * n_heads * (n_pairs + self.pad_keys * n_tokens)
        n_bytes = ACTIVATION_BYTES * PAIR_WIDTH * n_heads * (n_tokens + n_context_tokens)
        compute = flop / (gpu.peak_flop_per_s("bf16") * self.flop_share)
        memory = n_bytes / (gpu.hbm_bytes_per_s * self.byte_share)
        return self.launch_s + smooth_max(compute, memory, self.sharpness)


@dataclass(frozen=True)
class LatentPrefill:
    """Prefill attention over heads that are expanded from latent vectors."""

    form: MlaPrefill
    gpu: GpuSpec
    n_heads: float
    """Heads, scaled to the width that the form was fitted for."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds of one layer."""
        return self.form.seconds(self.gpu, self.n_heads, n_tokens, n_pairs, n_context_tokens)


@dataclass(frozen=True)
class MlaPrefillModule(MlaPrefill):
    """Attention with all its projections, from hidden states to hidden states."""

    matmul_flop_share: Annotated[float, PeakShare(0.6, 0.05, 1.0)]
    matmul_byte_share: Annotated[float, PeakShare(0.7, 0.05, 1.0)]
    moved_values: Annotated[float, WorkTime(2e4, 1.0, 1e6)]
    """Values moved between kernels per token, whatever the heads: norms, quantization, hidden states."""

    def module_s(
        self, gpu: GpuSpec, dtype: str, n_heads: Any, n_tokens: Any, n_pairs: Any, n_context_tokens: Any
    ) -> Any:
        """Return the seconds with weights in dtype; the context's keys and values are expanded from latent vectors."""
        weights = DOWN_WEIGHTS + n_heads * HEAD_WEIGHTS
        flop = 2 * (n_tokens * weights + n_context_tokens * n_heads * UP_WEIGHTS)
        n_bytes = (weights + n_heads * UP_WEIGHTS) * BYTES_PER_VALUE[dtype]
        compute = flop / (gpu.peak_flop_per_s(dtype) * self.matmul_flop_share)
        memory = n_bytes / (gpu.hbm_bytes_per_s * self.matmul_byte_share)
        attention = self.seconds(gpu, n_heads, n_tokens, n_pairs, n_context_tokens)
        moved = ACTIVATION_BYTES * self.moved_values * n_tokens / gpu.hbm_bytes_per_s
        return attention + smooth_max(compute, memory, self.sharpness) + moved


@dataclass(frozen=True)
class MlaDecode(Form):
    """A line in the keys: launch + queries and outputs + keys x max(bytes, FLOP): attention alone.

    A key is read once for all heads, so with 128 of them its FLOP take as long as its bytes.
    """

    launch_s: Annotated[float, LaunchTime(1e-5, 1e-6, 5e-4)]
    flop_share: Annotated[float, PeakShare(0.7, 0.05, 1.0)]
    byte_share: Annotated[float, PeakShare(0.8, 0.05, 1.0)]
    query_share: Annotated[float, PeakShare(0.5, 0.01, 1.0)]
    """Share of the bandwidth, for queries and outputs."""
    lone_requests: Annotated[float, Coefficient(0.3, 0.001, 8.0)]
    """Slowdown of a single request, as its keys cannot be spread over the GPU as those of many can."""
    sharpness: Annotated[float, Coefficient(2.0, 1.0, 10.0)]

    def line(self, gpu: GpuSpec, n_heads: Any, kv_dtype: str, n: Any, cached_size: int = CACHED) -> tuple[Any, Any]:
        """Return (intercept, slope per key) in seconds for n requests together, a scalar or `(n,)`, n >= 1."""
        compute = 2 * KEY_WIDTH * n_heads / (gpu.peak_flop_per_s("bf16") * self.flop_share)
        memory = cached_size * BYTES_PER_VALUE[kv_dtype] / (gpu.hbm_bytes_per_s * self.byte_share)
        queries = ACTIVATION_BYTES * KEY_WIDTH * n_heads * n / (gpu.hbm_bytes_per_s * self.query_share)
        slope = smooth_max(compute, memory, self.sharpness) * (1 + self.lone_requests / n)
        return self.launch_s + queries, slope


@dataclass(frozen=True)
class MlaDecodeModule(MlaDecode):
    """Attention with all its projections, from hidden states to hidden states."""

    matmul_flop_share: Annotated[float, PeakShare(0.6, 0.05, 1.0)]
    matmul_byte_share: Annotated[float, PeakShare(0.7, 0.05, 1.0)]
    moved_values: Annotated[float, WorkTime(2e4, 1.0, 1e6)]
    """Values moved between kernels per token, as in prefill."""

    def module_line(self, gpu: GpuSpec, dtype: str, n_heads: Any, kv_dtype: str, n: Any) -> tuple[Any, Any]:
        """Return (intercept, slope per key) in seconds for n requests, with weights in dtype."""
        weights = DOWN_WEIGHTS + n_heads * (HEAD_WEIGHTS + UP_WEIGHTS)
        intercept, slope = self.line(gpu, n_heads, kv_dtype, n)
        moved = ACTIVATION_BYTES * self.moved_values * n / gpu.hbm_bytes_per_s
        return intercept + self.expansion_s(gpu, dtype, weights, n) + moved, slope

    def expansion_s(self, gpu: GpuSpec, dtype: str, n_weights: Any, n: Any) -> Any:
        """Return the time of matrices for n requests, as of the latent expansion of their queries and outputs."""
        compute = 2 * n * n_weights / (gpu.peak_flop_per_s(dtype) * self.matmul_flop_share)
        memory = n_weights * BYTES_PER_VALUE[dtype] / (gpu.hbm_bytes_per_s * self.matmul_byte_share)
        return smooth_max(compute, memory, self.sharpness)


def projections_s(
    modules: tuple[MlaPrefillModule, MlaDecodeModule], gpu: GpuSpec, dtype: str, n_weights: int, hidden: int, n: Any
) -> Any:
    """Return the time of the other matrices around attention, for n tokens of either phase in one pass.

    Prefill was timed where these are compute-bound, decode where they read weights: one roof each.
    """
    prefill, decode = modules
    compute = 2 * n * n_weights / (gpu.peak_flop_per_s(dtype) * prefill.matmul_flop_share)
    memory = (n > 0) * (n_weights * BYTES_PER_VALUE[dtype] / (gpu.hbm_bytes_per_s * decode.matmul_byte_share))
    moved = ACTIVATION_BYTES * prefill.moved_values * hidden / HIDDEN * n / gpu.hbm_bytes_per_s
    return smooth_max(compute, memory, prefill.sharpness) + moved


LATENT: Mapping[str, type[Form]] = {
    "mla_prefill": MlaPrefill,
    "mla_decode": MlaDecode,
    "mla_prefill_module": MlaPrefillModule,
    "mla_decode_module": MlaDecodeModule,
}
"""The form of each operation."""
