"""What exists in the world, as frozen values: ModelSpec, GpuSpec, EngineSpec."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

BYTES_PER_VALUE: Mapping[str, float] = MappingProxyType(
    {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5}
)
"""Bytes a stored number takes, by dtype; scales of quantised blocks are left out (under 4 %)."""


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a dense or grouped-query transformer.

    Invariant: n_heads is a multiple of n_kv_heads; n_window_layers <= n_layers, and is 0 without a window.
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
    source: str = ""

    @property
    def windowed(self) -> bool:
        """Some layers attend to the last `sliding_window` tokens only."""
        return self.sliding_window is not None and self.n_window_layers > 0


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
    """Front end: tokenising, per token of the prompt."""
    respond_s: float
    """Front end: from the end of a step until the client has its token."""
    async_scheduling: bool
    """A step is planned while the one before it runs."""
    gpu_memory_utilization: float
    block_size: int
    reserve_bytes: float
    """CUDA context, graphs and libraries, per GPU."""
    logit_bytes: float = 4.0
    """Memory for each logit while the seats of a step are sampled."""
    busy_compute_frac: float = 1.0
    """Share of the compute speed of a kernel timed alone that a server keeps which computes without a pause."""
    sources: Mapping[str, str] = field(default_factory=dict)
