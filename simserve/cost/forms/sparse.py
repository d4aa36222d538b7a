"""Sparse attention over latent vectors (DeepSeek-V3.2, GLM-5), timed as whole modules from hidden states to hidden
states: an indexer scores all keys, and the best are attended."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from simserve.catalog.dtypes import BYTES_PER_VALUE
from simserve.catalog.specs import GpuSpec
from simserve.cost.forms.base import Coefficient, Form, LaunchTime, PeakShare, WorkTime, smooth_max
from simserve.cost.forms.mla import HIDDEN, KEY_WIDTH, MlaDecodeModule
from simserve.cost.kernels import PrefillAttentionCost, prompt_tokens
from simserve.cost.matrices import n_weights
from simserve.cost.shard import ACTIVATION_BYTES, Shard

SCORE_BYTES = 8
"""Bytes of a score in 32 bits, written by the indexer and read to choose the best."""

CAP_SHARPNESS = 2.4
"""Sharpness with which `attended` is within 7% of the pairs that whole prompts of any length attend."""


@dataclass(frozen=True)
class SparseSizes:
    """What a module of sparse attention multiplies and reads; each a number or `(n_rows,)`."""

    n_heads: Any
    """Heads on this GPU, scaled to the width that the forms count (KEY_WIDTH)."""
    cached: Any
    n_weights: Any
    """Weights of all matrices, those of the indexer included."""
    hidden: Any
    score_flop: Any
    index_bytes: Any
    """Bytes of a key of the indexer."""
    top_k: Any

    @classmethod
    def of(cls, shard: Shard) -> "SparseSizes":
        """Return the sizes of a layer of a shard."""
        model = shard.model
        assert model.mla is not None and model.indexer is not None, "sparse attention has an indexer"
        width, index = model.mla.cached_size + model.mla.kv_lora_rank, model.indexer
        return cls(
            shard.n_heads * width / KEY_WIDTH,
            model.mla.cached_size,
            n_weights(shard.attention_matrices),
            model.hidden_size,
            index.flop_per_pair,
            index.bytes_per_token,
            index.top_k,
        )


@dataclass(frozen=True)
class SparseDecodeModule(MlaDecodeModule):
    """The terms of whole latent attention, over the best keys, + bytes of the keys and scores of all."""

    score_byte_share: Annotated[float, PeakShare(0.3, 0.005, 1.0)]
    lone_scores: Annotated[float, Coefficient(4.0, 0.001, 64.0)]
    """Slowdown of a single request's scores, as one block of threads chooses among them."""

    def scored_s(self, gpu: GpuSpec, sizes: SparseSizes, n: Any) -> Any:
        """Return the seconds per key that n requests score, a scalar or `(n,)`, n >= 1."""
        memory = (sizes.index_bytes + SCORE_BYTES) / (gpu.hbm_bytes_per_s * self.score_byte_share)
        return memory * (1 + self.lone_scores / n)

    def best_line(self, gpu: GpuSpec, sizes: SparseSizes, kv_dtype: str, n: Any) -> tuple[Any, Any]:
        """Return (intercept, slope per attended key) in seconds for n requests, without matrices."""
        intercept, slope = self.line(gpu, sizes.n_heads, kv_dtype, n, sizes.cached)
        return intercept + _moved_s(self.moved_values, gpu, sizes, n), slope


@dataclass(frozen=True)
class SparsePrefillModule(Form):
    """launch + FLOP of attended pairs + FLOP and bytes of scores + bytes of keys + matrices."""

    launch_s: Annotated[float, LaunchTime(5e-5, 1e-6, 5e-3)]
    flop_share: Annotated[float, PeakShare(0.3, 0.01, 1.0)]
    pad_heads: Annotated[float, Coefficient(32.0, 0.1, 256.0)]
    """Heads that a tile has more than the GPU."""
    score_flop_share: Annotated[float, PeakShare(0.5, 0.01, 1.0)]
    """Share of the peak in fp8."""
    score_byte_share: Annotated[float, PeakShare(0.3, 0.005, 1.0)]
    key_values: Annotated[float, WorkTime(1e3, 1.0, 1e6)]
    """Values moved per key of a request, whatever its query tokens: keys are gathered before they are scored."""
    matmul_flop_share: Annotated[float, PeakShare(0.6, 0.05, 1.0)]
    matmul_byte_share: Annotated[float, PeakShare(0.7, 0.05, 1.0)]
    moved_values: Annotated[float, WorkTime(2e4, 1.0, 1e6)]
    """Values moved between kernels per token."""
    sharpness: Annotated[float, Coefficient(2.0, 1.0, 10.0)]
    dense: Annotated[float, Coefficient(0.0, 0.0, 0.0)]
    """1 where prompts with no more keys than are attended take the kernels of whole attention."""

    def matrices_s(self, gpu: GpuSpec, dtype: str, n_weights: Any, n: Any) -> Any:
        """Return the time of all matrices for n tokens."""
        compute = 2 * n * n_weights / (gpu.peak_flop_per_s(dtype) * self.matmul_flop_share)
        memory = n_weights * BYTES_PER_VALUE[dtype] / (gpu.hbm_bytes_per_s * self.matmul_byte_share)
        return smooth_max(compute, memory, self.sharpness)

    def attention_s(
        self, gpu: GpuSpec, sizes: SparseSizes, n_tokens: Any, n_attended: Any, n_scored: Any, n_keys: Any
    ) -> Any:
        """Return the seconds for query tokens, attended and scored query-key pairs, and keys; `(n,)` each."""
        flop = 2 * KEY_WIDTH * (sizes.n_heads + self.pad_heads) * n_attended
        attended = flop / (gpu.peak_flop_per_s("bf16") * self.flop_share)
        scored = n_scored * sizes.score_flop / (gpu.peak_flop_per_s("fp8") * self.score_flop_share)
        written = n_scored * SCORE_BYTES / (gpu.hbm_bytes_per_s * self.score_byte_share)
        gathered = ACTIVATION_BYTES * self.key_values * n_keys / gpu.hbm_bytes_per_s
        return (
            self.launch_s + attended + scored + written + gathered + _moved_s(self.moved_values, gpu, sizes, n_tokens)
        )


def attended(n_tokens: Any, n_pairs: Any, top_k: int) -> Any:
    """Return about how many query-key pairs are attended: all of short prompts, top_k per token of long ones."""
    most = n_tokens * top_k
    return most / smooth_max(1.0, most / n_pairs, CAP_SHARPNESS)


@dataclass(frozen=True)
class BestPrefill:
    """Prefill attention over the best keys of each token, or over all keys of prompts that have no more."""

    form: SparsePrefillModule
    gpu: GpuSpec
    sizes: SparseSizes
    token_s: float
    """Seconds of matrices for one token among many, beyond those that all tokens of a step share."""
    whole: PrefillAttentionCost | None
    """Attention over all keys, where the engine has it for short prompts."""

    def seconds(self, n_tokens: Any, n_pairs: Any, n_context_tokens: Any) -> Any:
        """Return the seconds of one layer."""
        top_k = self.sizes.top_k
        if self.whole is not None and prompt_tokens(n_tokens, n_pairs, n_context_tokens) * n_context_tokens <= (
            top_k * n_tokens
        ):
            return self.whole.seconds(n_tokens, n_pairs, n_context_tokens)
        n_attended = attended(n_tokens, n_pairs, top_k)
        attention_s = self.form.attention_s(self.gpu, self.sizes, n_tokens, n_attended, n_pairs, n_context_tokens)
        return attention_s + n_tokens * self.token_s


def shared_s(
    prefill: SparsePrefillModule, decode: SparseDecodeModule, gpu: GpuSpec, dtype: str, n_weights: int, n: Any
) -> Any:
    """Return the time of matrices for n tokens of both phases in one pass, at the higher speed of both fits; what each
    takes longer belongs to its attention."""
    quicker = replace(decode, matmul_flop_share=max(prefill.matmul_flop_share, decode.matmul_flop_share))
    return (n > 0) * quicker.expansion_s(gpu, dtype, n_weights, n)


def _moved_s(n_values: float, gpu: GpuSpec, sizes: SparseSizes, n: Any) -> Any:
    return ACTIVATION_BYTES * n_values * sizes.hidden / HIDDEN * n / gpu.hbm_bytes_per_s


SPARSE: Mapping[str, type[Form]] = {
    "sparse_prefill_module": SparsePrefillModule,
    "sparse_decode_module": SparseDecodeModule,
}
"""The form of each operation."""
