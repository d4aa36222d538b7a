"""StepCost: an analytical roofline per kernel, as integer picoseconds.

time of a kernel = launch + max(FLOP / (peak * efficiency), bytes / (bandwidth * efficiency))
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.specs import EngineSpec, GpuSpec, ModelSpec
from simserve.cost.comm import all_reduce_s
from simserve.cost.ops import ACTIVATION_BYTES, Kernel, Shard
from simserve.cost.shape import StepShape
from simserve.units import array_to_ps, to_ps

FIRST_TABLE = 4096
"""Entries a table has at first; it doubles when a step needs more."""

ELEMENTWISE_KERNELS = 3
"""Launches a layer for norms, rotation with KV write, and activation, as fused by today's engines."""


@dataclass(frozen=True)
class Work:
    """What a replica's model asks for and its GPUs together can give: the two sides of MFU and MBU."""

    flop_per_token: float
    flop_per_pair: float
    flop_per_sampled: float
    weight_bytes_per_step: float
    kv_bytes_per_token: float
    peak_flop_per_s: float
    hbm_bytes_per_s: float


class StepCost:
    """What the steps of one replica cost. Pure: the same question always has the same answer.

    fast: all that depends on a count alone is a table of Python integers, filled by numpy with the full formula.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        engine: EngineSpec,
        *,
        weight_dtype: str = "bf16",
        kv_dtype: str = "bf16",
        tensor: int = 1,
    ) -> None:
        self.shard = Shard(model, weight_dtype, kv_dtype, tensor)
        self.gpu = gpu
        self.engine = engine
        self._peak = compute_peak(gpu, weight_dtype)
        self._bandwidth = gpu.hbm_bytes_per_s * engine.memory_efficiency
        self._tokens_ps: list[int] = []
        self._sampled_ps: list[int] = []
        self._lines: dict[int, tuple[int, int]] = {}
        one_pair = self.shard.prefill_attention(0, 1, 0)
        one_key, one_query = self.shard.decode_attention(0, 1), self.shard.decode_attention(1, 0)
        layers = model.n_layers
        # Attention always computes in 16 bits, whatever the weights and the cache are stored in.
        self._attention_flop_per_s = compute_peak(gpu, "bf16") * engine.compute_efficiency
        self._pair_s = layers * one_pair.flop / self._attention_flop_per_s
        self._key_s = layers * one_key.bytes / self._bandwidth
        self._query_s = layers * one_query.bytes / self._bandwidth
        self._attention_launch_s = layers * engine.launch_s

    def tokens_ps(self, n_tokens: int) -> int:
        """All that depends on the number of tokens in the step alone; never less for more tokens."""
        try:
            return self._tokens_ps[n_tokens]
        except IndexError:
            self._tokens_ps = _table(self.tokens_s(np.arange(max(FIRST_TABLE, 2 * n_tokens))))
            return self._tokens_ps[n_tokens]

    def sampled_ps(self, n_rows: int) -> int:
        """The LM head over n_rows positions, and the host's time for their requests."""
        try:
            return self._sampled_ps[n_rows]
        except IndexError:
            self._sampled_ps = _table(self.sampled_s(np.arange(max(FIRST_TABLE, 2 * n_rows))))
            return self._sampled_ps[n_rows]

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Attention of all prompt chunks of the step, as one kernel a layer."""
        if not n_tokens:
            return 0
        memory_s = n_context_tokens * self._key_s + n_tokens * self._query_s
        compute_s = n_pairs * self._pair_s
        return to_ps(self._attention_launch_s + (compute_s if compute_s > memory_s else memory_s))

    def decode_line(self, n: int) -> tuple[int, int]:
        """(intercept, slope): attention of n decoding requests takes intercept + slope * keys attended.

        Both roofs are proportional to the keys; on any real GPU the memory's is the higher one, for a key is read
        for a few query heads only. The higher one gives the slope.
        """
        line = self._lines.get(n)
        if line is None:
            intercept_s = self._attention_launch_s + n * self._query_s
            line = self._lines[n] = (to_ps(intercept_s), to_ps(max(self._key_s, self._pair_s)))
        return line

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """A step of prompt chunks and n decoding requests: the sum of the parts above, each rounded once."""
        total_ps = self.tokens_ps(n_tokens + n) + self.sampled_ps(n_rows)
        if n_tokens:
            total_ps += self.prefill_ps(n_tokens, n_pairs, n_context_tokens)
        if n:
            intercept_ps, slope_ps = self.decode_line(n)
            total_ps += intercept_ps + slope_ps * kv_tokens
        return total_ps

    def step_ps(self, shape: StepShape) -> int:
        """A step of that shape."""
        return self.mixed_ps(
            shape.prefill_tokens,
            shape.prefill_pairs,
            shape.prefill_context_tokens,
            shape.decode_requests,
            shape.kv_tokens,
            shape.sampled_rows,
        )

    def tokens_s(self, n_tokens: Any) -> Any:
        """Seconds of the matrices, element-wise work and all-reduces of all layers, and of the host, for a step."""
        shard, engine = self.shard, self.engine
        layer_s = sum(self.kernel_s(shard.matmul(name, n_tokens)) for name in shard.matrices)
        elementwise = shard.elementwise(n_tokens)
        layer_s += ELEMENTWISE_KERNELS * engine.launch_s + elementwise.bytes / self._bandwidth
        layer_s += 2 * all_reduce_s(self.gpu, shard.tensor, shard.all_reduce_bytes(n_tokens))
        return engine.step_host_s + shard.model.n_layers * layer_s

    def sampled_s(self, n_rows: Any) -> Any:
        """Seconds of the LM head and of the host's work for n_rows requests; nothing for none."""
        head = self.shard.lm_head(n_rows)
        head_s = self.kernel_s(head, self._attention_flop_per_s) + n_rows * self.engine.request_host_s
        return (n_rows > 0) * head_s

    def kernel_s(self, kernel: Kernel, flop_per_s: float | None = None) -> Any:
        """The roofline of one kernel; for arrays too."""
        compute_s = kernel.flop / (flop_per_s or self._peak * self.engine.compute_efficiency)
        memory_s = kernel.bytes / self._bandwidth
        if isinstance(compute_s, np.ndarray):
            return self.engine.launch_s + np.maximum(compute_s, memory_s)
        return self.engine.launch_s + max(compute_s, memory_s)

    @cached_property
    def work(self) -> Work:
        """Of the whole replica; what parallelism does twice (replicated KV heads, padding) does not count as useful."""
        whole, n_gpus = replace(self.shard, tensor=1), self.shard.tensor
        n_layers = whole.model.n_layers
        layer_bytes = whole.layer_weights * whole.weight_bytes_per_value
        return Work(
            flop_per_token=n_layers * sum(whole.matmul(name, 1).flop for name in whole.matrices),
            flop_per_pair=n_layers * whole.prefill_attention(0, 1, 0).flop,
            flop_per_sampled=whole.lm_head(1).flop,
            weight_bytes_per_step=n_layers * layer_bytes + whole.head_weights * ACTIVATION_BYTES,
            kv_bytes_per_token=whole.kv_bytes_per_token,
            peak_flop_per_s=n_gpus * self._peak,
            hbm_bytes_per_s=n_gpus * self.gpu.hbm_bytes_per_s,
        )


def compute_peak(gpu: GpuSpec, weight_dtype: str) -> float:
    """The dense peak that matrices of that dtype run at, FLOP/s.

    fp8 runs at the card's fp8 peak where it has one; int8, int4 and mxfp4 are weight-only, so they compute in 16 bits.
    """
    dtype = {"fp8_block": "fp8", "int8": "bf16", "int4": "bf16", "mxfp4": "bf16"}.get(weight_dtype, weight_dtype)
    return gpu.flop_per_s.get(dtype, gpu.flop_per_s["bf16"])


def ridge_flop_per_byte(gpu: GpuSpec, weight_dtype: str) -> float:
    """The intensity above which a kernel is bound by compute (Williams et al. 2009)."""
    return compute_peak(gpu, weight_dtype) / gpu.hbm_bytes_per_s


def _table(values: NDArray[np.float64]) -> list[int]:
    """Seconds as picoseconds that never fall, `(n,)`: one token more never makes a step quicker."""
    table: list[int] = np.maximum.accumulate(array_to_ps(values)).tolist()
    return table
