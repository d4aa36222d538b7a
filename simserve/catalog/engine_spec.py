"""EngineSpec: a serving engine of the catalog; Engine: the section of a scenario that names one and its changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from simserve.catalog.types import HostTime, NotNegative, Section, Share, with_keys

CONSTANTS = (
    "compute_efficiency",
    "memory_efficiency",
    "launch_s",
    "step_host_s",
    "request_host_s",
    "busy_compute_frac",
    "gap_s",
    "receive_s",
    "receive_token_s",
    "respond_s",
    "exposed_step_s",
    "eager_kernel_s",
    "async_scheduling",
    "moe_backend",
    "reserve_bytes",
)
"""Constants of an engine that a scenario may replace, in the order of its section."""


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
    compute_efficiency: Share
    memory_efficiency: Share
    launch_s: HostTime
    """Time between kernels that no roof covers."""
    step_host_s: HostTime
    request_host_s: HostTime
    """Host time of a step per request in it."""
    gap_s: HostTime
    """Time between small kernels, where kernels are calibrated."""
    receive_s: HostTime
    """Front end: time to accept a request, one at a time (HTTP, parsing, the chat template)."""
    receive_token_s: HostTime
    """Front end: tokenization time per prompt token."""
    respond_s: HostTime
    """Front end: time from the end of a step until the client has its token."""
    async_scheduling: bool
    """Whether a step is planned while the one before it runs."""
    block_size: int
    reserve_bytes: NotNegative
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
    exposed_step_s: HostTime | None = None
    """Host time of a step that the GPU waits for although steps are planned ahead; step_host_s and request_host_s then
    hide behind the kernels of the step before. None: the GPU waits for those two."""
    async_excludes: Sequence[str] = ()
    """What turns async_scheduling off by default: pipeline, and kinds of speculation."""
    pads_to_graphs: bool = False
    """Whether small steps compute as many tokens as the next captured CUDA graph (see `padded`)."""
    shared_beside_tokens: int | None = None
    """Most tokens of a step that computes shared experts beside routed ones; None: no step does."""
    eager_kernel_s: HostTime | None = None
    """Host time to launch a kernel of a step with prompts (`cost.operations`). None: compiled code launches faster than
    kernels run; 0: CUDA graphs hold them. Steps that propose tokens have none."""
    moe_backend: Literal["marlin", "flashinfer_trtllm_afp8"] | None = None
    """Kernels of experts: marlin, in 16 bits from weights of four; None: those timed for a dtype."""
    quantizes_before: Sequence[str] = ()
    """Dtypes of weights with activations that the kernel before a product quantizes; others have a kernel for it."""
    busy_compute_frac: Share = 1.0
    """Share of the compute speed of a kernel timed alone that a continuously busy server reaches."""
    sources: Mapping[str, str] = field(default_factory=dict)


_KINDS: dict[str, Any] = {each.name: each.type for each in fields(EngineSpec)}


@with_keys({name: (_KINDS[name] | None, None) for name in CONSTANTS})
class Engine(Section):
    """A serving engine of the catalog, and constants that replace the catalog's."""

    name: str = "vllm"
    version: str | None = None

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that were given."""
        return {key: value for key, value in self if key in CONSTANTS and value is not None}
