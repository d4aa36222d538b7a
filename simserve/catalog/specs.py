"""What exists in the world, as frozen values: ModelSpec, GpuSpec, EngineSpec."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

BYTES_PER_VALUE: Mapping[str, float] = MappingProxyType(
    {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5}
)
"""Bytes a number takes, by dtype, without the scales of quantized blocks (see STORED_BYTES)."""

SCALE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "fp8_block": 4 / (128 * 128),  # a 32-bit scale for 128 x 128 weights (DeepSeek-V3, section 3.3)
        "int4": 2 / 128,  # a 16-bit scale for a group of 128 (GPTQ, AWQ, compressed-tensors)
        "mxfp4": 1 / 32,  # an 8-bit exponent for a block of 32 (OCP Microscaling 1.0, section 5.2)
    }
)
"""Bytes of scales for each weight; one scale a channel or tensor (fp8, int8) is next to nothing."""

STORED_BYTES: Mapping[str, float] = MappingProxyType(
    {dtype: n_bytes + SCALE_BYTES.get(dtype, 0.0) for dtype, n_bytes in BYTES_PER_VALUE.items()}
)
"""Bytes a weight takes in memory, its share of the scales included."""

SHORT_WINDOW = 256
"""Tokens of a window that may count as full for every request: what that is too much is next to nothing. Requests
beyond a longer one are not there yet."""


@dataclass(frozen=True)
class Experts:
    """The experts that take the MLP's place in the layers of a mixture-of-experts model.

    Invariant: 1 <= top_k <= n_experts.
    """

    n_experts: int
    """Routed ones, in each layer that has any."""
    top_k: int
    """Routed experts that a token goes through."""
    expert_size: int
    """Inner size of one."""
    n_dense_layers: int = 0
    """Layers with an MLP of intermediate_size instead."""
    n_shared_experts: int = 0
    """Experts that every token goes through."""
    shared_size: int = 0
    """Inner size of one shared expert."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: keys and values come from one short vector a token (DeepSeek-V2, section 2.1)."""

    kv_lora_rank: int
    """Of the latent vector, which is what the cache holds."""
    qk_nope_head_dim: int
    """A head's part of a key that is not rotated."""
    qk_rope_head_dim: int
    """The rotated part, one for all heads; cached beside the latent vector."""
    v_head_dim: int
    q_lora_rank: int | None = None
    """Of the queries' own latent vector; None: queries are projected at once."""

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cached_size(self) -> int:
        """Values a token takes in the cache, in one layer, whatever the heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a transformer: dense or with experts, with grouped queries or latent attention.

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
    """Tokens that a windowed layer attends to; None: all layers attend to everything."""
    n_window_layers: int = 0
    experts: Experts | None = None
    mla: Mla | None = None
    weight_dtype: str | None = None
    """What the published checkpoint is quantized to; None: it is in 16 bits."""
    only_experts_quantized: bool = False
    """Attention and shared experts stay in 16 bits, whatever the experts are stored in."""
    source: str = ""

    @property
    def windowed(self) -> bool:
        """Some layers attend to the last `sliding_window` tokens only."""
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
        """For requests of at most so many tokens, which may never fill a window."""
        fills = self.sliding_window is not None and self.sliding_window < n_tokens
        return self if fills or not self.windowed else replace(self, n_window_layers=0)


@dataclass(frozen=True)
class GpuSpec:
    """What a GPU can do, from its data sheet: dense peaks, never the sparse ones."""

    name: str
    flop_per_s: Mapping[str, float]
    """Dense tensor peak by dtype: bf16, fp16, and where the card has them fp8, int8, fp4."""
    hbm_bytes: float
    """What the driver reports as total memory."""
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    """To the other GPUs of the node, one direction."""
    link_latency_s: float
    nic_bytes_per_s: float
    """To GPUs of other nodes, one direction."""
    pcie_bytes_per_s: float
    """To the memory of the host, one direction."""
    n_sms: int
    l2_bytes: float
    tdp_w: float
    price_per_hour_usd: float
    gpus_per_node: int = 8
    kernels_like: str | None = None
    """The GPU whose calibration to scale where this one has none of its own; None: it has, or the default does."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def peak_flop_per_s(self, weight_dtype: str) -> float:
        """The dense peak that matrices of that dtype run at.

        fp8 runs at the card's fp8 peak where it has one; int8, int4 and mxfp4 are weight-only: they compute in 16 bits.
        """
        dtype = {"fp8_block": "fp8", "int8": "bf16", "int4": "bf16", "mxfp4": "bf16"}.get(weight_dtype, weight_dtype)
        return self.flop_per_s.get(dtype, self.flop_per_s["bf16"])


@dataclass(frozen=True)
class EngineSpec:
    """How a serving engine behaves: scheduler and knobs, efficiencies of its kernels, host time, memory."""

    name: str
    version: str
    """Whose knobs and host constants these are."""
    scheduler: Mapping[str, Any]
    """The engine's own policy, `{kind: ..., its arguments...}`."""
    scheduler_by_gpu_bytes: Mapping[str, Any]
    """`{at_least_bytes: ..., arguments: {...}, except: [gpu names]}`: arguments that big cards get instead."""
    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    """Time from one kernel to the next that no roof covers."""
    step_host_s: float
    request_host_s: float
    """Host time a step takes for each request in it."""
    gap_s: float
    """From one small kernel to the next, where kernels are calibrated."""
    receive_s: float
    """Front end: taking in a request, one at a time (HTTP, parsing, the chat template)."""
    receive_token_s: float
    """Front end: tokenizing, per token of the prompt."""
    respond_s: float
    """Front end: from the end of a step until the client has its token."""
    async_scheduling: bool
    """A step is planned while the one before it runs."""
    gpu_memory_utilization: float
    block_size: int
    reserve_bytes: float
    """What libraries hold of the budget, per GPU."""
    group_reserve_bytes: float = 0.0
    """What they hold besides where GPUs work together over fast links: buffers of NCCL and all-reduce."""
    logit_bytes: float = 4.0
    """Memory for each logit while the seats of a step are sampled."""
    profiles_activations: bool = True
    """The activation peak is taken from the budget; false: it comes from the share outside (SGLang)."""
    shares_free: bool = False
    """The KV cache gets its share of what weights and activations leave, rather than what they leave of a share."""
    prefix_caching: bool = False
    """Blocks of prompts and answers are kept for those that begin alike."""
    busy_compute_frac: float = 1.0
    """Share of the compute speed of a kernel timed alone that a server keeps which computes without a pause."""
    sources: Mapping[str, str] = field(default_factory=dict)
