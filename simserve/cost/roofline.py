"""Roofline: FLOP and bytes of the kernels of a step, and their times where none were measured.

time of a kernel = launch + max(FLOP / (peak * efficiency), bytes / (bandwidth * efficiency))

Sources: operation counts of a transformer layer as in Kaplan et al. 2020 (table 1) and Pope et al. 2022 (section 2);
DeepSeek-V2 (section 2.1) for latent attention.
"""

from dataclasses import dataclass
from typing import Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.latent import Indexer
from simserve.catalog.specs import GpuSpec
from simserve.cost.comm import all_reduce_s, pass_s
from simserve.cost.forms.base import higher
from simserve.cost.forms.moe import load_of
from simserve.cost.kernels import MANY_KEYS, ExpandedPrefill, PrefillAttentionCost, attending, matrices_s
from simserve.cost.layer_shards import mlp_shards, whole_shards
from simserve.cost.shard import ACTIVATION_BYTES, HEAD_DTYPE, Shard
from simserve.cost.weights import parameters
from simserve.tables.facts import WorkFacts


@dataclass(frozen=True, slots=True)
class Work:
    """The FLOP and bytes of a kernel; both scalars, or both arrays of one shape."""

    flop: Any
    bytes: Any


def matmul_work(n_tokens: Any, n_in: int, n_out: int, weight_bytes: float) -> Work:
    """Return (n, n_in) x (n_in, n_out): 2 FLOP per weight and token; without tokens not even the weights are read."""
    n_bytes = (n_tokens > 0) * (n_in * n_out * weight_bytes) + n_tokens * ((n_in + n_out) * ACTIVATION_BYTES)
    return Work(n_tokens * (2 * n_in * n_out), n_bytes)


def elementwise_work(shard: Shard, n_tokens: Any) -> Work:
    """Return norms and residuals, rotary embedding, activation and KV write of an average layer: mostly memory traffic.
    The activation of routed experts belongs to their kernel.

    Each of two norms reads input and residual and writes both; several residual streams are read, and after a part read
    and written; rotation reads and writes queries and keys (with latent attention a part of each); the activation reads
    gate and up and writes one; keys and values are written once.
    """
    model, mla = shard.model, shard.model.mla
    activated = sum(n_layers * each.inner_size for each, n_layers in mlp_shards(shard))
    if shard.shared_matrices:
        activated += model.n_moe_layers * shard.shared_matrices["down"][0]
    one_head, n_heads = (
        (mla.qk_rope_head_dim, shard.n_heads + 1) if mla else (model.head_dim, shard.n_heads + shard.n_kv_heads)
    )
    moved = 2 * (4 if model.n_streams == 1 else 3 * model.n_streams + 2) * model.hidden_size
    values = moved + 2 * n_heads * one_head + (3 if model.gated_mlp else 2) * activated // model.n_layers
    n_bytes = values * ACTIVATION_BYTES + shard.layer_kv_bytes_per_token
    return Work(n_tokens * values, n_tokens * n_bytes)


def state_update_work(shard: Shard, n_tokens: Any) -> Work:
    """Return what surrounds the state of a layer, for n tokens: inputs are split or convolved, outputs gated; both are
    read and written once. The state itself is the kernels' `states_s` and `prompt_states`."""
    n_values = 0 if shard.state is None else 2 * shard.state.widths["mixed"]
    return Work(n_tokens * n_values, n_tokens * (n_values * ACTIVATION_BYTES))


def prefill_work(shard: Shard, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Work:
    """Return causal attention of prompt chunks in one layer: 2 FLOP per pair, head and width of scores and values.

    Latent vectors are expanded to keys and values first, by a matrix (kv_b) that is not counted here.
    """
    width = shard.n_heads * (shard.key_size + shard.value_size)
    n_bytes = n_context_tokens * shard.attended_bytes + n_tokens * (width * ACTIVATION_BYTES)
    return Work(2 * width * n_pairs, n_bytes)


def decode_work(shard: Shard, n: Any, kv_tokens: Any) -> Work:
    """Return attention of n decoding requests that attend kv_tokens keys in all, in one layer.

    Latent attention works on the cached vectors: queries and outputs are projected instead of keys.
    """
    mla = shard.model.mla
    width = shard.n_heads * (mla.cached_size + mla.kv_lora_rank if mla else shard.key_size + shard.value_size)
    return Work(2 * width * kv_tokens, kv_tokens * shard.attended_bytes + n * (width * ACTIVATION_BYTES))


def key_flop(shard: Shard) -> float:
    """Return the FLOP of one key and query in all layers that attend the whole context, or score all of it."""
    wholes = ((own, own.model.indexer, group) for own, group in whole_shards(shard))
    keys = ((index.flop_per_pair if index else decode_work(own, 0, 1).flop, group) for own, index, group in wholes)
    return sum(group.n_layers * flop / group.ratio for flop, group in keys)


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


@dataclass(frozen=True)
class SparsePrefill:
    """Prefill over latent vectors of which a token attends the best, by a roofline: all keys are scored first.

    Attention works on the vectors themselves, as in decode, and kernels take top_k of them however few there are.
    """

    launch_s: float
    top_k: int
    pair_s: float
    score_s: float
    """Seconds per scored pair."""
    key_s: float
    """Seconds to read a key of the indexer."""
    query_s: float
    """Seconds to expand the queries and outputs of all heads for one token, among many."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds of scores and attention."""
        scores_s = n_pairs * self.score_s + n_context_tokens * self.key_s
        return self.launch_s + scores_s + n_tokens * (self.top_k * self.pair_s + self.query_s)


class Roofline:
    """The kernels of an engine with shares of the peaks, and a launch time per kernel."""

    def __init__(self, gpu: GpuSpec, engine: EngineSpec) -> None:
        self._gpu = gpu
        self._launch_s = engine.launch_s
        self._compute_frac = engine.compute_efficiency
        self._bytes_per_s = gpu.hbm_bytes_per_s * engine.memory_efficiency

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """Return the roofline of its FLOP and bytes."""
        work = matmul_work(m, k, n, BYTES_PER_VALUE[dtype])
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

    reduce_scatter_s = all_gather_s

    def projections_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Sum the matrices."""
        return matrices_s(self, shard.dense_dtype, n_tokens, shard.projections)

    def experts_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Return the roofline of two grouped products on the busiest GPU: FLOP of rows, bytes of touched experts."""
        layer = shard.expert_layer
        load = load_of(shard.routing, n_tokens, layer.top_k, layer.n_experts, layer.expert)
        weights = shard.expert_weights
        work = Work(2 * weights * load.rows, load.touched * weights * BYTES_PER_VALUE[shard.weight_dtype])
        return 2 * self._launch_s + self._bound_s(work, self._gpu.peak_flop_per_s(shard.weight_dtype))

    def prefill_attention(self, shard: Shard) -> PrefillAttentionCost:
        """Return attention in 16 bits, whatever the weights and the cache are stored in."""
        if shard.model.indexer is not None:
            return self._sparse(shard, shard.model.indexer, shard.expansion)
        flop_per_s = self._gpu.peak_flop_per_s("bf16") * self._compute_frac
        one_query, one_pair, one_key = (prefill_work(shard, *one) for one in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
        key_s, query_s = one_key.bytes / self._bytes_per_s, one_query.bytes / self._bytes_per_s
        attention = RooflinePrefill(self._launch_s, one_pair.flop / flop_per_s, key_s, query_s)
        return ExpandedPrefill.of(attention, self, shard)

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """Return the higher roof's slope; both are proportional to the keys. Memory bounds keys read for a few query
        heads; latent vectors, read for all heads, come near the ridge."""
        flop_per_s = self._gpu.peak_flop_per_s("bf16") * self._compute_frac
        one_query, one_key = (decode_work(attending(shard), *one) for one in ((1, 0), (0, 1)))
        intercept_s = self._launch_s + n * (one_query.bytes / self._bytes_per_s)
        if shard.expansion is not None:
            n_in, n_out = shard.expansion
            intercept_s = intercept_s + self.matmul_s(shard.dense_dtype, n, n_out, n_in)
        return intercept_s, 0 * n + max(one_key.bytes / self._bytes_per_s, one_key.flop / flop_per_s)

    def scored_s(self, shard: Shard, n: Any) -> Any:
        """Return the higher roof of a key of the indexer and its score."""
        index = shard.model.indexer
        return 0 * n + (0.0 if index is None else max(self._scores_s(index)))

    def states_s(self, shard: Shard, n: Any) -> Any:
        """Return the time of the states' bytes, read and written."""
        return self.elementwise_s(2 * shard.state_bytes * n, 1)

    def prompt_states(self, shard: Shard) -> PrefillAttentionCost | None:
        """Return nothing: what a token moves does not depend on its prompt."""
        return None

    def _sparse(self, shard: Shard, index: Indexer, expansion: tuple[int, int] | None) -> SparsePrefill:
        read_s, score_s = self._scores_s(index)
        pair_s = decode_work(shard, 0, 1).flop / (self._gpu.peak_flop_per_s(HEAD_DTYPE) * self._compute_frac)
        n_in, n_out = expansion or (0, 0)
        query_s = float(self.matmul_s(shard.dense_dtype, MANY_KEYS, n_out, n_in)) / MANY_KEYS if expansion else 0.0
        return SparsePrefill(2 * self._launch_s, index.top_k, pair_s, score_s, read_s, query_s)

    def _scores_s(self, index: Indexer) -> tuple[float, float]:
        """Return the seconds to read a key of the indexer, and to score it."""
        flop_per_s = self._gpu.peak_flop_per_s("fp8") * self._compute_frac
        return index.bytes_per_token / self._bytes_per_s, index.flop_per_pair / flop_per_s

    def _bound_s(self, work: Work, flop_per_s: float) -> Any:
        return higher(work.flop / (flop_per_s * self._compute_frac), work.bytes / self._bytes_per_s)


def work_of(shard: Shard, gpu: GpuSpec) -> WorkFacts:
    """Return the useful work of a rank; a lane of a pipeline has its share of the GPUs. Work repeated by parallelism
    (replicated KV heads, padding) and attention within windows do not count."""
    whole, n_gpus = shard.whole, shard.tensor * shard.prefill_context
    per_token, per_pair, read_bytes = 0, 0.0, 0.0
    for own, group in whole_shards(whole):
        n_layers, ratio, index = group.n_layers, group.ratio, own.model.indexer
        if index is None:
            per_pair += n_layers * prefill_work(own, 0, 1, 0).flop / ratio
            read_bytes += n_layers * own.layer_kv_bytes_per_token / ratio
        else:
            per_token += n_layers * index.top_k * decode_work(own, 0, 1).flop
            per_pair += n_layers * index.flop_per_pair / ratio
            read_bytes += n_layers * index.bytes_per_token / ratio
    n = parameters(whole, is_active=True)
    read_layers_bytes = n.projections * BYTES_PER_VALUE[whole.dense_dtype]
    read_layers_bytes += n.routed_experts * BYTES_PER_VALUE[whole.weight_dtype]
    return WorkFacts(
        flop_per_token=2 * (n.projections + n.routed_experts + n.gates) + per_token,
        flop_per_pair=per_pair,
        flop_per_sampled=2 * whole.head_weights,
        weight_bytes_per_step=read_layers_bytes + (n.head + n.gates) * ACTIVATION_BYTES,
        kv_bytes_per_token=read_bytes,
        peak_flop_per_s=n_gpus * gpu.peak_flop_per_s(whole.weight_dtype),
        hbm_bytes_per_s=n_gpus * gpu.hbm_bytes_per_s,
        state_bytes_per_request=2 * shard.model.n_state_layers * whole.state_bytes,
    )
