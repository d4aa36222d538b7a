"""EngineSpec: a serving engine of the catalog; Engine: the section of a scenario that names one and its changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from simserve.catalog.types import Count, HostTime, NotNegative, Section, Share, with_keys

CONSTANTS = (
    "compute_efficiency",
    "memory_efficiency",
    "launch_s",
    "step_host_s",
    "request_host_s",
    "busy_compute_frac",
    "busy_fp8_frac",
    "wait_frac",
    "gap_s",
    "receive_s",
    "receive_token_s",
    "respond_s",
    "hand_over_s",
    "exposed_step_s",
    "eager_kernel_s",
    "enforce_eager",
    "mask_token_s",
    "enable_dbo",
    "dbo_decode_token_threshold",
    "dbo_prefill_token_threshold",
    "async_scheduling",
    "moe_backend",
    "reserve_bytes",
)
"""Constants of an engine that a scenario may replace, in the order of its section."""


@dataclass(frozen=True)
class EngineSpec:
    """A serving engine: scheduler and defaults, efficiencies of its kernels, host time, memory."""

    name: str
    """Name in the catalog."""
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
    compute_efficiency: Share
    """[share] Share of the peak compute speed that kernels of the plain roofline reach; setting it selects that
    roofline, without calibration."""
    memory_efficiency: Share
    """[share] Share of the memory bandwidth that kernels of the plain roofline reach; setting it selects that roofline,
    without calibration."""
    launch_s: HostTime
    """[s] Time between kernels of the plain roofline that no roof covers; setting it selects that roofline, without
    calibration."""
    step_host_s: HostTime
    """[s] Host time of a step."""
    request_host_s: HostTime
    """[s] Host time of a step per request in it."""
    gap_s: HostTime
    """[s] Time between small kernels, where kernels are calibrated."""
    receive_s: HostTime
    """[s] Front end: time to accept a request, one at a time (HTTP, parsing, the chat template)."""
    receive_token_s: HostTime
    """[s] Front end: tokenization time per prompt token."""
    respond_s: HostTime
    """[s] Front end: time from the end of a step until the client has its token."""
    hand_over_s: HostTime = field(default=0.0, kw_only=True)
    """[s] Time before a disaggregated prefill until sender and receiver, which poll, know of each other."""
    async_scheduling: bool
    """Whether a step is planned while the one before it runs (vLLM `--async-scheduling`, off by SGLang
    `--disable-overlap-schedule` and TensorRT-LLM `disable_overlap_scheduler`)."""
    block_size: int
    reserve_bytes: NotNegative
    """[bytes] Memory of libraries within the budget, per GPU."""
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
    exposed_step_s: HostTime | None = None  # None: the GPU waits for all host time
    """[s] Host time of a step that the GPU waits for although steps are planned ahead; step_host_s and request_host_s
    then hide behind the kernels of the step before."""
    async_excludes: Sequence[str] = ()
    """What turns async_scheduling off by default: pipeline, and kinds of speculation."""
    pads_to_graphs: bool = False
    """Whether small steps compute as many tokens as the next captured CUDA graph (see `padded`)."""
    shared_beside_tokens: int | None = None
    """Most tokens of a step that computes shared experts beside routed ones; None: no step does."""
    eager_kernel_s: HostTime | None = None  # None: compiled code launches faster than kernels run
    """[s] Host time to launch a kernel of a step with prompts that no CUDA graph holds; with enforce_eager, of any
    step."""
    enforce_eager: bool | None = None  # None: false
    """Whether no step runs in a CUDA graph, so that none is shorter than the launches of its kernels (vLLM
    `--enforce-eager`, SGLang `--disable-cuda-graph`, TensorRT-LLM without `cuda_graph_config`)."""
    mask_token_s: HostTime = 0.0
    """[s] Host time of a step per sampled token with a mask of the tokens that its grammar allows."""
    enable_dbo: bool | None = None  # None: false
    """Whether ranks that share experts split a step in two, so that each half computes while the other exchanges its
    tokens (vLLM `--enable-dbo`, SGLang `--enable-two-batch-overlap`)."""
    dbo_decode_token_threshold: Count | None = None  # None: 2
    """Least tokens of a rank without prompts from which on it splits a step, if all ranks do."""
    dbo_prefill_token_threshold: Count | None = None  # None: 2
    """Least tokens of a rank with prompts from which on it splits a step, if all ranks do."""
    captures_prompts: bool | None = None  # None: false
    """Whether graphs hold steps with prompts; by pool, where the engine has a rule (`kept_free_mib`)."""
    moe_backend: Literal["marlin", "flashinfer_trtllm_afp8"] | None = None  # None: the kernels timed for a dtype
    """Kernels of experts in mxfp4 in place of those timed: `marlin`, in 16 bits (vLLM `--moe-backend marlin`), or
    `flashinfer_trtllm_afp8`, with activations in mxfp8."""
    quantizes_before: Sequence[str] = ()
    """Dtypes of weights with activations that the kernel before a product quantizes; others have a kernel for it."""
    gathers_quantized: Sequence[str] = ()
    """Dtypes of experts' weights for which ranks gather quantized activations; for others they gather 16 bits."""
    busy_compute_frac: Share = 1.0
    """[share] Share of the compute speed of a kernel timed alone that a busy server reaches, in 16 bits."""
    busy_fp8_frac: Share | None = None
    """[share] That share in 8 bits and less; null: as in 16 bits."""
    wait_frac: NotNegative = 0.0
    """[share] How much longer collectives of a node take than alone, as GPUs wait for each other."""
    sources: Mapping[str, str] = field(default_factory=dict)


_KINDS: dict[str, Any] = {each.name: each.type for each in fields(EngineSpec)}


@with_keys({name: (_KINDS[name] | None, None) for name in CONSTANTS})
class Engine(Section):
    """A serving engine of the catalog, and constants that replace the catalog's; null keeps the catalog's."""

    name: str = "vllm"
    """Name in the catalog: vllm, sglang, trtllm, or ideal, the bare data-sheet roofline."""
    version: str | None = None
    """Version as text, such as "0.14", of which defaults and constants apply; null: the newest one with measured
    servers."""

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that were given."""
        return {key: value for key, value in self if key in CONSTANTS and value is not None}
