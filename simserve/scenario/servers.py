"""Servers: pools of replicas, what they run on, and the routers and links between them, as the YAML says it."""

from typing import Annotated, Literal

from pydantic import Field

from simserve.scenario.types import (
    Chance,
    Count,
    NotNegative,
    PluginSpec,
    Positive,
    Section,
    Share,
    WeightDtype,
    spelled_as_mapping,
)


class Engine(Section):
    """A serving engine of the catalog, and constants that replace the catalog's."""

    name: str = "vllm"
    version: str | None = None
    compute_efficiency: Share | None = None
    memory_efficiency: Share | None = None
    launch_s: NotNegative | None = None
    step_host_s: NotNegative | None = None
    request_host_s: NotNegative | None = None
    busy_compute_frac: Share | None = None
    gap_s: NotNegative | None = None
    receive_s: NotNegative | None = None
    receive_token_s: NotNegative | None = None
    respond_s: NotNegative | None = None
    async_scheduling: bool | None = None
    reserve_bytes: NotNegative | None = None

    @property
    def constants(self) -> dict[str, float]:
        """Those given."""
        return {key: value for key, value in self if key not in ("name", "version") and value is not None}


class Parallel(Section):
    """How one replica is split over tensor * pipeline * data GPUs."""

    tensor: Count = 1
    """GPUs that divide every layer."""
    pipeline: Count = 1
    """Stages that the layers are divided into."""
    data: Count = 1
    """Ranks with requests of their own. Those of a model with experts share them, and step together."""
    expert: Count = 1
    """GPUs that divide the experts among them: 1 (each is divided over all), or tensor * data."""


class CalibrationFile(Section):
    """Fitted costs of kernels: the path of a file, `<gpu>/<engine>` of those that come with simserve, or `none`."""

    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the file: a resolved scenario costs what it cost before, or says that the file has changed."""


class Disk(Section):
    """What prefixes go on to when host memory is full."""

    bytes: Positive
    """For each GPU."""
    bytes_per_s: Annotated[float, Field(ge=1e7)]
    """For each GPU, to the disk or from it; at least what a hard disk has."""


class HostTierSection(Section):
    """Host memory beside the GPUs of a pool. What is None, resolving fills in."""

    bytes: Positive
    """For each GPU."""
    bytes_per_s: Annotated[float, Field(ge=1e8)] | None = None
    """Between a GPU and its host, for both directions together; left out: what its PCIe has one way."""
    preemption: Literal["swap", "recompute"] | None = None
    """What becomes of a request that must give up its blocks while it decodes; left out: swap, where that can be."""
    offload_prefixes: bool | None = None
    """Keep copies of prefixes there; left out: where the pool caches prefixes."""
    disk: Disk | None = None


class SpeculationSection(Section):
    """How tokens are proposed for decoding requests, to be verified all at once."""

    kind: Literal["draft_model", "ngram", "eagle", "mtp", "medusa"]
    tokens: Annotated[int, Field(ge=0, le=32)]
    """Proposed for each request in a step; 0: plain decoding."""
    acceptance: Chance | Annotated[tuple[Chance, ...], Field(min_length=1)]
    """That a proposal is accepted if all before it were: one rate, or one for each position."""
    model: str | None = None
    """Of a draft_model: a name in the catalog, or the path of a config.json."""
    weight_dtype: WeightDtype | None = None
    """Of a draft_model; left out: as its checkpoint, else as the target."""
    propose_s: NotNegative = 0.0
    """Host time of a step for proposals."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Of each position."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.tokens


class Pool(Section):
    """Replicas that are alike. What is None is the scenario's, or the engine's own; resolving fills it in."""

    name: Annotated[str, Field(min_length=1)] = "serve"
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Count = 1
    parallel: Parallel = Parallel()
    scheduler: PluginSpec | None = None
    gpu: str | None = None
    model: str | None = None
    engine: Annotated[Engine, spelled_as_mapping("name")] | None = None
    calibration: Annotated[CalibrationFile, spelled_as_mapping("file")] | None = None
    expert_routing: Annotated[str, Field(pattern=r"^(balanced|uniform|power_law_\d+(\.\d+)?)$")] | None = None
    """How tokens choose experts; uniform where a model has them and this says nothing."""
    enable_prefix_caching: bool | None = None
    """Keep blocks of prompts and answers for those that begin alike; left out: as the engine."""
    host_tier: HostTierSection | None = None
    """Host memory that requests are swapped to, and prefixes kept in."""
    speculation: SpeculationSection | None = None
    """Left out: a token a step."""
    num_gpu_blocks: Count | None = None
    gpu_memory_utilization: Share | None = None
    block_size: Count | None = None
    max_model_len: Count | None = None


class KvLink(Section):
    """What carries keys and values from prefill to decode replicas; left out: the network adapters of their GPUs."""

    bytes_per_s: Annotated[float, Field(ge=1e8)]
    """Of each replica's port, in and out; at least what a network of 1 Gb/s has."""
    latency_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    shared: bool = False
    """All replicas share one port."""
    how: Literal["pull", "push"] = "pull"
    """The decode side fetches what is computed, or gives blocks first and is sent it."""
    transfer: Literal["whole", "by_chunk", "by_layer"] = "whole"
    """What is sent at once; what is pushed may follow its computing."""


class Views(Section):
    """What routers see of replicas, where it is not the truth of every instant."""

    refresh_s: Annotated[float, Field(ge=1e-6, le=3600)]
    """They see replicas as they were at the last multiple of this; gateways ask every 0.05 s."""
    counts_own_sends: bool = False
    """And add what they have sent there since."""


class ClusterSection(Section):
    """Pools behind a router."""

    router: PluginSpec = {"kind": "round_robin"}
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = (Pool(),)
    kv_link: KvLink | None = None
    admission: PluginSpec | None = None
    """Who may enter, asked before the router; left out: everybody."""
    decode_router: PluginSpec | None = None
    """Which decode replica a request goes to once its prompt is computed; left out: as `router`."""
    views: Views | None = None
    """How old what both routers see is; left out: they see what is true at every instant."""
    disaggregate: PluginSpec | None = None
    """Which requests go to prefill replicas; left out: always. The others go to pools of role both, or without these to
    decode replicas, which then compute them whole."""
