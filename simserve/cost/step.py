"""StepCost: what the steps of one replica cost, in whole picoseconds; tables over the times of its kernels."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.specs import BYTES_PER_VALUE, EngineSpec, GpuSpec, ModelSpec
from simserve.cost.comm import send_s
from simserve.cost.kernels import Kernels, matrices_s
from simserve.cost.ops import ACTIVATION_BYTES, HEAD_DTYPE, Shard
from simserve.cost.roofline import Roofline
from simserve.cost.shape import StepShape
from simserve.units import array_to_ps, to_ps

FIRST_TABLE = 4096
"""Entries a table has at first; it doubles when a step needs more."""

ELEMENTWISE_KERNELS = 3
"""Launches a layer for norms, rotation with KV write, and activation, as fused by today's engines."""


@dataclass(frozen=True)
class StepWork:
    """What a rank's model asks for and its GPUs together can give: the two sides of MFU and MBU."""

    flop_per_token: float
    flop_per_pair: float
    flop_per_sampled: float
    weight_bytes_per_step: float
    """At the least: of experts, those of one token."""
    kv_bytes_per_token: float
    peak_flop_per_s: float
    hbm_bytes_per_s: float


class StepCost:
    """What the steps of one rank of a replica cost. Pure: the same question always has the same answer.

    With a pipeline, a step goes through all its stages. Where `data` groups share the experts, what they do together
    is not part of a rank's step but `group_ps`, for the tokens of all of them.

    fast: all that depends on a count alone is a table of Python integers, filled by numpy with the full formula.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        engine: EngineSpec,
        *,
        kernels: Kernels | None = None,
        weight_dtype: str = "bf16",
        kv_dtype: str = "bf16",
        tensor: int = 1,
        pipeline: int = 1,
        data: int = 1,
        expert: int = 1,
        routing: str = "uniform",
    ) -> None:
        self.shard = Shard(model, weight_dtype, kv_dtype, tensor, expert, data, routing)
        self.gpu = gpu
        self.engine = engine
        self._pipeline = pipeline
        self._kernels = kernels or Roofline(gpu, engine)
        self._window = model.sliding_window if model.windowed else None
        self._n_whole = model.n_layers if self._window is None else model.n_layers - model.n_window_layers
        self._prefill_s = self._kernels.prefill_attention(self.shard).seconds
        self._tokens_ps: list[int] = []
        self._sampled_ps: list[int] = []
        self._group_ps: list[int] = []
        self._lines: list[tuple[int, int]] = []

    def tokens_ps(self, n_tokens: int) -> int:
        """All that depends on the number of tokens in the step alone; never less for more tokens."""
        try:
            return self._tokens_ps[n_tokens]
        except IndexError:
            self._tokens_ps = _rising(self.tokens_s(_counts_to(n_tokens)))
            return self._tokens_ps[n_tokens]

    def sampled_ps(self, n_rows: int) -> int:
        """The LM head over n_rows positions, and the host's time for their requests."""
        try:
            return self._sampled_ps[n_rows]
        except IndexError:
            self._sampled_ps = _rising(self.sampled_s(_counts_to(n_rows)))
            return self._sampled_ps[n_rows]

    def group_ps(self, n_tokens: int) -> int:
        """What the groups that share the experts do together in a step, for the tokens of all."""
        try:
            return self._group_ps[n_tokens]
        except IndexError:
            self._group_ps = _rising(self.group_s(_counts_to(n_tokens)))
            return self._group_ps[n_tokens]

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Attention of all prompt chunks of the step, as one kernel a layer."""
        if not n_tokens:
            return 0
        layers_s = self._n_whole * self._prefill_s(n_tokens, n_pairs, n_context_tokens)
        if self._window is not None:
            layers_s += self._windowed_s(n_tokens, n_pairs, n_context_tokens, self._window)
        return to_ps(layers_s)

    def decode_line(self, n: int) -> tuple[int, int]:
        """(intercept, slope): attention of n decoding requests takes intercept + slope * keys attended."""
        try:
            return self._lines[n]
        except IndexError:
            counts = _counts_to(n)
            intercept_s, slope_s = self._kernels.decode_attention(self.shard, counts)
            n_layers = self.shard.model.n_layers
            intercepts_s = n_layers * intercept_s
            if self._window is not None:  # as if every context filled its window
                intercepts_s += (n_layers - self._n_whole) * slope_s * counts * self._window
            intercepts, slopes = (array_to_ps(each).tolist() for each in (intercepts_s, self._n_whole * slope_s))
            self._lines = list(zip(intercepts, slopes, strict=True))
            return self._lines[n]

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

    def check(self) -> None:
        """Ask once for every kernel. Raises CalibrationError for one that was never timed."""
        self.tokens_s(1)
        self.group_s(1)
        self.sampled_s(1)
        self._kernels.decode_attention(self.shard, 1)

    def tokens_s(self, n_tokens: Any) -> Any:
        """Seconds of the matrices, element-wise work, all-reduces and sends of all layers, and of the host."""
        shard, kernels, model = self.shard, self._kernels, self.shard.model
        any_layer_s = kernels.projections_s(shard, n_tokens)
        any_layer_s += kernels.elementwise_s(shard.elementwise(n_tokens).bytes, ELEMENTWISE_KERNELS)
        any_layer_s += 2 * kernels.all_reduce_s(shard.tensor, shard.hidden_bytes(n_tokens))
        layers_s = model.n_layers * any_layer_s
        if model.n_dense_layers:
            layers_s += model.n_dense_layers * matrices_s(kernels, shard.dense_dtype, n_tokens, shard.mlp_matrices)
        if model.n_moe_layers:
            layers_s += model.n_moe_layers * self._beside_experts_s(n_tokens)
            if shard.data == 1:
                layers_s += model.n_moe_layers * kernels.experts_s(shard, n_tokens)
        return self.engine.step_host_s + layers_s + self._sends_s(n_tokens)

    def group_s(self, n_tokens: Any) -> Any:
        """Seconds of the routed experts of all layers, where `data` groups share them, for the tokens of all groups,
        which all GPUs get and whose sums they give back. 0 where nobody shares.

        Source: vLLM's all-gather and reduce-scatter, its default between the groups.
        """
        shard, kernels = self.shard, self._kernels
        if shard.data == 1:
            return 0.0 * n_tokens
        n_bytes = shard.hidden_bytes(n_tokens)
        exchange_s = kernels.all_gather_s(shard.data, n_bytes) + kernels.reduce_scatter_s(shard.data, n_bytes)
        return shard.model.n_moe_layers * (kernels.experts_s(shard, n_tokens) + exchange_s)

    def sampled_s(self, n_rows: Any) -> Any:
        """Seconds of the LM head and of the host's work for n_rows requests; nothing for none."""
        shard = self.shard
        head_s = self._kernels.matmul_s(HEAD_DTYPE, n_rows, shard.head_columns, shard.model.hidden_size)
        return (n_rows > 0) * (head_s + n_rows * self.engine.request_host_s)

    @property
    def kernels(self) -> Kernels:
        """How long their kernels take."""
        return self._kernels

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token, all layers, each head once."""
        return replace(self.shard, tensor=1, expert=1, data=1).kv_bytes_per_token

    @cached_property
    def work(self) -> StepWork:
        """Of a rank; a lane of a pipeline has its share of the GPUs. What parallelism does twice (replicated KV heads,
        padding) does not count as useful, nor does what windows attend to."""
        whole, n_gpus = replace(self.shard, tensor=1, expert=1, data=1), self.shard.tensor
        return StepWork(
            flop_per_token=2 * whole.active_weights,
            flop_per_pair=self._n_whole * whole.prefill_attention(0, 1, 0).flop,
            flop_per_sampled=whole.lm_head(1).flop,
            weight_bytes_per_step=_least_bytes(whole),
            kv_bytes_per_token=self._n_whole * whole.layer_kv_bytes_per_token,
            peak_flop_per_s=n_gpus * self.gpu.peak_flop_per_s(whole.weight_dtype),
            hbm_bytes_per_s=n_gpus * self.gpu.hbm_bytes_per_s,
        )

    def _beside_experts_s(self, n_tokens: Any) -> Any:
        """The gate and the shared experts of a layer."""
        shard, kernels = self.shard, self._kernels
        n_in, n_out = shard.router
        gate_s = kernels.matmul_s(HEAD_DTYPE, n_tokens, n_out, n_in)
        return gate_s + matrices_s(kernels, shard.dense_dtype, n_tokens, shard.shared_matrices)

    def _sends_s(self, n_tokens: Any) -> Any:
        """From stage to stage: hidden states and residuals, of which each GPU of a stage sends its part and collects
        the others' (vLLM, send_tensor_dict). Stages fill nodes one after another."""
        if self._pipeline == 1:
            return 0.0
        tensor, n_bytes = self.shard.tensor, 2 * self.shard.hidden_bytes(n_tokens)
        n_far = -(-self._pipeline * tensor // self.gpu.gpus_per_node) - 1
        near_s, far_s = (send_s(self.gpu, n_bytes / tensor, to_other_node=far) for far in (False, True))
        collected_s = self._kernels.all_gather_s(tensor, n_bytes)
        return (self._pipeline - 1 - n_far) * near_s + n_far * far_s + (self._pipeline - 1) * collected_s

    def _windowed_s(self, n_tokens: int, n_pairs: int, n_context_tokens: int, window: int) -> float:
        """Prefill attention of the layers with a window: no token attends to more keys, no chunk reads more before
        its own."""
        n_layers = self.shard.model.n_layers - self._n_whole
        pairs, keys = min(n_pairs, n_tokens * window), min(n_context_tokens, n_tokens + window)
        return n_layers * float(self._prefill_s(n_tokens, pairs, keys))


def _counts_to(n: int) -> NDArray[np.int64]:
    """0, 1, ... past n, to fill a table with."""
    return np.arange(max(FIRST_TABLE, 2 * n))


def _rising(seconds: NDArray[np.float64]) -> list[int]:
    """Seconds as picoseconds that never fall, `(n,)`: one token more never makes a step quicker."""
    table: list[int] = np.maximum.accumulate(array_to_ps(seconds)).tolist()
    return table


def _least_bytes(whole: Shard) -> float:
    """Of the weights that a step reads, however few its tokens: of the routed experts, those of one token."""
    model = whole.model
    dense = model.n_layers * whole.attention_weights + model.n_dense_layers * whole.mlp_weights
    in_16_bits, routed = whole.head_weights, 0
    if model.experts is not None:
        dense += model.n_moe_layers * whole.shared_weights
        in_16_bits += model.n_moe_layers * whole.router_weights
        routed = model.n_moe_layers * model.experts.top_k * whole.expert_weights
    stored = dense * BYTES_PER_VALUE[whole.dense_dtype] + routed * whole.weight_bytes_per_value
    return stored + in_16_bits * ACTIVATION_BYTES
