"""Linear layers: (m, k) activations times (k, n) weights, on one GPU."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from simserve.catalog.dtypes import BYTES_PER_VALUE, COMPUTES_IN
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient, Form, LaunchTime, PeakShare, WorkTime, smooth_max
from simserve.cost.shard import ACTIVATION_BYTES

TILES = ((64, 64), (64, 128), (128, 128), (128, 256))
"""(rows, columns) of a thread block's output, among the common CUTLASS tiles that cuBLAS and others choose from."""

SPLITS = (1, 2, 4)
"""Parts that k may be cut into, so that small outputs still occupy the whole GPU."""

PARTIAL_SUM_BYTES = 8
"""An fp32 partial sum written and read again."""


@dataclass(frozen=True)
class Gemm(Form):
    """launch + smooth max(compute, memory) + data moved before and after.

    compute: tiles of output in waves over the SMs, an SM at its share of the peak. A partial last wave costs
    `wave_share` of a full one's time more than its tiles do. memory: weights, activations and output, once. The choice
    of tiles depends on the kernels: libraries that choose the best one for each shape (`chooses` is 1) may also split
    k; others choose by m alone (0): 64 x 64 up to 64 rows, 64 x 128 up to 128, then 128 x 128 in pairs of 256 rows,
    as vLLM and SGLang launch CUTLASS for fp8 (csrc/quantization/cutlass_w8a8, scaled_mm_c3x_sm90). Above `few_rows`,
    for which kernels of their own are narrower, the rows that m leaves empty slow the tiles: timings of vLLM on an
    H200 are 10% longer at 32 rows than at 64, and 30% longer at 257 than at 512. Weight-only dtypes compute in 16 bits
    and read fewer bytes. Monotone in n and k, and in m where `empty_share` is 0; 0 for m = 0.
    """

    launch_s: Annotated[float, LaunchTime(4e-6, 1e-7, 2e-5)]
    flop_share: Annotated[float, PeakShare(0.75, 0.1, 1.0)]
    """Share of the data-sheet peak, inside a full wave."""
    byte_share: Annotated[float, PeakShare(0.85, 0.1, 1.0)]
    """Share of the data-sheet bandwidth."""
    sharpness: Annotated[float, Coefficient(3.0, 1.0, 12.0)]
    wave_share: Annotated[float, Coefficient(0.5, 0.0, 1.0)]
    input_bytes: Annotated[float, WorkTime(1.0, 0.0, 20.0)]
    """Bytes moved for each of m * k activations besides the product, at the full bandwidth. Quantizing to fp8 takes at
    least 3 (2 read, 1 written), and more because its kernel does not reach that bandwidth."""
    store_passes: Annotated[float, WorkTime(0.5, 0.0, 5.0)]
    """Share of the output's traffic that the product does not hide."""
    split_s: Annotated[float, WorkTime(4e-6, 0.0, 2e-5)]
    """Seconds to add up partial sums when k is split."""
    chooses: Annotated[float, Coefficient(1.0, 1.0, 1.0)]
    few_rows: Annotated[float, Coefficient(64.0, 64.0, 64.0)] = 64.0
    """Up to this many rows, kernels of their own leave rows empty at no cost: 16 in vLLM, 32 in SGLang."""
    empty_share: Annotated[float, Coefficient(0.0, 0.0, 0.0)] = 0.0
    """Part of the compute time that is added for a tile without rows; one half full adds half as much."""

    def seconds(self, gpu: GpuSpec, dtype: str, m: Any, n: Any, k: Any) -> Any:
        """Return the seconds with weights stored in dtype; scalars or arrays that broadcast."""
        compute = (self._best_s if self.chooses else self._by_rows_s)(gpu, dtype, m, n, k)
        # an activation is as wide as a weight where both are quantized
        read_bytes = BYTES_PER_VALUE[dtype] if dtype in COMPUTES_IN and gpu.multiplies(dtype) else ACTIVATION_BYTES
        n_bytes = n * k * BYTES_PER_VALUE[dtype] + m * k * read_bytes + m * n * ACTIVATION_BYTES
        memory = n_bytes / (gpu.hbm_bytes_per_s * self.byte_share)
        passes = self.input_bytes * (m * k) + self.store_passes * ACTIVATION_BYTES * (m * n)
        roofs = smooth_max(compute, memory, self.sharpness)
        return (m > 0) * (self.launch_s + roofs + passes / gpu.hbm_bytes_per_s)

    def _best_s(self, gpu: GpuSpec, dtype: str, m: Any, n: Any, k: Any) -> Any:
        """Return the time of the fastest tile and split."""
        best: Any = np.inf
        for rows, columns in TILES:
            tiles = np.ceil(m / rows) * np.ceil(n / columns)
            for split in SPLITS:
                waves_s = self._waves_s(gpu, dtype, tiles * split, rows * columns * k / split)
                adding = self.split_s + split * m * n * PARTIAL_SUM_BYTES / gpu.hbm_bytes_per_s if split > 1 else 0.0
                best = np.minimum(best, waves_s + adding)
        return best

    def _by_rows_s(self, gpu: GpuSpec, dtype: str, m: Any, n: Any, k: Any) -> Any:
        """Return the time of the tile chosen by m, slowed by its empty rows."""
        rows, columns = np.where(m <= 128, 64, 128), np.where(m <= 64, 64, 128)
        together = np.where(m <= 64, 64, np.where(m <= 128, 128, 256))
        groups = np.ceil(m / together)
        tiles = groups * (together / rows) * np.ceil(n / columns)
        empty = np.where(m <= self.few_rows, 0.0, 1 - m / np.maximum(groups * together, 1))
        return self._waves_s(gpu, dtype, tiles, rows * columns * k) * (1 + self.empty_share * empty)

    def _waves_s(self, gpu: GpuSpec, dtype: str, tiles: Any, products: Any) -> Any:
        """Return the time of tiles with that many multiplications each, over the SMs."""
        full = tiles / gpu.n_sms
        waves = self.wave_share * np.ceil(full) + (1 - self.wave_share) * np.maximum(full, 1.0)
        return waves * (2 * products * gpu.n_sms / (gpu.peak_flop_per_s(dtype) * self.flop_share))
