"""Attention over grouped heads: prompts (prefill), and one token of each decoding request (decode)."""

from dataclasses import dataclass
from typing import Annotated, Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient, Form, LaunchTime, PeakShare, WorkTime, higher
from simserve.cost.kernels import PrefillCost
from simserve.cost.shard import ACTIVATION_BYTES

TILE = 128
"""Queries per thread block, in every kernel of the FlashAttention family."""

SM_SPARE = 1.1
"""FlashAttention 3 cuts a context into equal pieces of at most this times an SM's part of all keys (prepare_varlen)."""

WIDE = 128
"""Wider heads use other tiles, limited by registers and shared memory (FlashAttention-3, section 3)."""


@dataclass(frozen=True)
class PrefillAttention(Form):
    """launch + root of the sum of squares of work, tail and memory + the write of the new keys and values.

    work: 4 FLOP per pair and head value; softmax costs as much as `width` further values. A row of a tile computes
    `tile_pairs` more pairs than it keeps: at least half of a diagonal tile is masked, and tiles have a fixed cost.
    tail: few SMs are busy during the last tiles. The longest row has about the root of twice the pairs, and one SM
    takes its tile's time for it. memory: queries, keys and values read once, outputs written.
    """

    launch_s: Annotated[float, LaunchTime(1e-5, 1e-6, 1e-4)]
    compute_frac: Annotated[float, PeakShare(0.85, 0.05, 1.0)]
    """Share of the peak for numbers of `compute_bits`."""
    width: Annotated[float, Coefficient(40.0, 0.0, 400.0)]
    wide: Annotated[float, Coefficient(0.1, 0.0, 5.0)]
    """Extra share of compute time for heads wider than 128."""
    tile_pairs: Annotated[float, Coefficient(100.0, TILE / 2, 2000.0)]
    row_flop: Annotated[float, WorkTime(2e5, 0.0, 1e8)]
    """FLOP per query and head, at the peak: a tile's work besides pairs."""
    tail_rows: Annotated[float, Coefficient(0.6, 0.0, 10.0)]
    """Weight of the longest row."""
    memory_frac: Annotated[float, PeakShare(0.6, 0.05, 1.0)]
    writes: Annotated[float, WorkTime(1.0, 0.0, 30.0)]
    """How often new keys and values are read in 16 bits and written to the cache."""
    compute_bits: Annotated[float, Coefficient(16.0, 16.0, 16.0)]
    """16, or 8 for kernels that multiply in fp8; fixed, not fitted."""

    def at(self, gpu: GpuSpec, n_heads: Any, n_kv_heads: Any, head_dim: Any, kv_dtype: str) -> PrefillCost:
        """Return the cost for the heads of one GPU; each a number or `(n,)`."""
        peak = gpu.flop_per_s["bf16"] if self.compute_bits > 8 else gpu.flop_per_s.get("fp8", gpu.flop_per_s["bf16"])
        pair_s = 4 * (head_dim + self.width) * (1 + self.wide * (head_dim > WIDE)) / (peak * self.compute_frac)
        longest_s = self.tail_rows * pair_s * (TILE * gpu.n_sms)
        bytes_per_s = gpu.hbm_bytes_per_s * self.memory_frac
        numbers, cached_bytes = 2 * n_kv_heads * head_dim, BYTES_PER_VALUE[kv_dtype]
        return PrefillCost(
            launch_s=self.launch_s,
            pair_s=n_heads * pair_s,
            row_s=n_heads * (self.tile_pairs * pair_s + self.row_flop / peak),
            tail_s2=2 * longest_s * longest_s,
            query_s=2 * n_heads * head_dim * ACTIVATION_BYTES / bytes_per_s,
            key_s=numbers * cached_bytes / bytes_per_s,
            write_s=self.writes * numbers * (ACTIVATION_BYTES + cached_bytes) / gpu.hbm_bytes_per_s,
        )


@dataclass(frozen=True)
class DecodeAttention(Form):
    """A line in the keys that n requests attend in all: launch + requests + bytes of the keys + the last SM's wait.

    Timings are of equal contexts, a server's are not, so SMs end at different times: while the last one reads half a
    piece of a context in the mean, the others wait. Other effects of the kernels (splits of few long contexts over the
    SMs, waves of many short ones) are in the intercept as a mean.
    """

    launch_s: Annotated[float, LaunchTime(1e-5, 1e-6, 1e-4)]
    launch_width_s: Annotated[float, LaunchTime(1e-8, 0.0, 1e-6)]
    """Extra launch time per head value: the first keys arrive later."""
    memory_frac: Annotated[float, PeakShare(0.9, 0.1, 1.0)]
    key_width: Annotated[float, Coefficient(5.0, 0.0, 1000.0)]
    """Extra values per key or value of one head: work for each, whatever its width."""
    wide: Annotated[float, Coefficient(0.05, 0.0, 3.0)]
    """Extra share of key time for heads wider than 128."""
    lone: Annotated[float, Coefficient(0.05, 0.0, 3.0)]
    """Extra share for keys that a single query head attends, for which some engines have other kernels."""
    query_times: Annotated[float, WorkTime(2.0, 1.0, 50.0)]
    """How often queries and outputs cross the bus."""
    unit_s: Annotated[float, WorkTime(1e-8, 0.0, 1e-6)]
    """Seconds per request and KV head: a thread block's start and end, spread over the SMs."""
    sm_bytes_per_s: Annotated[float, PeakShare(0.0, 0.0, 0.0)] = 0.0
    """Bytes of keys and values per second that one SM reads at most; 0: no timings of unequal contexts tell it."""

    def line(
        self, gpu: GpuSpec, n_heads: Any, n_kv_heads: Any, head_dim: Any, kv_dtype: str, n: Any
    ) -> tuple[Any, Any]:
        """Return (intercept_s, slope_s per key) of one layer for n requests; each a number or `(k,)`.

        A context's last tile of keys is read only up to its end: timings of 2 to 128 keys show no whole tiles.
        """
        numbers = 2 * n_kv_heads * (head_dim + self.key_width)
        slower = (1 + self.wide * (head_dim > WIDE)) * (1 + self.lone * (n_heads == n_kv_heads))
        memory_s = numbers * BYTES_PER_VALUE[kv_dtype] * slower / (gpu.hbm_bytes_per_s * self.memory_frac)
        key_s = higher(memory_s, 4 * n_heads * head_dim / gpu.flop_per_s["bf16"])
        key_s = key_s + self._wait_s(gpu, n * n_kv_heads) * 2 * n_kv_heads * head_dim * BYTES_PER_VALUE[kv_dtype]
        query_s = self.query_times * 2 * n_heads * head_dim * ACTIVATION_BYTES / gpu.hbm_bytes_per_s
        intercept_s = self.launch_s + self.launch_width_s * head_dim + n * (query_s + n_kv_heads * self.unit_s)
        return intercept_s, key_s + 0.0 * n

    def _wait_s(self, gpu: GpuSpec, n_heads: Any) -> Any:
        """Return the seconds that the last SM reads on alone, per byte of all keys, for so many KV heads of requests.

        A piece is an SM's part of all keys, or a whole context where there are more of these than SMs. With few, all
        pieces run at once: rounding up adds half a piece for each head to the SMs / SM_SPARE that keys divide into.
        """
        if not self.sm_bytes_per_s:
            return 0.0 * n_heads
        several = n_heads / 2 > gpu.n_sms * (1 - 1 / SM_SPARE)
        return several / (2 * higher(n_heads, gpu.n_sms) * self.sm_bytes_per_s)
