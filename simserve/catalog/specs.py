"""Catalog entries as frozen values: ModelSpec, GpuSpec, EngineSpec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from simserve.errors import CatalogError

BYTES_PER_VALUE: Mapping[str, float] = MappingProxyType(
    {
        "bf16": 2.0,
        "fp16": 2.0,
        "fp8": 1.0,
        "fp8_block": 1.0,
        "w8a8": 1.0,
        "int8": 1.0,
        "int4": 0.5,
        "mxfp4": 0.5,
        "mxfp4_mxfp8": 0.5,
        "nvfp4": 0.5,
    }
)
"""Bytes per number by dtype, without the scales of quantized blocks (see STORED_BYTES). mxfp4_mxfp8 is mxfp4 as kernels
multiply it that quantize activations to mxfp8; no scenario names it."""

SCALE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "fp8_block": 4 / (128 * 128),  # a 32-bit scale for 128 x 128 weights (DeepSeek-V3, section 3.3)
        "int4": 2 / 128,  # a 16-bit scale for a group of 128 (GPTQ, AWQ, compressed-tensors)
        "mxfp4": 1 / 32,  # an 8-bit exponent for a block of 32 (OCP Microscaling 1.0, section 5.2)
        "nvfp4": 1 / 16,  # an 8-bit scale for a block of 16 (NVIDIA, "Introducing NVFP4", 2025)
    }
)
"""Bytes of scales per weight; one scale per channel or tensor (fp8, w8a8, int8) is negligible."""

STORED_BYTES: Mapping[str, float] = MappingProxyType(
    {dtype: n_bytes + SCALE_BYTES.get(dtype, 0.0) for dtype, n_bytes in BYTES_PER_VALUE.items()}
)
"""Bytes per weight in memory, including its share of the scales."""

UNIFORM_ROUTING = "uniform"
"""Expert routing where none was measured: each token draws its experts at random."""

COMPUTES_IN: Mapping[str, str] = MappingProxyType(
    {"fp8": "fp8", "fp8_block": "fp8", "mxfp4_mxfp8": "fp8", "w8a8": "int8", "nvfp4": "fp4", "fp16": "fp16"}
)
"""The rate of a card that multiplies weights of a dtype; all others are unpacked to 16 bits (weight-only)."""

NEEDS_RATE: Mapping[str, str] = MappingProxyType({"w8a8": "int8", "nvfp4": "mxfp4"})
"""Dtypes of weights and activations that only run on cards with their rate, each with a weight-only one of its size."""

GroupKind = Literal["full", "windowed", "chunked", "latent", "state", "none"]


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind, spread evenly over the model: what each keeps of a request, and what a token attends.

    full: all keys; windowed: the last `window`; chunked: those of the same `window` tokens (Llama 4); latent: one
    vector per token (MLA); state: a state of fixed size per request (linear attention); none: nothing.

    Invariant: windowed and chunked have a window, others have none, but for states in a `KvLayout` that keeps them.
    """

    kind: GroupKind
    n_layers: int
    window: int | None = None
    """Tokens of a window or chunk."""

    @property
    def attends(self) -> bool:
        """Whether a layer attends cached tokens."""
        return self.kind not in ("state", "none")

    def keys(self, n_context: int) -> int:
        """Return the keys that the last of n_context tokens attends in a layer."""
        return n_context - self.first_kept(n_context - 1) if self.attends else 0

    def first_kept(self, n_tokens: Any) -> Any:
        """Return the first token that the one after n_tokens attends: those before it are kept no longer.

        A number, or an array of them.
        """
        if self.window is None:
            return 0 * n_tokens
        if self.kind == "chunked":
            return n_tokens // self.window * self.window
        return (n_tokens >= self.window) * (n_tokens - self.window + 1)

    def reads(self, first: int, end: int) -> tuple[int, int]:
        """Return the query-key pairs of the tokens [first, end) in a layer, and the keys that they attend."""
        return self._pairs(end) - self._pairs(first), end - self.first_kept(first)

    def reads_of(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the sums of `reads` of several prompts' chunks [first, end)."""
        reads = [self.reads(first, end) for first, end in chunks]
        return sum(pairs for pairs, _ in reads), sum(keys for _, keys in reads)

    def _pairs(self, n_tokens: int) -> int:
        """Return the query-key pairs of the first n_tokens."""
        most = n_tokens if self.window is None else self.window
        n_whole, rest = divmod(n_tokens, most) if n_tokens else (0, 0)
        if self.kind == "chunked":
            return n_whole * (most * (most + 1) // 2) + rest * (rest + 1) // 2
        n_rising = min(n_tokens, most)
        return n_rising * (n_rising + 1) // 2 + (n_tokens - n_rising) * most


@dataclass(frozen=True)
class Experts:
    """The experts that replace the MLP in layers of a mixture-of-experts model.

    Invariant: 1 <= top_k <= n_experts * top_groups / n_groups; 1 <= top_groups <= n_groups, which divides n_experts.
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
    n_groups: int = 1
    """Groups of experts; a token chooses among the experts of its best `top_groups` groups (DeepSeek-V3)."""
    top_groups: int = 1
    routing: str = UNIFORM_ROUTING
    """How tokens choose experts, unless a pool says otherwise; see `forms.moe.load_of`."""


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
class Indexer:
    """The part of sparse attention that scores all keys, of which the best are attended (DeepSeek-V3.2, section 2.1).

    It has one key per token in fp8, whole on every GPU.
    """

    n_heads: int
    head_dim: int
    top_k: int
    """Attended keys per token."""

    @property
    def bytes_per_token(self) -> float:
        """Bytes of a token's key in one layer, with a 32-bit scale for 128 values (vLLM, deepseek_v2.py)."""
        return self.head_dim * (1 + 4 / 128)

    @property
    def flop_per_pair(self) -> int:
        """FLOP of a score."""
        return 2 * self.n_heads * self.head_dim


Matrices = Mapping[str, tuple[int, int]]
"""(rows in, columns out) by name."""


@dataclass(frozen=True)
class LinearAttention:
    """The layers with a state: a gated delta net (Yang et al. 2025, section 3), as Qwen3-Next has it.

    Invariant: n_value_heads is a multiple of n_key_heads.
    """

    n_key_heads: int
    key_head_dim: int
    n_value_heads: int
    value_head_dim: int
    conv_size: int
    """Width of the convolution over queries, keys and values; its last inputs belong to the state."""
    state_value_bytes: int = 2
    """Bytes of a value of the state's matrices; inputs of the convolution take 16 bits."""

    @property
    def key_size(self) -> int:
        """Width of all keys; queries have the same."""
        return self.n_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Width of all values; gates have the same."""
        return self.n_value_heads * self.value_head_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a matrix per value head, and inputs of the convolution."""
        inputs = (self.conv_size - 1) * (2 * self.key_size + self.value_size)
        return self.n_value_heads * self.key_head_dim * self.value_head_dim * self.state_value_bytes + 2 * inputs

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs."""
        return 2 * (self.key_size + self.value_size) // tensor

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: queries, keys, values and output gates; two gates of the
        state per value head; output."""
        return {
            "qkvz": (hidden_size, self.mixed_size(tensor)),
            "gates": (hidden_size, 2 * self.n_value_heads // tensor),
            "output": (self.value_size // tensor, hidden_size),
        }


@dataclass(frozen=True)
class Mamba2:
    """The layers with a state: selective state spaces (Dao and Gu, ICML '24, section 7), as in Nemotron-H.

    Invariant: n_heads is a multiple of n_groups.
    """

    n_heads: int
    head_dim: int
    state_dim: int
    """Values of the state for each value of a head."""
    n_groups: int
    """Groups of heads with inputs and outputs of the state in common."""
    conv_size: int
    """Width of the convolution over inputs; its last inputs belong to the state."""
    state_value_bytes: int = 2
    """Bytes of a value of the state's matrices; inputs of the convolution take 16 bits."""

    @property
    def inner_size(self) -> int:
        """Width of all heads."""
        return self.n_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of a request's state in one layer: a matrix per head, and inputs of the convolution."""
        inputs = (self.conv_size - 1) * (self.inner_size + 2 * self.n_groups * self.state_dim)
        return self.inner_size * self.state_dim * self.state_value_bytes + 2 * inputs

    def mixed_size(self, tensor: int) -> int:
        """Return the values of a token that are convolved and gated, on one of `tensor` GPUs, which have whole groups
        (vLLM, mamba_mixer2.py)."""
        return 2 * self.inner_size // tensor + 2 * max(1, self.n_groups // tensor) * self.state_dim

    def matrices(self, hidden_size: int, tensor: int) -> Matrices:
        """Return the projections on one of `tensor` GPUs: gates, inputs, and a step size per head; output."""
        return {
            "input": (hidden_size, self.mixed_size(tensor) + self.n_heads // tensor),
            "output": (self.inner_size // tensor, hidden_size),
        }


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a transformer: dense or MoE, its layers in groups of one kind of attention.

    Invariant: n_heads is a multiple of n_kv_heads; the groups have n_layers layers; those of kind latent have mla,
    indexer needs mla;
    those of kind state have linear; n_moe_layers >= 1 and n_bare_layers == 0 with experts; with mla, n_kv_heads and
    head_dim mean nothing.
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
    gated_attention: bool = False
    """Whether queries come with a gate of the same width for the output of attention (Qwen3-Next)."""
    groups: tuple[LayerGroup, ...] = ()
    """The layers by kind; empty stands for one group of all, latent with mla and full without."""
    experts: Experts | None = None
    mla: Mla | None = None
    indexer: Indexer | None = None
    """None: all keys are attended, or those of a window."""
    linear: LinearAttention | Mamba2 | None = None
    n_bare_layers: int = 0
    """Layers without an MLP or experts after their attention or state (Nemotron-H)."""
    n_mtp_layers: int = 0
    """Layers that predict further tokens (MTP), as the checkpoint has them."""
    weight_dtype: str | None = None
    """Quantized dtype of the published checkpoint; None: 16 bits."""
    only_experts_quantized: bool = False
    """Whether attention and shared experts stay in 16 bits, whatever the experts are stored in."""
    source: str = ""

    def __post_init__(self) -> None:
        if not self.groups:
            object.__setattr__(self, "groups", (LayerGroup("latent" if self.mla else "full", self.n_layers),))
        n_grouped = sum(group.n_layers for group in self.groups)
        if n_grouped != self.n_layers:
            raise CatalogError(f"groups must have the {self.n_layers} layers of {self.name}, got {n_grouped}")

    @property
    def windowed(self) -> bool:
        """Whether some layers attend only the last tokens, or those of a chunk."""
        return self.longest_window > 0

    @property
    def longest_window(self) -> int:
        """Tokens of the longest window or chunk; 0 without any."""
        return max(group.window or 0 for group in self.groups)

    @property
    def n_attention_layers(self) -> int:
        """Layers that attend cached tokens."""
        return sum(group.n_layers for group in self.groups if group.attends)

    @property
    def n_whole_layers(self) -> int:
        """Layers that attend the whole context."""
        return sum(group.n_layers for group in self.groups if group.attends and group.window is None)

    @property
    def n_state_layers(self) -> int:
        """Layers with a state of fixed size per request."""
        return sum(group.n_layers for group in self.groups if group.kind == "state")

    @property
    def n_dense_layers(self) -> int:
        """Layers with a plain MLP."""
        return self.n_layers - self.n_bare_layers if self.experts is None else self.experts.n_dense_layers

    @property
    def n_moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.experts is None else self.n_layers - self.n_dense_layers

    def within(self, n_tokens: int) -> "ModelSpec":
        """Return the model for requests of at most n_tokens: windows that they never fill attend all keys."""
        never_filled = [group for group in self.groups if group.window is not None and group.window >= n_tokens]
        if not never_filled:
            return self
        n_full = sum(group.n_layers for group in self.groups if group.kind == "full" or group in never_filled)
        others = (group for group in self.groups if group.kind != "full" and group not in never_filled)
        return replace(self, groups=(LayerGroup("full", n_full), *others))


LinkTopology = Literal["nvls", "switch", "mesh", "host"]
"""nvls: a switch that also adds up; switch: every pair at the full rate; mesh: a link to each other GPU, which has its
share of the rate; host: no peer access, so that bytes cross the bus to the memory of the host and back."""


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
    link_topology: LinkTopology = "switch"
    """What connects the GPUs of a node."""
    kernels_like: str | None = None
    """The GPU with the calibration to scale for this one; None: it has its own, or uses the default."""
    flop_share: float | None = None
    """Share of the 16-bit peak that large products reach on this card; None: that of the scaled calibration."""
    byte_share: float | None = None
    """Share of the bandwidth that reads reach; None: that of the scaled calibration."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def group_bytes_per_s(self, n_gpus: int) -> float:
        """Return a GPU's bandwidth to the others of n_gpus in a node, one direction."""
        if self.link_topology != "mesh":
            return self.link_bytes_per_s
        return self.link_bytes_per_s * min(1.0, (n_gpus - 1) / (self.gpus_per_node - 1))

    @property
    def n_crossings(self) -> int:
        """Links that bytes between two GPUs of a node cross."""
        return 2 if self.link_topology == "host" else 1

    def peak_flop_per_s(self, weight_dtype: str) -> float:
        """Return the dense peak for matrices of that dtype.

        fp8 is weight-only on cards without its rate; w8a8 and nvfp4 have no such kernels (see NEEDS_RATE).
        """
        return self.flop_per_s.get(COMPUTES_IN.get(weight_dtype, "bf16"), self.flop_per_s["bf16"])

    def multiplies(self, weight_dtype: str) -> bool:
        """Tell whether the card has the rate of that dtype, so that activations are quantized to it too."""
        return COMPUTES_IN.get(weight_dtype, "bf16") in self.flop_per_s


@dataclass(frozen=True)
class EngineSpec:
    """A serving engine: scheduler and defaults, efficiencies of its kernels, host time, memory."""

    name: str
    version: str
    """The version that these defaults and host constants belong to."""
    constants_of: str = field(default="", kw_only=True)
    """The version in the catalog that they are of: this one, the nearest older one, or the oldest."""
    fitted_to: str = field(default="", kw_only=True)
    """The oldest version in the catalog: host constants are fitted to its servers, and later ones change some."""
    scheduler: Mapping[str, Any]
    """The engine's default policy, `{kind: ..., its arguments...}`."""
    scheduler_by_gpu_bytes: Sequence[Mapping[str, Any]]
    """Different arguments for larger GPUs, smallest first: `{at_least_bytes: ..., arguments: {...}, except: [gpu
    names]}`."""
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
    block_size: int
    reserve_bytes: float
    """Memory of libraries within the budget, per GPU."""
    group_reserve_bytes: float = 0.0
    """Further memory where GPUs work together over fast links: buffers of NCCL and all-reduce."""
    logit_bytes: float = 4.0
    """Memory per logit while a step samples."""
    profiles_activations: bool = True
    """Whether the activation peak is taken from the budget; false: from the share outside (SGLang)."""
    samples_slots: bool = False
    """Whether this peak has logits of all slots; false: of few prompts that fill a step."""
    keeps_workspace: bool = False
    """Whether the buffers of experts stay allocated while it samples."""
    gpu_memory_utilization: float | None = None
    """Share of memory that it takes; None: what `kept_free_mib` leaves."""
    share_of: Literal["total", "before_weights", "after_weights"] = "total"
    """What it takes that share of: all memory; what is free before it loads weights; what is left for the KV cache."""
    kept_free_mib: Mapping[str, Any] | None = None
    """Memory that stays free where no share is given (`cost.kept_free`)."""
    prefix_caching: bool = False
    """Whether KV blocks of shared prefixes are reused."""
    decode_prefix_caching: bool = False
    """Whether decode pools reuse them, too."""
    exposed_step_s: float | None = None
    """Host time of a step that the GPU waits for although steps are planned ahead; step_host_s and request_host_s then
    hide behind the kernels of the step before. None: the GPU waits for those two."""
    async_excludes: Sequence[str] = ()
    """What turns async_scheduling off by default: pipeline, and kinds of speculation."""
    pads_to_graphs: bool = False
    """Whether small steps compute as many tokens as the next captured CUDA graph (see `padded`)."""
    shared_beside_tokens: int | None = None
    """Most tokens of a step that computes shared experts beside routed ones; None: no step does."""
    eager_kernel_s: float | None = None
    """Host time to launch a kernel of a step with prompts (`cost.launches`). None: compiled code launches faster than
    kernels run; 0: CUDA graphs hold them. Steps that propose tokens have none."""
    moe_backend: str | None = None
    """Kernels of experts: marlin, in 16 bits from weights of four; None: those timed for a dtype."""
    quantizes_before: Sequence[str] = ()
    """Dtypes of weights with activations that the kernel before a product quantizes; others have a kernel for it."""
    busy_compute_frac: float = 1.0
    """Share of the compute speed of a kernel timed alone that a continuously busy server reaches."""
    sources: Mapping[str, str] = field(default_factory=dict)
