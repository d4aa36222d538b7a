"""StepCost: the cost of a replica's steps in whole picoseconds, tabulated from the times of its kernels."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.layers import UNIFORM_ROUTING
from simserve.catalog.specs import BYTES_PER_VALUE, COMPUTES_IN, GpuSpec, ModelSpec
from simserve.cost.comm import (
    Exchange,
    ExchangeKernels,
    NodeLink,
    all_reduce_over_nodes_s,
    between_nodes_s,
    send_s,
)
from simserve.cost.kernels import MANY_KEYS, Kernels, SparsePrefill, matrices_s
from simserve.cost.launches import n_launches
from simserve.cost.model import step_ps
from simserve.cost.ops import ACTIVATION_BYTES, HEAD_DTYPE, Shard
from simserve.cost.roofline import Roofline
from simserve.cost.shape import StepShape
from simserve.tables.facts import WorkFacts
from simserve.units import array_to_ps, to_ps

FIRST_TABLE = 4096
"""First size of a table; it doubles when a step needs more."""

ELEMENTWISE_KERNELS = 3
"""Launches per layer for norms, rotation with KV write, and activation, as fused by current engines."""


class StepCost:
    """The cost of the steps of one rank of a replica; pure.

    In a pipeline, a step goes through all stages. Where `data` groups share the experts, their joint work is not part
    of a rank's step but `group_ps`, for the tokens of all of them.

    fast: everything that depends on a count alone is a table of Python integers, filled by numpy with the full formula.
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
        routing: str = UNIFORM_ROUTING,
        node_link: NodeLink | None = None,
        exchange: ExchangeKernels = "by_batch",
        hides_host: bool = False,
    ) -> None:
        self.shard = Shard(model, weight_dtype, kv_dtype, tensor, expert, data, routing)
        self.gpu = gpu
        self.engine = engine
        self.node_link = node_link or NodeLink(gpu.nic_bytes_per_s)
        self._n_nodes = max(1, tensor // gpu.gpus_per_node)
        self.exchange = exchange_of(self.shard, gpu, self.node_link, exchange)
        """The exchange of tokens where experts are spread over several nodes; else None."""
        self._pipeline = pipeline
        exposed_s = engine.exposed_step_s if hides_host else None
        self._step_s, self.request_s = engine.step_host_s, engine.request_host_s
        """Host time that the GPU waits for, per step and per request in it."""
        self._hidden_ps = (0, 0)
        if exposed_s is not None:
            self._hidden_ps = to_ps(exposed_s + self._step_s), to_ps(self.request_s)
            self._step_s, self.request_s = exposed_s, 0.0
        self._launches_ps = to_ps((engine.eager_kernel_s or 0.0) * n_launches(self.shard, engine.quantizes_before))
        """The host's time to launch the kernels of a step with prompts, which is no shorter."""
        self._kernels = kernels or Roofline(gpu, engine)
        self._windows = [group for group in model.groups if group.window is not None]
        self._n_whole = model.n_whole_layers
        self._prefill_s = (self._sparse_prefill() or self._kernels.prefill_attention(self.shard)).seconds
        self._prompts_ps: dict[int, tuple[int, int]] = {}
        """Tokens of one whole prompt and its attention, by its pairs."""
        self._tokens_ps: list[int] = []
        self._sampled_ps: list[int] = []
        self._group_ps: list[int] = []
        self._exchange_ps: list[int] = []
        self._lines: list[tuple[int, int]] = []
        self.step_lines: dict[int, tuple[int, int]] = {}
        self._window_slopes: list[tuple[int, ...]] = []

    def tokens_ps(self, n_tokens: int) -> int:
        """Return the part that depends on the number of tokens in the step alone, padded ones included; monotone."""
        try:
            return self._tokens_ps[n_tokens]
        except IndexError:
            counts = _counts_to(n_tokens)
            self._tokens_ps = _rising(self.tokens_s(padded(counts) if self.engine.pads_to_graphs else counts))
            return self._tokens_ps[n_tokens]

    def sampled_ps(self, n_rows: int) -> int:
        """Return the LM head over n_rows positions, and the host's time for their requests."""
        try:
            return self._sampled_ps[n_rows]
        except IndexError:
            self._sampled_ps = _rising(self.sampled_s(_counts_to(n_rows)))
            return self._sampled_ps[n_rows]

    def host_ps(self, n_rows: int) -> int:
        """Return the host's time for a step that samples n_rows requests, where it hides behind kernels; else 0."""
        step_ps, request_ps = self._hidden_ps
        return step_ps + n_rows * request_ps

    def group_ps(self, n_tokens: int, n_busiest: int) -> int:
        """Return the joint work of groups that share experts, for the tokens of all, and the exchange between nodes,
        for those of the group with most."""
        try:
            group_ps = self._group_ps[n_tokens]
        except IndexError:
            self._group_ps = _rising(self.group_s(_counts_to(n_tokens)))
            group_ps = self._group_ps[n_tokens]
        return group_ps if self.exchange is None else group_ps + self.exchange_ps(n_busiest)

    def exchange_ps(self, n_busiest: int) -> int:
        """Return what moves tokens to their experts on other nodes and outputs back, for the tokens of the group with
        most; 0 inside a node, where `group_s` has it."""
        try:
            return self._exchange_ps[n_busiest]
        except IndexError:
            self._exchange_ps = _rising(self.exchange_s(_counts_to(n_busiest)))
            return self._exchange_ps[n_busiest]

    def prefill_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        """Return the attention of all prompt chunks of the step in layers without a window, as one kernel per layer."""
        if n_context_tokens != n_tokens:
            return self._chunks_ps(n_tokens, n_pairs, n_context_tokens)
        prompt = self._prompts_ps.get(n_pairs)  # fast: most steps with prompts compute one, as a whole
        if prompt is not None and prompt[0] == n_tokens:
            return prompt[1]
        prompts_ps = self._chunks_ps(n_tokens, n_pairs, n_context_tokens)
        if 2 * n_pairs == n_tokens * (n_tokens + 1):
            self._prompts_ps[n_pairs] = n_tokens, prompts_ps
        return prompts_ps

    def _chunks_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int) -> int:
        if not n_tokens or not self._n_whole:
            return 0
        return to_ps(self._n_whole * self._prefill_s(n_tokens, n_pairs, n_context_tokens))

    def prefill_windows_ps(self, n_tokens: int, reads: Sequence[tuple[int, int]]) -> int:
        """Return that in layers with a window, from the pairs and the keys read in a layer of each such group."""
        works = zip(self._windows, reads, strict=True)
        return to_ps(sum(group.n_layers * float(self._prefill_s(n_tokens, *read)) for group, read in works))

    def decode_line(self, n: int) -> tuple[int, int]:
        """Return (intercept, slope): attention of n decoding requests takes intercept + slope * keys attended, besides
        the keys in layers with a window (see `window_slopes`)."""
        if n >= len(self._lines):
            self._fill_lines(n)
        return self._lines[n]

    def window_slopes(self, n: int) -> tuple[int, ...]:
        """Return the time per key that n decoding requests attend in a layer of each group with a window."""
        if n >= len(self._lines):
            self._fill_lines(n)
        return self._window_slopes[n]

    def _fill_lines(self, n: int) -> None:
        counts = _counts_to(n)
        intercepts, of_groups = self.attention_by_group_ps(counts)
        slopes, windows = np.zeros_like(counts), [np.zeros((0, len(counts)), np.int64)]
        for group, slope in zip(self.shard.model.groups, of_groups, strict=True):
            if group.window is None:
                slopes = slopes + slope
            else:
                windows.append(slope[None])
        self._lines = list(zip(intercepts.tolist(), slopes.tolist(), strict=True))
        self._window_slopes = list(map(tuple, np.concatenate(windows).T.tolist()))

    def attention_by_group_ps(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """Return the attention of that many decoding requests without keys, and per key that these requests attend in
        one layer of each group (`LayerGroup.keys`), `(n_counts,)` each."""
        model = self.shard.model
        intercept_s, slope_s = self._kernels.decode_attention(self.shard, counts)
        if model.indexer is not None:  # kernels attend top_k keys, however few there are
            intercept_s = intercept_s + counts * (model.indexer.top_k * slope_s)
            slope_s = 0 * slope_s + max(self._score_s)
        intercepts_s = model.n_attention_layers * intercept_s
        if model.n_state_layers:  # a state is read and written
            state_s = self._kernels.elementwise_s(2 * self.shard.state_bytes * counts, 1)
            intercepts_s = intercepts_s + model.n_state_layers * state_s * (counts > 0)
        slopes = [array_to_ps(group.n_layers * group.attends * slope_s) for group in model.groups]
        return array_to_ps(intercepts_s), slopes

    def mixed_ps(self, n_tokens: int, n_pairs: int, n_context_tokens: int, n: int, kv_tokens: int, n_rows: int) -> int:
        """Return a step of prompt chunks and n decoding requests, without the keys in layers with a window: the sum of
        the parts, each rounded once; with chunks, at least the host's time to launch its kernels."""
        try:  # fast: the tables, in place
            total_ps = self._tokens_ps[n_tokens + n] + self._sampled_ps[n_rows]
            line = self._lines[n]
        except IndexError:
            total_ps = self.tokens_ps(n_tokens + n) + self.sampled_ps(n_rows)
            line = self.decode_line(n)
        if n:
            intercept_ps, slope_ps = line
            total_ps += intercept_ps + slope_ps * kv_tokens
        if n_tokens:
            total_ps += self.prefill_ps(n_tokens, n_pairs, n_context_tokens)
            if total_ps < self._launches_ps:
                return self._launches_ps
        return total_ps

    def step_ps(self, shape: StepShape) -> int:
        """Return the cost of a step of that shape."""
        return step_ps(self, shape)

    @property
    def sparse_query_ps(self) -> int:
        """Attention of one more query of a request in all layers, where queries choose their own keys; else 0."""
        index, n_layers = self.shard.model.indexer, self._n_whole
        if index is None:
            return 0
        _, slope_s = self._kernels.decode_attention(self.shard, 1)
        return to_ps(n_layers * index.top_k * float(slope_s))

    @property
    def _score_s(self) -> tuple[float, float]:
        """Seconds to read a key of the indexer, and to score it, by a roofline."""
        index = self.shard.model.indexer
        assert index is not None, "the model has an indexer"
        read_s = index.bytes_per_token / (self.gpu.hbm_bytes_per_s * self.engine.memory_efficiency)
        return read_s, index.flop_per_pair / (self.gpu.peak_flop_per_s("fp8") * self.engine.compute_efficiency)

    def _sparse_prefill(self) -> SparsePrefill | None:
        """Return prefill attention with an indexer; None without."""
        index = self.shard.model.indexer
        if index is None:
            return None
        read_s, score_s = self._score_s
        flop_per_s = self.gpu.peak_flop_per_s(HEAD_DTYPE) * self.engine.compute_efficiency
        pair_s = self.shard.decode_attention(0, 1).flop / flop_per_s
        n_in, n_out = self.shard.attention_matrices["kv_b"]
        query_s = float(self._kernels.matmul_s(self.shard.dense_dtype, MANY_KEYS, n_out, n_in)) / MANY_KEYS
        return SparsePrefill(2 * self.engine.launch_s, index.top_k, pair_s, score_s, read_s, query_s)

    def check(self) -> None:
        """Evaluate every kernel once. Raises CalibrationError for one that was never timed."""
        self.tokens_s(1)
        self.group_s(1)
        self.exchange_s(1)
        self.sampled_s(1)
        self._kernels.decode_attention(self.shard, 1)

    def tokens_s(self, n_tokens: Any) -> Any:
        """Return the seconds of matrices, element-wise work, all-reduces and sends of all layers, and of waiting for
        the host."""
        shard, kernels, model = self.shard, self._kernels, self.shard.model
        common_s = kernels.elementwise_s(shard.elementwise(n_tokens).bytes, ELEMENTWISE_KERNELS)
        reduce_s = self._all_reduce_s(shard.hidden_bytes(n_tokens))
        n_other = model.n_layers - model.n_attention_layers - model.n_state_layers
        layers_s = n_other * (common_s + reduce_s)
        if model.n_attention_layers:
            layers_s += model.n_attention_layers * (kernels.projections_s(shard, n_tokens) + common_s + 2 * reduce_s)
        if model.n_state_layers:
            matrices = matrices_s(kernels, shard.dense_dtype, n_tokens, shard.linear_matrices)
            update_s = kernels.elementwise_s(shard.state_update(n_tokens).bytes, ELEMENTWISE_KERNELS)
            layers_s += model.n_state_layers * (matrices + update_s + common_s + 2 * reduce_s)
        if model.n_bare_layers:
            layers_s -= model.n_bare_layers * reduce_s
        if model.n_dense_layers:
            layers_s += model.n_dense_layers * matrices_s(kernels, shard.dense_dtype, n_tokens, shard.mlp_matrices)
        if model.n_moe_layers:
            layers_s += model.n_moe_layers * self._gate_and_shared_s(n_tokens)
            if shard.data == 1:
                layers_s += model.n_moe_layers * kernels.experts_s(shard, n_tokens)
        return self._step_s + layers_s + self._sends_s(n_tokens)

    def group_s(self, n_tokens: Any) -> Any:
        """Return the seconds of the routed experts of all layers, for the tokens of all `data` groups that share them.
        Inside a node this includes the gather of inputs and the scatter of sums. 0 where experts are not shared.

        Source: vLLM's all-gather and reduce-scatter, its default between the groups.
        """
        shard, kernels = self.shard, self._kernels
        if shard.data == 1:
            return 0.0 * n_tokens
        layer_s, n_bytes = kernels.experts_s(shard, n_tokens), shard.hidden_bytes(n_tokens)
        if self.exchange is None:
            layer_s += kernels.all_gather_s(shard.data, n_bytes) + kernels.reduce_scatter_s(shard.data, n_bytes)
        return shard.model.n_moe_layers * layer_s

    def exchange_s(self, n_tokens: Any) -> Any:
        """Return the seconds of all exchanges between nodes for n_tokens of a group. Each of its GPUs sends a part
        and gathers the others'."""
        if self.exchange is None:
            return 0.0 * n_tokens
        gathered_s = self._all_gather_s(self.shard.hidden_bytes(n_tokens))
        return self.shard.model.n_moe_layers * (self.exchange.seconds(n_tokens / self.shard.tensor) + gathered_s)

    def sampled_s(self, n_rows: Any) -> Any:
        """Return the seconds of the LM head and of waiting for the host, for n_rows requests; 0 for none."""
        shard = self.shard
        head_s = self._kernels.matmul_s(HEAD_DTYPE, n_rows, shard.head_columns, shard.model.hidden_size)
        return (n_rows > 0) * (head_s + n_rows * self.request_s)

    @property
    def kernels(self) -> Kernels:
        """The kernel times behind the steps."""
        return self._kernels

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's keys and values in all layers, each head once."""
        return replace(self.shard, tensor=1, expert=1, data=1).kv_bytes_per_token

    @cached_property
    def work(self) -> WorkFacts:
        """The useful work of a rank; a lane of a pipeline has its share of the GPUs. Work repeated by parallelism
        (replicated KV heads, padding) and attention within windows do not count."""
        whole, n_gpus = replace(self.shard, tensor=1, expert=1, data=1), self.shard.tensor
        per_token, per_pair, read_bytes = 0, whole.prefill_attention(0, 1, 0).flop, whole.layer_kv_bytes_per_token
        if (index := whole.model.indexer) is not None:
            per_token, per_pair = index.top_k * whole.decode_attention(0, 1).flop, index.flop_per_pair
            read_bytes = index.bytes_per_token
        return WorkFacts(
            flop_per_token=2 * whole.active_weights + self._n_whole * per_token,
            flop_per_pair=self._n_whole * per_pair,
            flop_per_sampled=whole.lm_head(1).flop,
            weight_bytes_per_step=_least_bytes(whole),
            kv_bytes_per_token=self._n_whole * read_bytes,
            peak_flop_per_s=n_gpus * self.gpu.peak_flop_per_s(whole.weight_dtype),
            hbm_bytes_per_s=n_gpus * self.gpu.hbm_bytes_per_s,
        )

    def _gate_and_shared_s(self, n_tokens: Any) -> Any:
        """Return the gate and the shared experts of a layer. In small steps these run beside the routed ones, and only
        reading their weights takes time."""
        shard, kernels = self.shard, self._kernels
        n_in, n_out = shard.router
        gate_s = kernels.matmul_s(HEAD_DTYPE, n_tokens, n_out, n_in)
        shared_s = matrices_s(kernels, shard.dense_dtype, n_tokens, shard.shared_matrices)
        read_s = kernels.elementwise_s(shard.shared_weights * BYTES_PER_VALUE[shard.dense_dtype], 0)
        is_beside = n_tokens <= (self.engine.shared_beside_tokens or 0)
        return gate_s + np.where(is_beside, np.minimum(read_s, shared_s), shared_s)

    def _all_reduce_s(self, n_bytes: Any) -> Any:
        """Return an all-reduce of a tensor-parallel group, by the engine's kernels in one node."""
        if self._n_nodes == 1:
            return self._kernels.all_reduce_s(self.shard.tensor, n_bytes)
        return all_reduce_over_nodes_s(self.gpu, self.node_link, self._n_nodes, n_bytes)

    def _all_gather_s(self, n_bytes: Any) -> Any:
        """Return an all-gather of a tensor-parallel group: between nodes, then in each node."""
        near_s = self._kernels.all_gather_s(self.shard.tensor // self._n_nodes, n_bytes)
        return near_s + between_nodes_s(self.node_link, self._n_nodes, self._node_part(n_bytes))

    def _node_part(self, n_bytes: Any) -> Any:
        """Return one GPU's part of bytes that the GPUs of a node divide."""
        return n_bytes * self._n_nodes / self.shard.tensor

    def _sends_s(self, n_tokens: Any) -> Any:
        """Return the sends between stages: hidden states and residuals, of which each GPU of a stage sends its part and
        collects the others' (vLLM, send_tensor_dict). Stages fill nodes one after another."""
        if self._pipeline == 1:
            return 0.0
        tensor, n_bytes = self.shard.tensor, 2 * self.shard.hidden_bytes(n_tokens)
        n_gpus = self._pipeline * tensor * self.shard.data
        n_far = min(-(-n_gpus // self.gpu.gpus_per_node), self._pipeline) - 1
        near_s, far_s = (send_s(self.gpu, n_bytes / tensor, link) for link in (None, self.node_link))
        collected_s = self._all_gather_s(n_bytes)
        return (self._pipeline - 1 - n_far) * near_s + n_far * far_s + (self._pipeline - 1) * collected_s


def exchange_of(shard: Shard, gpu: GpuSpec, link: NodeLink, kernels: ExchangeKernels) -> Exchange | None:
    """Return the exchange of groups that share experts over several nodes; None for other shards."""
    n_gpus, experts = shard.tensor * shard.data, shard.model.experts
    if experts is None or shard.data == 1 or n_gpus <= gpu.gpus_per_node:
        return None
    sends_fp8 = COMPUTES_IN.get(shard.weight_dtype) == "fp8"
    return Exchange(gpu, link, experts, shard.model.hidden_size, n_gpus, sends_fp8, kernels)


def padded(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens that steps of these counts compute, `(n,)`: those of the smallest CUDA graph that holds them,
    1, 2, 4, multiples of 8 up to 256 and of 16 up to 512; beyond, none is captured (vLLM V1, config/vllm.py)."""
    step = np.select([counts <= 2, counts <= 4, counts <= 256, counts <= 512], [1, 2, 8, 16], 1)
    sizes: NDArray[np.int64] = -(-counts // step) * step
    return sizes


def _counts_to(n: int) -> NDArray[np.int64]:
    """Return 0, 1, ... past n, to fill a table with."""
    return np.arange(max(FIRST_TABLE, 2 * n))


def _rising(seconds: NDArray[np.float64]) -> list[int]:
    """Return picoseconds that never fall, `(n,)`: another token never makes a step faster."""
    table: list[int] = np.maximum.accumulate(array_to_ps(seconds)).tolist()
    return table


def _least_bytes(whole: Shard) -> float:
    """Return the bytes of weights that a step reads, however few its tokens: of routed experts, those of one token."""
    model = whole.model
    dense = whole.mixing_weights + model.n_dense_layers * whole.mlp_weights
    in_16_bits, routed = whole.head_weights, 0
    if model.experts is not None:
        dense += model.n_moe_layers * whole.shared_weights
        in_16_bits += model.n_moe_layers * whole.router_weights
        routed = model.n_moe_layers * model.experts.top_k * whole.expert_weights
    stored = dense * BYTES_PER_VALUE[whole.dense_dtype] + routed * whole.weight_bytes_per_value
    return stored + in_16_bits * ACTIVATION_BYTES
