"""Roofline: kernel times from the data sheet and three efficiencies, for kernels without timings.

time of a kernel = launch + max(FLOP / (peak * efficiency), bytes / (bandwidth * efficiency))
"""

from dataclasses import dataclass
from typing import Any

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import BYTES_PER_VALUE, GpuSpec
from simserve.cost.comm import all_reduce_s, pass_s
from simserve.cost.forms.base import higher
from simserve.cost.forms.moe import MATRICES, load_of
from simserve.cost.kernels import ExpandedPrefill, PrefillAttentionCost, matrices_s
from simserve.cost.ops import Kernel, Shard, matmul


@dataclass(frozen=True)
class RooflinePrefill:
    """Prefill attention as one kernel."""

    launch_s: float
    pair_s: float
    key_s: float
    query_s: float

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the higher of both roofs."""
        memory_s = n_context_tokens * self.key_s + n_tokens * self.query_s
        return self.launch_s + higher(n_pairs * self.pair_s, memory_s)


class Roofline:
    """The kernels of an engine with shares of the peaks, and a launch time per kernel."""

    def __init__(self, gpu: GpuSpec, engine: EngineSpec) -> None:
        self._gpu = gpu
        self._launch_s = engine.launch_s
        self._compute_frac = engine.compute_efficiency
        self._bytes_per_s = gpu.hbm_bytes_per_s * engine.memory_efficiency

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """Return the roofline of its FLOP and bytes."""
        work = matmul(m, k, n, BYTES_PER_VALUE[dtype])
        return self._launch_s + self._bound_s(work, self._gpu.peak_flop_per_s(dtype))

    def elementwise_s(self, n_bytes: Any, n_kernels: int) -> Any:
        """Return the time of the bytes at the reachable bandwidth."""
        return n_kernels * self._launch_s + n_bytes / self._bytes_per_s

    def all_reduce_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Return the data-sheet time of the links."""
        return all_reduce_s(self._gpu, n_gpus, n_bytes)

    def all_gather_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Return the data-sheet time of the links."""
        return pass_s(self._gpu, n_gpus, n_bytes)

    def reduce_scatter_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Return the data-sheet time of the links."""
        return pass_s(self._gpu, n_gpus, n_bytes)

    def projections_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Sum the matrices."""
        return matrices_s(self, shard.dense_dtype, n_tokens, shard.projections)

    def experts_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Return the roofline of two grouped products on the busiest GPU: FLOP of rows, bytes of touched experts."""
        layer = shard.expert_layer
        load = load_of(shard.routing, n_tokens, layer.top_k, layer.n_experts, layer.expert)
        weights = MATRICES * layer.hidden_size * shard.expert_columns
        work = Kernel(2 * weights * load.rows, load.touched * weights * shard.weight_bytes_per_value)
        return 2 * self._launch_s + self._bound_s(work, self._gpu.peak_flop_per_s(shard.weight_dtype))

    def prefill_attention(self, shard: Shard) -> PrefillAttentionCost:
        """Return attention in 16 bits, whatever the weights and the cache are stored in."""
        return ExpandedPrefill.of(self._attention(shard), self, shard)

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """Return the higher roof's slope; both are proportional to the keys. Memory bounds keys read for a few query
        heads; latent vectors, read for all heads, come near the ridge."""
        flop_per_s = self._gpu.peak_flop_per_s("bf16") * self._compute_frac
        one_query, one_key = shard.decode_attention(1, 0), shard.decode_attention(0, 1)
        intercept_s = self._launch_s + n * (one_query.bytes / self._bytes_per_s)
        if shard.expansion is not None:
            n_in, n_out = shard.expansion
            intercept_s = intercept_s + self.matmul_s(shard.dense_dtype, n, n_out, n_in)
        return intercept_s, 0 * n + max(one_key.bytes / self._bytes_per_s, one_key.flop / flop_per_s)

    def _attention(self, shard: Shard) -> RooflinePrefill:
        flop_per_s = self._gpu.peak_flop_per_s("bf16") * self._compute_frac
        one_query, one_pair, one_key = (shard.prefill_attention(*one) for one in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
        return RooflinePrefill(
            self._launch_s,
            one_pair.flop / flop_per_s,
            one_key.bytes / self._bytes_per_s,
            one_query.bytes / self._bytes_per_s,
        )

    def _bound_s(self, work: Kernel, flop_per_s: float) -> Any:
        return higher(work.flop / (flop_per_s * self._compute_frac), work.bytes / self._bytes_per_s)


def ridge_flop_per_byte(gpu: GpuSpec, weight_dtype: str) -> float:
    """Return the intensity above which a kernel is bound by compute (Williams et al. 2009)."""
    return gpu.peak_flop_per_s(weight_dtype) / gpu.hbm_bytes_per_s
