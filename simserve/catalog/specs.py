"""Catalog entries as frozen values: ModelSpec and GpuSpec."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from simserve.catalog.dtypes import COMPUTES_IN
from simserve.catalog.latent import Indexer, Mla
from simserve.catalog.layers import (
    OWN_HEADS_ROUTING,
    SHARED_HEADS_ROUTING,
    Experts,
    Heads,
    LayerGroup,
    LayerInputs,
    SharedBlocks,
)
from simserve.catalog.states import MIXERS, StateLayers
from simserve.catalog.types import Positive
from simserve.errors import CatalogError


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a transformer: dense or MoE, its layers in groups of one kind of attention.

    Invariant: n_heads is a multiple of n_kv_heads; the groups have n_layers layers; those of kind latent have mla,
    indexer needs mla; those of kind state have linear; n_moe_layers >= 1 with experts; with mla, n_kv_heads and
    head_dim mean nothing; mlps have n_dense_layers layers. Where no layer attends, n_heads are those of the states,
    n_kv_heads their groups, and head_dim is 0.
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
    value_head_dim: int | None = None
    """Width of a head's value; None: that of its key."""
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    """Three MLP matrices (gate, up, down) rather than two."""
    gated_attention: bool = False
    """Whether queries come with a gate of the same width for the output of attention (Qwen3-Next)."""
    query_rank: int | None = None
    """Width of the vector that all queries are projected from, whole on every GPU (Step-3); None: the hidden size."""
    norms_all_heads: bool = False
    """Whether queries and keys are normalized over the heads of all GPUs, which sum their squares (MiniMax-M2)."""
    groups: tuple[LayerGroup, ...] = ()
    """The layers by kind; empty stands for one group of all, latent with mla and full without."""
    experts: Experts | None = None
    mla: Mla | None = None
    indexer: Indexer | None = None
    """None: all keys are attended, or those of a window."""
    linear: StateLayers | None = None
    layer_inputs: LayerInputs | None = None
    shared_blocks: SharedBlocks | None = None
    mlps: tuple[tuple[int, int], ...] = ()
    """Inner sizes of plain MLPs and their layers, where not all are intermediate_size; 0: one square matrix instead."""
    n_bare_layers: int = 0
    """Layers without an MLP or experts after their attention or state (Nemotron-H)."""
    n_mtp_layers: int = 0
    """Layers that predict further tokens (MTP), as the checkpoint has them."""
    mtp_layer: tuple[str, str] = ("full", "experts")
    """Attention and MLP of such a layer; the MLP is dense, too, in a model without experts."""
    weight_dtype: str | None = None
    """Quantized dtype of the published checkpoint; None: 16 bits."""
    only_experts_quantized: bool = False
    """Whether attention and shared experts stay in 16 bits, whatever the experts are stored in."""
    dense_dtype: str | None = None
    """Dtype of these with experts in weight_dtype; None: the same."""
    n_streams: int = 1
    """Residual streams, which layers mix (hyper-connections: Zhu et al., ICLR '25)."""
    source: str = ""

    def __post_init__(self) -> None:
        if not self.groups:
            object.__setattr__(self, "groups", (LayerGroup("latent" if self.mla else "full", self.n_layers),))
        n_grouped = sum(group.n_layers for group in self.groups if not group.has_entries)
        if n_grouped != self.n_layers:
            raise CatalogError(f"groups must have the {self.n_layers} layers of {self.name}, got {n_grouped}")

    @property
    def windowed(self) -> bool:
        """Whether some layers attend only the last tokens, or those of a chunk."""
        return any(group.window for group in self.groups)

    @property
    def n_attention_layers(self) -> int:
        """Layers that attend cached tokens."""
        return sum(group.n_layers for group in self.groups if group.attends and not group.has_entries)

    @property
    def n_state_layers(self) -> int:
        """Layers with a state of fixed size per request."""
        return sum(group.n_layers for group in self.groups if group.kind == "state")

    @property
    def has_timed_states(self) -> bool:
        """Whether kernels of its states were timed."""
        return self.linear is not None and MIXERS[self.linear.mixer].is_timed

    @property
    def all_heads(self) -> list[Heads]:
        """The heads of the model, and those of its own of each group."""
        own = (group.heads for group in self.groups if group.heads is not None)
        return [Heads(self.n_heads, self.n_kv_heads, self.head_dim, self.value_head_dim), *own]

    @property
    def expert_routing(self) -> str:
        """How tokens choose experts, unless a pool says otherwise: as measured, or as in other models of its kind."""
        if self.experts is not None and self.experts.routing is not None:
            return self.experts.routing
        of_heads = OWN_HEADS_ROUTING if self.n_heads == self.n_kv_heads else SHARED_HEADS_ROUTING
        of_mla = of_heads if self.mla is None else self.mla.ROUTING
        return of_mla if self.linear is None else MIXERS[self.linear.mixer].routing

    @property
    def n_dense_layers(self) -> int:
        """Layers with a plain MLP."""
        return self.n_layers - self.n_bare_layers if self.experts is None else self.experts.n_dense_layers

    @property
    def n_moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.experts is None else self.n_layers - self.n_dense_layers - self.n_bare_layers

    def within(self, n_tokens: int) -> "ModelSpec":
        """Return the model for requests of at most n_tokens: windows that they never fill attend all keys, but for
        those with heads of their own."""
        windowed = (group for group in self.groups if group.window is not None and group.heads is None)
        never_filled = [group for group in windowed if group.window is not None and group.window >= n_tokens]
        if not never_filled:
            return self
        whole = [each for each in self.groups if (each.kind, each.heads) == ("full", None) or each in never_filled]
        n_full, n_sharing = sum(group.n_layers for group in whole), sum(group.n_sharing for group in whole)
        others = (group for group in self.groups if group not in whole)
        return replace(self, groups=(LayerGroup("full", n_full, n_sharing=n_sharing), *others))


LinkTopology = Literal["nvls", "switch", "mesh", "host"]
"""nvls: a switch that also adds up; switch: every pair at the full rate; mesh: a link to each other GPU, which has its
share of the rate; host: no peer access, so that bytes cross the bus to the memory of the host and back."""

Bandwidth = Annotated[float, Field(ge=1e8, le=1e13)]
ReachedShare = Annotated[float, Field(ge=0.05, le=1)]


@dataclass(frozen=True)
class GpuSpec:
    """The capabilities of a GPU by its data sheet: dense peaks, never sparse ones. Limits of files of one's own are
    ten times beyond any card of today."""

    name: str
    flop_per_s: Mapping[str, float]
    """Dense tensor peak by dtype: bf16, fp16, and where the card has them fp8, int8, fp4."""
    hbm_bytes: float
    """Total memory as the driver reports it."""
    hbm_bytes_per_s: Annotated[float, Field(ge=1e10, le=1e14)]
    link_bytes_per_s: Bandwidth
    """Bandwidth to the other GPUs of the node, one direction."""
    link_latency_s: Annotated[float, Field(ge=0, le=1e-3)] = field(default=5e-6, kw_only=True)
    nic_bytes_per_s: Bandwidth
    """Bandwidth to GPUs of other nodes, one direction."""
    pcie_bytes_per_s: Bandwidth
    """Bandwidth to the memory of the host, one direction."""
    n_sms: Annotated[int, Field(ge=1, le=10_000)]
    l2_bytes: Annotated[float, Field(ge=1e5, le=1e10)]
    tdp_w: Annotated[float, Field(ge=1, le=1e5)]
    price_per_hour_usd: Annotated[Positive, Field(le=1e4)]
    gpus_per_node: Annotated[int, Field(ge=1, le=10_000)] = 8
    link_topology: LinkTopology = "switch"
    """What connects the GPUs of a node."""
    kernels_like: str | None = None
    """The GPU with the calibration to scale for this one; None: it has its own, or uses the default."""
    flop_share: ReachedShare | None = None
    """Share of the 16-bit peak that large products reach on this card; None: that of the scaled calibration."""
    byte_share: ReachedShare | None = None
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
