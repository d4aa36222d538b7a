"""Calibrated: kernel times from forms that were fitted to measurements."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from simserve import catalog
from simserve.catalog.engine_spec import EngineSpec
from simserve.catalog.specs import GpuSpec
from simserve.cost.calibration import Calibration, launch_factor
from simserve.cost.forms.attention import DecodeAttention, PrefillAttention
from simserve.cost.forms.base import Form
from simserve.cost.forms.collective import Collective, for_group
from simserve.cost.forms.gemm import Gemm
from simserve.cost.forms.mla import (
    KEY_WIDTH,
    PAIR_WIDTH,
    LatentPrefill,
    MlaDecode,
    MlaDecodeModule,
    MlaPrefill,
    MlaPrefillModule,
    projections_s,
)
from simserve.cost.forms.moe import MoeLayer
from simserve.cost.forms.sparse import BestPrefill, SparseDecodeModule, SparsePrefillModule, SparseSizes, shared_s
from simserve.cost.forms.state import PromptStates, StateDecode, StatePrefill
from simserve.cost.kernels import MANY_KEYS, ExpandedPrefill, PrefillAttentionCost, attending, matrices_s
from simserve.cost.matrices import n_weights
from simserve.cost.shard import Shard
from simserve.cost.timed_forms import SIXTEEN_BITS, first_form, measured_as, timed_form

ELEMENTWISE_FRAC = 0.8
"""Share of the bandwidth that norms and activations reach; they stream like a copy, which reaches 0.8 to 0.9."""

MOE_KERNELS: Mapping[str, str] = {"marlin": "int4", "flashinfer_trtllm_afp8": "mxfp4_mxfp8"}
"""Dtypes that kernels of experts in mxfp4 were timed with, by `moe_backend`."""


class Calibrated:
    """The kernels of a calibration on a GPU: the timed one, or another one, scaled by its data sheet.

    Kernels of experts, of latent and sparse attention and of states without timings come from the default calibration,
    scaled the same way.
    """

    def __init__(self, gpu: GpuSpec, calibration: Calibration, engine: EngineSpec) -> None:
        calibration = calibration.of_version(engine.version)
        compute = memory = 1.0  # by how much this card's shares of peak and bandwidth exceed those of the timed one
        if calibration.gpu != gpu.name:
            timed = cast(Gemm, calibration.form("gemm", *SIXTEEN_BITS))
            compute = (gpu.flop_share or timed.flop_share) / timed.flop_share
            memory = (gpu.byte_share or timed.byte_share) / timed.byte_share
        busy = {True: engine.busy_compute_frac, False: engine.busy_fp8_frac or engine.busy_compute_frac}
        peaks = {dtype: peak * busy[dtype in SIXTEEN_BITS] * compute for dtype, peak in gpu.flop_per_s.items()}
        self.gpu = replace(gpu, flop_per_s=peaks, hbm_bytes_per_s=gpu.hbm_bytes_per_s * memory)
        self.calibration = calibration
        self.gap_s = engine.gap_s * launch_factor(calibration.launches, engine.version)
        self._waits = 1 + engine.wait_frac
        self._moe_backend = engine.moe_backend
        self._quantizes_before = engine.quantizes_before

    def matmul_s(self, dtype: str, m: Any, n: int, k: int) -> Any:
        """Time the linear layer, with the quantization of its activations where that is a kernel of its own."""
        form = cast(Gemm, self.calibration.form("gemm", *measured_as(dtype)))
        if dtype in self._quantizes_before:  # a product in 16 bits was timed without a kernel before it
            plain = cast(Gemm, self.calibration.form("gemm", *SIXTEEN_BITS))
            form = replace(form, launch_s=min(form.launch_s, plain.launch_s), input_bytes=0.0)
        return form.seconds(self.gpu, dtype, m, n, k)

    def projections_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Sum the matrices, or use the remainder of latent attention that was timed as a whole module."""
        dtype = shard.dense_dtype
        if shard.model.indexer is not None:
            return shared_s(*self._sparse(shard), self.gpu, dtype, n_weights(shard.projections), n_tokens)
        if shard.model.mla is not None:
            modules = self._mla("prefill", shard), self._mla("decode", shard)
            if isinstance(modules[0], MlaPrefillModule) and isinstance(modules[1], MlaDecodeModule):
                both = modules[0], modules[1]
                size = n_weights(shard.projections)
                return projections_s(both, self.gpu, dtype, size, shard.model.hidden_size, n_tokens)
        return matrices_s(self, dtype, n_tokens, shard.projections)

    def experts_s(self, shard: Shard, n_tokens: Any) -> Any:
        """Time one fused layer, from router logits to summed outputs."""
        layer, dtype = shard.expert_layer, self.experts_dtype(shard.weight_dtype)
        if not shard.model.gated_mlp:  # kernels were timed with three matrices: two are those of a smaller expert
            layer = replace(layer, inter=-(-2 * layer.inter // 3))
        timed = measured_as(dtype)
        spread = [f"{each}+ep" for each in timed[:1] if layer.expert > 1]
        form = cast(MoeLayer, first_form(self.calibration, {"moe": (*spread, *timed)}))
        return form.seconds(self.gpu, dtype, n_tokens, **vars(layer), routing=shard.routing)

    def experts_dtype(self, dtype: str) -> str:
        """Return the dtype that the kernels of experts in dtype were timed with: that of `moe_backend`, where it was
        timed."""
        timed = MOE_KERNELS.get(self._moe_backend or "", dtype) if dtype == "mxfp4" else dtype
        return timed if timed_form(self.calibration, {"moe": [timed]}) is not None else dtype

    def elementwise_s(self, n_bytes: Any, n_kernels: int) -> Any:
        """Stream the bytes at a copy's bandwidth, plus one gap per kernel; no table has these kernels."""
        return n_kernels * self.gap_s + n_bytes / (self.gpu.hbm_bytes_per_s * ELEMENTWISE_FRAC)

    def all_reduce_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Time an all-reduce; group sizes between measured ones are interpolated.

        Without peer access, engines' own kernels cannot run: NCCL scatters sums and gathers them, each through the
        memory of the host.
        """
        if self.gpu.link_topology == "host":
            return self.reduce_scatter_s(n_gpus, n_bytes) + self.all_gather_s(n_gpus, n_bytes)
        return self._collective_s("all_reduce", n_gpus, n_bytes)

    def all_gather_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Time an all-gather; group sizes between measured ones are interpolated."""
        return self._collective_s("all_gather", n_gpus, n_bytes)

    def reduce_scatter_s(self, n_gpus: int, n_bytes: Any) -> Any:
        """Time a reduce-scatter; group sizes between measured ones are interpolated."""
        return self._collective_s("reduce_scatter", n_gpus, n_bytes)

    def prefill_attention(self, shard: Shard) -> PrefillAttentionCost:
        """Return one layer's attention over the cache's dtype."""
        if shard.expansion is not None:
            latent = cast(MlaPrefill, self._mla("prefill", shard))
            n_heads = shard.n_heads * (shard.key_size + shard.value_size) / PAIR_WIDTH
            whole = ExpandedPrefill.of(LatentPrefill(latent, self.gpu, n_heads), self, shard)
            if shard.model.indexer is None:
                return whole
            best, sizes = self._sparse(shard)[0], SparseSizes.of(shard)
            all_s = best.matrices_s(self.gpu, shard.dense_dtype, sizes.n_weights, MANY_KEYS)
            token_s = float(all_s - self.projections_s(shard, MANY_KEYS)) / MANY_KEYS
            return BestPrefill(best, self.gpu, sizes, token_s, whole if best.dense else None)
        both = f"{shard.kv_dtype}/{shard.weight_dtype}"  # some engines compute in fp8 where weights and cache are
        form = cast(PrefillAttention, self.calibration.form("prefill_attention", both, shard.kv_dtype, "bf16"))
        if shard.model.mla is None:
            return form.at(self.gpu, shard.n_heads, shard.n_kv_heads, shard.model.head_dim, shard.kv_dtype)
        if shard.model.indexer is not None:
            return BestPrefill(self._sparse(shard)[0], self.gpu, SparseSizes.of(shard), 0.0, None)
        return form.at(self.gpu, shard.n_heads, 1, shard.key_size, shard.kv_dtype)  # a vector that all heads share

    def decode_attention(self, shard: Shard, n: Any) -> tuple[Any, Any]:
        """Return a line in the keys for every number of requests."""
        if shard.model.mla is not None:
            if shard.model.indexer is None:
                return self._latent_decode(shard, shard.expansion, n)
            best, sizes, of_keys = self._sparse(shard)[1], SparseSizes.of(shard), SparseSizes.of(attending(shard))
            intercept_s, slope_s = best.best_line(self.gpu, of_keys, shard.kv_dtype, n + (n == 0))
            all_s = best.expansion_s(self.gpu, shard.dense_dtype, sizes.n_weights, n)
            return intercept_s + all_s - self.projections_s(shard, n), slope_s
        form = cast(DecodeAttention, self.calibration.form("decode_attention", shard.kv_dtype, "bf16"))
        heads = attending(shard)
        return form.line(self.gpu, heads.n_heads, heads.n_kv_heads, shard.model.head_dim, shard.kv_dtype, n)

    def scored_s(self, shard: Shard, n: Any) -> Any:
        """Time the indexer of one layer per key of n decoding requests."""
        return self._sparse(shard)[1].scored_s(self.gpu, SparseSizes.of(shard), n + (n == 0))

    def states_s(self, shard: Shard, n: Any) -> Any:
        """Time the convolution and update of n decoding requests' states; where not timed, the states' bytes."""
        if not shard.model.has_timed_states:
            return self.elementwise_s(2 * shard.state_bytes * n, 1)
        form = cast(StateDecode, first_form(self.calibration, {"gdn_decode": ["bf16"]}))
        return form.seconds(self.gpu, shard.state_bytes, n)

    def prompt_states(self, shard: Shard) -> PrefillAttentionCost | None:
        """Return the convolution and update of one layer's states by prompts; None where not timed."""
        if shard.state is None or not shard.model.has_timed_states:
            return None
        form = cast(StatePrefill, first_form(self.calibration, {"gdn_prefill": ["bf16"]}))
        return PromptStates(form, self.gpu, shard.state.n_values)

    def _sparse(self, shard: Shard) -> tuple[SparsePrefillModule, SparseDecodeModule]:
        """Return the forms of both phases."""
        modules = _modules(shard)
        ops = ("sparse_prefill_module", "sparse_decode_module")
        prefill, decode = (first_form(self.calibration, {op: modules}) for op in ops)
        return cast(SparsePrefillModule, prefill), cast(SparseDecodeModule, decode)

    def _collective_s(self, op: str, n_gpus: int, n_bytes: Any) -> Any:
        if n_gpus == 1:
            return 0.0 * n_bytes
        named = {int(key): form for (name, key), form in self.calibration.forms.items() if name == op}
        if not named:
            self.calibration.form(op, f"{n_gpus} GPUs")  # raises
        forms = cast(dict[int, Collective], named)
        form, gpu = for_group(forms, n_gpus), replace(self.gpu, link_bytes_per_s=self.gpu.group_bytes_per_s(n_gpus))
        if op == "all_reduce" and gpu.link_topology != "nvls" and self._timed_topology == "nvls":
            form = replace(form, link_share=min(form.link_share, forms[min(forms)].link_share))
        return self._waits * gpu.n_crossings * form.seconds(gpu, n_gpus, n_bytes)

    @cached_property
    def _timed_topology(self) -> str:
        """What connected the GPUs that were timed. Sums in their switch let larger groups use a larger share of links,
        which no other topology does."""
        name = self.calibration.gpu
        return catalog.load_gpu(name).link_topology if name in catalog.names("gpus") else self.gpu.link_topology

    def _latent_decode(self, shard: Shard, expansion: tuple[int, int] | None, n: Any) -> tuple[Any, Any]:
        mla, form = shard.model.mla, cast(MlaDecode, self._mla("decode", shard))
        assert mla is not None, "attention is latent"
        n_heads = attending(shard).n_heads * (mla.cached_size + mla.kv_lora_rank) / KEY_WIDTH
        intercept_s, slope_s = form.line(self.gpu, n_heads, shard.kv_dtype, n + (n == 0), mla.cached_size)
        if expansion is None:
            return intercept_s, slope_s
        n_in, n_out = expansion
        if isinstance(form, MlaDecodeModule):
            return intercept_s + form.expansion_s(self.gpu, shard.dense_dtype, n_in * n_out, n), slope_s
        return intercept_s + self.matmul_s(shard.dense_dtype, n, n_out, n_in), slope_s

    def _mla(self, phase: str, shard: Shard) -> Form:
        """Return the form of the whole module where it was timed, as it includes work between matrices."""
        modules, caches = _modules(shard), (shard.kv_dtype, "bf16")
        return first_form(self.calibration, {f"mla_{phase}_module": modules, f"mla_{phase}": caches})


def _modules(shard: Shard) -> list[str]:
    """List the dtypes of weights and cache of modules to look for."""
    weights = (*measured_as(shard.dense_dtype), "fp8_block")
    return [f"{dtype}/{cache}" for cache in (shard.kv_dtype, "bf16") for dtype in weights]
