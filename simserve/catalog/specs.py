"""Catalog entries as frozen values: ModelSpec, GpuSpec, EngineSpec."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

BYTES_PER_VALUE: Mapping[str, float] = MappingProxyType(
    {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5}
)
"""Bytes per number by dtype, without the scales of quantized blocks (see STORED_BYTES)."""

SCALE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "fp8_block": 4 / (128 * 128),  # a 32-bit scale for 128 x 128 weights (DeepSeek-V3, section 3.3)
        "int4": 2 / 128,  # a 16-bit scale for a group of 128 (GPTQ, AWQ, compressed-tensors)
        "mxfp4": 1 / 32,  # an 8-bit exponent for a block of 32 (OCP Microscaling 1.0, section 5.2)
    }
)
"""Bytes of scales per weight; one scale per channel or tensor (fp8, int8) is negligible."""

STORED_BYTES: Mapping[str, float] = MappingProxyType(
    {dtype: n_bytes + SCALE_BYTES.get(dtype, 0.0) for dtype, n_bytes in BYTES_PER_VALUE.items()}
)
"""Bytes per weight in memory, including its share of the scales."""

SHORT_WINDOW = 256
"""Window that may count as full for every request with a negligible error. Requests beyond a longer window are not
supported yet."""


@dataclass(frozen=True)
class Experts:
    """The experts that replace the MLP in layers of a mixture-of-experts model.

    Invariant: 1 <= top_k <= n_experts.
    """

    n_experts: int
    """Routed experts per MoE layer."""
    top_k: int
    """Routed experts per token."""
    expert_size: int
    """Inner size of one expert."""
    n_dense_layers: int = 0
    """Layers with an MLP of intermediate_size instead."""
    n_shared_experts: int = 0
    """Experts that every token uses."""
    shared_size: int = 0
    """Inner size of one shared expert."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: keys and values come from one short vector per token (DeepSeek-V2, section 2.1)."""

    kv_lora_rank: int
    """Width of the latent vector, which the cache holds."""
    qk_nope_head_dim: int
    """Width of the unrotated part of a head's key."""
    qk_rope_head_dim: int
    """Width of the rotated part, shared by all heads; cached with the latent vector."""
    v_head_dim: int
    q_lora_rank: int | None = None
    """Width of the queries' latent vector; None: queries are projected directly."""

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cached_size(self) -> int:
        """Cached values per token and layer, whatever the heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a transformer: dense or MoE, with grouped-query or latent attention.

    Invariant: n_heads is a multiple of n_kv_heads; n_window_layers <= n_layers, and is 0 without a window;
    n_moe_layers >= 1 with experts; with mla, n_kv_heads and head_dim mean nothing.
    """

    name: str
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    """Three MLP matrices (gate, up, down) rather than two."""
    sliding_window: int | None = None
    """Tokens that a windowed layer attends; None: all layers attend the whole context."""
    n_window_layers: int = 0
    experts: Experts | None = None
    mla: Mla | None = None
    weight_dtype: str | None = None
    """Quantized dtype of the published checkpoint; None: 16 bits."""
    only_experts_quantized: bool = False
    """Whether attention and shared experts stay in 16 bits, whatever the experts are stored in."""
    source: str = ""

    @property
    def windowed(self) -> bool:
        """Whether some layers attend only the last `sliding_window` tokens."""
        return self.sliding_window is not None and self.n_window_layers > 0

    @property
    def n_dense_layers(self) -> int:
        """Layers with a plain MLP."""
        return self.n_layers if self.experts is None else self.experts.n_dense_layers

    @property
    def n_moe_layers(self) -> int:
        """Layers with experts."""
        return self.n_layers - self.n_dense_layers

    def within(self, n_tokens: int) -> "ModelSpec":
        """Return the model for requests of at most n_tokens, which may never fill a window."""
        fills = self.sliding_window is not None and self.sliding_window < n_tokens
        return self if fills or not self.windowed else replace(self, n_window_layers=0)


@dataclass(frozen=True)
class GpuSpec:
    """The capabilities of a GPU by its data sheet: dense peaks, never sparse ones."""

    name: str
    flop_per_s: Mapping[str, float]
    """Dense tensor peak by dtype: bf16, fp16, and where the card has them fp8, int8, fp4."""
    hbm_bytes: float
    """Total memory as the driver reports it."""
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    """Bandwidth to the other GPUs of the node, one direction."""
    link_latency_s: float
    nic_bytes_per_s: float
    """Bandwidth to GPUs of other nodes, one direction."""
    pcie_bytes_per_s: float
    """Bandwidth to the memory of the host, one direction."""
    n_sms: int
    l2_bytes: float
    tdp_w: float
    price_per_hour_usd: float
    gpus_per_node: int = 8
    kernels_like: str | None = None
    """The GPU with the calibration to scale for this one; None: it has its own, or uses the default."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def peak_flop_per_s(self, weight_dtype: str) -> float:
        """Return the dense peak for matrices of that dtype.

        fp8 runs at the card's fp8 peak where it has one; int8, int4 and mxfp4 are weight-only and compute in 16 bits.
        """
        dtype = {"fp8_block": "fp8", "int8": "bf16", "int4": "bf16", "mxfp4": "bf16"}.get(weight_dtype, weight_dtype)
        return self.flop_per_s.get(dtype, self.flop_per_s["bf16"])


@dataclass(frozen=True)
class EngineSpec:
    """A serving engine: scheduler and defaults, efficiencies of its kernels, host time, memory."""

    name: str
    version: str
    """The version that these defaults and host constants belong to."""
    scheduler: Mapping[str, Any]
    """The engine's default policy, `{kind: ..., its arguments...}`."""
    scheduler_by_gpu_bytes: Mapping[str, Any]
    """`{at_least_bytes: ..., arguments: {...}, except: [gpu names]}`: different arguments for large GPUs."""
    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    """Time between kernels that no roof covers."""
    step_host_s: float
    request_host_s: float
    """Host time of a step per request in it."""
    gap_s: float
    """Time between small kernels, where kernels are calibrated."""
    receive_s: float
    """Front end: time to accept a request, one at a time (HTTP, parsing, the chat template)."""
    receive_token_s: float
    """Front end: tokenization time per prompt token."""
    respond_s: float
    """Front end: time from the end of a step until the client has its token."""
    async_scheduling: bool
    """Whether a step is planned while the one before it runs."""
    gpu_memory_utilization: float
    block_size: int
    reserve_bytes: float
    """Memory of libraries within the budget, per GPU."""
    group_reserve_bytes: float = 0.0
    """Further memory where GPUs work together over fast links: buffers of NCCL and all-reduce."""
    logit_bytes: float = 4.0
    """Memory per logit while a step samples."""
    profiles_activations: bool = True
    """Whether the activation peak is taken from the budget; false: from the share outside (SGLang)."""
    shares_free: bool = False
    """Whether the KV cache gets its share of what weights and activations leave, not the rest of a share."""
    prefix_caching: bool = False
    """Whether KV blocks of shared prefixes are reused."""
    busy_compute_frac: float = 1.0
    """Share of the compute speed of a kernel timed alone that a continuously busy server reaches."""
    sources: Mapping[str, str] = field(default_factory=dict)
