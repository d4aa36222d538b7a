"""Calibrated: kernel times from forms that were fitted to measurements."""

from dataclasses import replace
from typing import Any, cast

from simserve.catalog.specs import EngineSpec, GpuSpec
from simserve.cost.calibration import Calibration
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention, PrefillCost
from simserve.cost.forms.collective import Collective, for_group
from simserve.cost.forms.gemm import Gemm
from simserve.cost.ops import HEAD_DTYPE, Shard

ELEMENTWISE_FRAC = 0.8
"""Share of the bandwidth that norms and activations reach: they stream like a copy, which reaches 0.8 to 0.9."""

SIXTEEN_BITS = ("bf16", "fp16")


class Calibrated:
    """The kernels of a calibration on a GPU: the one they were timed on, or another, scaled by its data sheet."""

    def __init__(self, gpu: GpuSpec, calibration: Calibration, engine: EngineSpec) -> None:
        peaks = {dtype: flop_per_s * engine.busy_compute_frac for dtype, flop_per_s in gpu.flop_per_s.items()}
        self.gpu = replace(gpu, flop_per_s=peaks)
        self.calibration = calibration
        self.gap_s = engine.gap_s

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """The linear layer, quantisation of its activations included where weights are fp8."""
        form = cast(Gemm, self.calibration.form("gemm", *_measured_as(dtype)))
        return form.seconds(self.gpu, dtype, m, n, k)

    def elementwise_s(self, n_bytes: Any, n_kernels: int) -> Any:
        """Nobody tabulates these: bytes at a copy's bandwidth, and a gap each."""
        return n_kernels * self.gap_s + n_bytes / (self.gpu.hbm_bytes_per_s * ELEMENTWISE_FRAC)

    def all_reduce_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """By the number of GPUs; between those measured, interpolated."""
        if n_gpus == 1:
            return 0.0 * n_bytes
        forms = {int(key): form for (op, key), form in self.calibration.forms.items() if op == "all_reduce"}
        return for_group(cast(dict[int, Collective], forms), n_gpus).seconds(self.gpu, n_gpus, n_bytes)

    def prefill_attention(self, shard: Shard) -> PrefillCost:
        """Of one layer, over the cache's dtype."""
        both = f"{shard.kv_dtype}/{shard.weight_dtype}"  # some engines compute in fp8 where weights and cache are
        form = cast(PrefillAttention, self.calibration.form("prefill_attention", both, shard.kv_dtype, "bf16"))
        return form.at(self.gpu, shard.n_heads, shard.n_kv_heads, shard.model.head_dim, shard.kv_dtype)

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """A line in the keys for every number of requests."""
        form = cast(DecodeAttention, self.calibration.form("decode_attention", shard.kv_dtype, "bf16"))
        return form.line(self.gpu, shard.n_heads, shard.n_kv_heads, shard.model.head_dim, shard.kv_dtype, n)


def _measured_as(dtype: str) -> tuple[str, ...]:
    """Under which dtypes to look for a matrix: its own; weight-only ones multiply in 16 bits."""
    if dtype in ("fp8", "fp8_block"):
        return (dtype, "fp8", HEAD_DTYPE)
    return (dtype, *SIXTEEN_BITS)
