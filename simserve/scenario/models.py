"""Scenario: one experiment as data. These frozen models are the YAML; each default lives here and nowhere else."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from simserve import plugins
from simserve.admission.base import Admission
from simserve.routers.base import Router
from simserve.scenario import setup, written
from simserve.splitters.base import Splitter
from simserve.workload.amounts import Time

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
Name = Annotated[str, Field(min_length=1)]
Priority = Annotated[int, Field(ge=-(10**6), le=10**6)]
Chance = Annotated[Finite, Field(ge=0, le=1)]
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


class Disk(Part):
    """What prefixes go on to when host memory is full."""

    bytes: Positive
    """For each GPU."""
    bytes_per_s: Annotated[float, Field(ge=1e7)]
    """For each GPU, to the disk or from it; at least what a hard disk has."""


class HostTier(Part):
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


class Speculation(Part):
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
    host_tier: HostTier | None = None
    """Host memory that requests are swapped to, and prefixes kept in."""
    speculation: Speculation | None = None
    """Left out: a token a step."""
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


class Views(Part):
    """What routers see of replicas, where it is not the truth of every instant."""

    refresh_s: Annotated[float, Field(ge=1e-6, le=3600)]
    """They see replicas as they were at the last multiple of this; gateways ask every 0.05 s."""
    counts_own_sends: bool = False
    """And add what they have sent there since."""


class Cluster(Part):
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


class TraceFile(Part):
    """A recorded load to replay."""

    path: str
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vllm", "simserve"] = "auto"
    rate_scale: Positive = 1.0
    spread: Literal["none", "uniform"] = "none"
    next_turn: Literal["after_arrival", "after_answer"] = "after_arrival"
    """When a session's next request is sent: as recorded, or after the answer and the recorded time to think."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the file: a resolved scenario replays what it replayed before, or says that the file has changed."""


class Timeout(Part):
    """How long clients wait before they give up."""

    ttft_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """For the first token."""
    e2e_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """For the whole answer."""


class Retries(Part):
    """How clients ask again that were not admitted or gave up; left out, as OpenAI's client does (its _constants.py and
    _base_client.py)."""

    max_attempts: Annotated[int, Field(ge=2, le=1000)] = 3
    """In all, the first included."""
    backoff_s: Annotated[NotNegative, Field(le=86_400)] = 0.5
    """Wait before the second attempt."""
    multiplier: Annotated[Finite, Field(ge=1, le=1000)] = 2.0
    """Each further wait is longer by this factor."""
    max_backoff_s: Annotated[NotNegative, Field(le=86_400)] = 8.0
    """No wait is longer."""
    jitter: Annotated[Finite, Field(ge=0, le=1)] = 0.25
    """Up to this share of each wait is left out, by chance."""


class TrafficClass(Part):
    """Requests of one class."""

    share: Share
    """Of all requests, or of all conversations."""
    priority: Priority = 0
    """The lower, the better, for schedulers that look at it."""
    lengths: PluginSpec | None = None
    """Of its own; left out: those of the workload."""


class Batch(Part):
    """Requests of jobs, beside those that come one by one."""

    n_requests: Count
    """Of each job."""
    lengths: PluginSpec
    at_s: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = 0.0
    """When the job comes; a list is a job at each of these instants."""
    over_s: NotNegative = 0.0
    """Its requests are sent evenly over so long; 0: all at once."""
    slo_class: Name = "batch"
    priority: Priority = 1
    tenant: Name | None = None


class Workload(Part):
    """Who asks for what, when: exactly one of arrivals, trace and client."""

    arrivals: PluginSpec | None = None
    trace: TraceFile | None = None
    client: dict[str, Any] | None = None
    lengths: PluginSpec | None = None
    prefixes: PluginSpec | None = None
    """What prompts begin with, before the new part that `lengths` draws; left out: no two begin alike."""
    classes: dict[Name, TrafficClass] = {}
    """What kinds of requests there are, and the share of each."""
    tenants: dict[Name, Share] = {}
    """Who sends requests, and the share of each."""
    batch: Batch | None = None
    duration_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    n_requests: Count | None = None
    max_tokens: Count | None = None
    """Output limit that every request states, where the trace has none; left out: the model's limit."""
    drain_limit_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """How long after the last arrival the run may go on; left out: until all is done."""
    timeout: Timeout | None = None
    """Left out: clients wait as long as it takes."""
    retries: Retries | None = None
    """Left out: nobody asks again."""


class ClosedLoop(Part):
    """Clients that each wait for their answer before they ask again."""

    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: Count
    think_s: Time | None = None
    """From an answer, or the last of a session, to the client's next request or session; left out: none."""


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

    def build_admission(self) -> Admission | None:
        """Likewise, for who may enter; None: everybody."""
        spec = self.cluster.admission
        return None if spec is None else plugins.build("admission", spec)

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
