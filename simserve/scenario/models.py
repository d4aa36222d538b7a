"""Scenario: one experiment as data. These frozen models are the YAML; each default lives here and nowhere else."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from simserve import plugins
from simserve.routers.base import Router
from simserve.scenario import setup, written
from simserve.splitters.base import Splitter

LONGEST_S = 90 * 86_400
"""90 days: time in whole ticks must fit 63 bits, which hold 106 days."""

MOST_REQUESTS = 10**9


def _spelled_as_mapping(key: str) -> BeforeValidator:
    """`chunked` is short for `{kind: chunked}`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _with_classes(value: Any) -> Any:
    """`{ttft_s: 0.5}` is short for `{default: {ttft_s: 0.5}}`."""
    is_full = not isinstance(value, Mapping) or value.keys() & {"default", "classes"}
    return value if is_full else {"default": value}


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"must be letters, digits, '-', '_' and '.', as it names a folder, got '{value}'")
    return value


PluginSpec = Annotated[dict[str, Any], _spelled_as_mapping("kind")]
"""A plug-in: its name, or `{kind: name, its arguments...}`."""
Count = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Natural = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Finite, Field(gt=0)]
NotNegative = Annotated[Finite, Field(ge=0)]
Share = Annotated[Finite, Field(gt=0, le=1)]
WeightDtype = Literal["bf16", "fp16", "fp8", "fp8_block", "mxfp4", "int8", "int4"]
KvDtype = Literal["bf16", "fp8"]


class Part(BaseModel):
    """A mapping of the scenario; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Engine(Part):
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


class Parallel(Part):
    """How one replica is split over tensor * pipeline * data GPUs."""

    tensor: Count = 1
    """GPUs that divide every layer."""
    pipeline: Count = 1
    """Stages that the layers are divided into."""
    data: Count = 1
    """Ranks with requests of their own. Those of a model with experts share them, and step together."""
    expert: Count = 1
    """GPUs that divide the experts among them: 1 (each is divided over all), or tensor * data."""


class CalibrationFile(Part):
    """Fitted costs of kernels: the path of a file, `<gpu>/<engine>` of those that come with simserve, or `none`."""

    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the file: a resolved scenario costs what it cost before, or says that the file has changed."""


class Pool(Part):
    """Replicas that are alike. What is None is the scenario's, or the engine's own; resolving fills it in."""

    name: Annotated[str, Field(min_length=1)] = "serve"
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Count = 1
    parallel: Parallel = Parallel()
    scheduler: PluginSpec | None = None
    gpu: str | None = None
    model: str | None = None
    engine: Annotated[Engine, _spelled_as_mapping("name")] | None = None
    calibration: Annotated[CalibrationFile, _spelled_as_mapping("file")] | None = None
    expert_routing: Annotated[str, Field(pattern=r"^(balanced|uniform|power_law_\d+(\.\d+)?)$")] | None = None
    """How tokens choose experts; uniform where a model has them and this says nothing."""
    enable_prefix_caching: bool | None = None
    """Keep blocks of prompts and answers for those that begin alike; left out: as the engine."""
    num_gpu_blocks: Count | None = None
    gpu_memory_utilization: Share | None = None
    block_size: Count | None = None
    max_model_len: Count | None = None


class KvLink(Part):
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


class Cluster(Part):
    """Pools behind a router."""

    router: PluginSpec = {"kind": "round_robin"}
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = (Pool(),)
    kv_link: KvLink | None = None
    decode_router: PluginSpec | None = None
    """Which decode replica a request goes to once its prompt is computed; left out: as `router`."""
    disaggregate: PluginSpec | None = None
    """Which requests go to prefill replicas; left out: always. The others go to pools of role both, or without these to
    decode replicas, which then compute them whole."""


class TraceFile(Part):
    """A recorded load to replay."""

    path: str
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vllm", "simserve"] = "auto"
    rate_scale: Positive = 1.0
    spread: Literal["none", "uniform"] = "none"
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the file: a resolved scenario replays what it replayed before, or says that the file has changed."""


class Workload(Part):
    """Who asks for what, when: exactly one of arrivals, trace and client."""

    arrivals: PluginSpec | None = None
    trace: TraceFile | None = None
    client: dict[str, Any] | None = None
    lengths: PluginSpec | None = None
    prefixes: PluginSpec | None = None
    """What prompts begin with, before the new part that `lengths` draws; left out: no two begin alike."""
    duration_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    n_requests: Count | None = None
    max_tokens: Count | None = None
    """Output limit that every request states, where the trace has none; left out: the model's limit."""
    drain_limit_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """How long after the last arrival the run may go on; left out: until all is done."""


class ClosedLoop(Part):
    """Clients that each wait for their answer before they ask again."""

    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: Count


class Measure(Part):
    """Which part of the run counts."""

    warmup_s: NotNegative | Literal["auto"] | None = None
    warmup_requests: Natural | None = None
    replays: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replays with costs that are off, for prediction intervals; left out: 8 for up to 20,000 requests, else none."""

    @property
    def counts_all(self) -> bool:
        """No warm-up was asked for."""
        return self.warmup_s is None and self.warmup_requests is None


class Targets(Part):
    """Latencies that a request must not exceed; those left out do not matter."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None
    itl_s: Positive | None = None


class Slo(Part):
    """Targets of all requests, and of those of a named class."""

    default: Targets = Targets()
    classes: dict[str, Targets] = {}


class Scenario(Part):
    """One experiment. Get one from `load_scenario` or `Scenario.from_dict`: both check and resolve it.

    Resolved: every default is filled in, and `origins` says where each value came from.
    """

    schema_: Literal["simserve/1"] = Field(alias="schema")
    name: Annotated[str, AfterValidator(_folder_name)] = "scenario"
    seed: Natural = 0
    model: str
    gpu: str
    engine: Annotated[Engine, _spelled_as_mapping("name")] = Engine()
    weight_dtype: WeightDtype = "bf16"
    kv_dtype: KvDtype = "bf16"
    cluster: Cluster = Cluster()
    workload: Workload
    measure: Measure = Measure()
    slo: Annotated[Slo, BeforeValidator(_with_classes)] = Slo()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _base_dir: Path = PrivateAttr(default_factory=Path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Scenario":
        """A scenario from plain data, as the YAML would give it. Raises ScenarioError with all mistakes."""
        from simserve.scenario.resolve import resolve_data  # resolving makes scenarios: this module cannot import it

        return resolve_data(data)

    def set_origins(self, origins: Mapping[str, str], base_dir: Path) -> None:
        """For resolving alone: say where the values came from."""
        self._origins = dict(origins)
        self._base_dir = base_dir

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each value came from, by dotted path: explicit, engine vllm, default, ..."""
        return self._origins

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths were looked up from first; after resolving, all paths are absolute."""
        return self._base_dir

    @cached_property
    def setups(self) -> tuple["setup.PoolSetup", ...]:
        """The pools with their model, GPU, engine, scheduler and memory ledger, ready for the engine."""
        return tuple(setup.pool_setup(self, pool) for pool in self.cluster.pools)

    def build_router(self) -> Router:
        """A new router, which has seen nothing yet."""
        router: Router = plugins.build("routers", self.cluster.router)
        return router

    def build_decode_router(self) -> Router | None:
        """Likewise, for requests whose prompt is computed; None without decode pools."""
        spec = self.cluster.decode_router
        return None if spec is None else plugins.build("routers", spec)

    def build_splitter(self) -> Splitter | None:
        """Which requests are prefilled apart; None: all, where pools have roles."""
        spec = self.cluster.disaggregate
        return None if spec is None or spec["kind"] == "always" else plugins.build("splitters", spec)

    def to_dict(self) -> dict[str, Any]:
        """The scenario as plain data, short where the contract has a short form; what is None is left out."""
        return written.scenario_data(self)

    def to_yaml(self) -> str:
        """The scenario as YAML that loads to an equal one, with the origin of what the user did not give."""
        return written.scenario_yaml(self)

    @property
    def digest(self) -> str:
        """A short hash of all that can change the result: not the name, nor where a trace lies."""
        return written.digest(self)

    def __eq__(self, other: object) -> bool:
        """Equal content; where a value came from does not matter."""
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest)
