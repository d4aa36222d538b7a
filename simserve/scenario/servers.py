"""The cluster section: pools of replicas, and the routers and links between them."""

from typing import Annotated, Literal

from pydantic import Field

from simserve.catalog.engine_spec import Engine
from simserve.catalog.specs import LinkTopology
from simserve.catalog.types import (
    Chance,
    Count,
    HostTime,
    PluginSpec,
    Positive,
    Section,
    Share,
    WeightDtype,
    spelled_as_mapping,
)
from simserve.cost.comm import NIC_LATENCY_S


class NodeLinkSection(Section):
    """The link of each GPU to GPUs of other nodes."""

    bytes_per_s: Annotated[float, Field(ge=1e8, le=1e13)]
    """Bandwidth of a GPU, one direction; at least that of 1 Gb/s Ethernet."""
    latency_s: Annotated[float, Field(ge=0, le=1)] = NIC_LATENCY_S
    """Latency of a small message; left out: that of a library call over RDMA."""


class BalanceSection(Section):
    """Data-parallel ranks that hold prompts back until each has one (TensorRT-LLM, `attention_dp_config`)."""

    timeout_iters: Count = 50
    """Steps until prompts run although some rank has none."""
    batching_wait_iters: Annotated[int, Field(ge=0)] = 10
    """Steps for which prompts wait for more although each rank has one."""


class Parallel(Section):
    """The split of one replica over tensor * pipeline * data GPUs, which fill nodes one after another."""

    tensor: Count = 1
    """GPUs that share every layer."""
    pipeline: Count = 1
    """Pipeline stages."""
    data: Count = 1
    """Data-parallel ranks, each with its own requests. Ranks of an MoE model share the experts and step together."""
    expert: Count = 1
    """GPUs that distribute the experts: 1 (every expert is split over all GPUs), or tensor * data."""
    link_topology: LinkTopology | None = None
    """How GPUs of a node on PCIe reach each other: switch (peer access) or host; left out: as the card."""
    node_link: NodeLinkSection | None = None
    """What a replica of several nodes sends between them; left out: the card's nic_bytes_per_s."""
    exchange: Literal["deepep", "gather"] | None = None
    """What moves tokens to experts on other nodes: DeepEP's kernels, or collectives of NCCL; left out: deepep."""
    balance: BalanceSection | None = None
    """Ranks that step together hold prompts back until each has one; left out: no prompt waits for other ranks."""


class CalibrationFile(Section):
    """Fitted kernel costs: the path of a file, the name `<gpu>/<engine>` of a shipped one, or `none`."""

    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file: a resolved scenario keeps its costs, or reports that the file has changed."""


class Disk(Section):
    """The disk tier for prefixes that host memory evicts."""

    bytes: Positive
    """Capacity per GPU; of the whole pool with `scope: pool`."""
    bytes_per_s: Annotated[float, Field(ge=1e7)]
    """Bandwidth per GPU, or of the whole pool, shared by reads and writes; at least that of a hard disk."""


class HostTierSection(Section):
    """The host memory tier of a pool; resolving fills in values of None."""

    bytes: Positive
    """Capacity per GPU; of the whole pool with `scope: pool`."""
    scope: Literal["replica", "pool"] = "replica"
    """Whether each replica has host memory of its own, or those of the pool share one store of prefixes."""
    bytes_per_s: Annotated[float, Field(ge=1e8)] | None = None
    """Bandwidth between a GPU and host memory, shared by both directions; left out: one direction of its PCIe link, or
    its network adapter where a pool of several nodes shares a store."""
    preemption: Literal["swap", "recompute"] | None = None
    """What preemption does with the KV blocks of a decoding request; left out: swap, where supported."""
    offload_prefixes: bool | None = None
    """Keep copies of prefixes in host memory; left out: where the pool caches prefixes."""
    reads: Literal["overlap", "blocking"] | None = None
    """Whether only its own request waits for a prefix that is read back, or the whole next step; left out: overlap."""
    disk: Disk | None = None


class SpeculationSection(Section):
    """Speculative decoding: how tokens are proposed, and how many are accepted."""

    kind: Literal["draft_model", "ngram", "eagle", "mtp", "medusa"]
    tokens: Annotated[int, Field(ge=0, le=32)]
    """Proposed tokens per request and step; 0 is plain decoding."""
    acceptance: Chance | Annotated[tuple[Chance, ...], Field(min_length=1)]
    """Probability that a proposal is accepted given that all before it were: one rate, or one per position."""
    model: str | None = None
    """Model of a draft_model: a name in the catalog, or the path of a config.json."""
    weight_dtype: WeightDtype | None = None
    """Weight dtype of a draft_model; left out: its checkpoint's, else the target's."""
    propose_s: HostTime = 0.0
    """Host time per step for proposals."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance rates by position."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.tokens


class Pool(Section):
    """Identical replicas. Values of None default to the scenario's or the engine's; resolving fills them in."""

    name: Annotated[str, Field(min_length=1)] = "serve"
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Count = 1
    parallel: Parallel = Parallel()
    scheduler: PluginSpec | None = None
    gpu: str | None = None
    model: str | None = None
    weight_dtype: WeightDtype | None = None
    """Left out: the scenario's, or where models come in several dtypes, its own model's."""
    engine: Annotated[Engine, spelled_as_mapping("name")] | None = None
    calibration: Annotated[CalibrationFile, spelled_as_mapping("file")] | None = None
    expert_routing: Annotated[str, Field(pattern=r"^(balanced|uniform|(lognormal|power_law)_\d+(\.\d+)?)$")] | None = (
        None
    )
    """Expert routing; left out: the model's, `uniform` where none was measured."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV blocks of shared prefixes; left out: the engine's default."""
    host_tier: HostTierSection | None = None
    """Host memory for swapped requests and for prefixes."""
    speculation: SpeculationSection | None = None
    """Left out: one token per step."""
    num_gpu_blocks: Count | None = None
    gpu_memory_utilization: Share | None = None
    block_size: Count | None = None
    max_model_len: Count | None = None


class KvLink(Section):
    """The link that carries KV blocks from prefill to decode replicas; left out: the GPUs' network adapters."""

    bytes_per_s: Annotated[float, Field(ge=1e8)]
    """Bandwidth of each replica's port, in and out; at least that of 1 Gb/s Ethernet."""
    latency_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    shared: bool = False
    """Whether all replicas share one port."""
    how: Literal["pull", "push"] = "pull"
    """Pull: the decode side fetches finished KV blocks. Push: it allocates blocks first and receives them."""
    transfer: Literal["whole", "by_chunk", "by_layer"] = "whole"
    """Unit of a transfer; by_chunk and by_layer overlap with prefill and need `how: push`."""


class Views(Section):
    """What routers see of replicas, where it is not the current state."""

    refresh_s: Annotated[float, Field(ge=1e-6, le=3600)]
    """Refresh interval: routers see the state at its last multiple; inference gateways refresh every 0.05 s."""
    counts_own_sends: bool = False
    """Whether a router adds the requests that it has sent since the last refresh."""


class ClusterSection(Section):
    """Pools behind a router."""

    router: PluginSpec = {"kind": "round_robin"}
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = (Pool(),)
    kv_link: KvLink | None = None
    admission: PluginSpec | None = None
    """Admission policy, applied before the router; left out: every request is admitted."""
    decode_router: PluginSpec | None = None
    """Router to decode replicas after prefill; left out: as `router`."""
    views: Views | None = None
    """Staleness of what both routers see; left out: they see the current state."""
    disaggregate: PluginSpec | None = None
    """Requests that go to prefill replicas; left out: always. The others go to role: both pools, or without any to
    decode replicas, which then also prefill them."""
