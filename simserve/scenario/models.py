"""Models: one experiment as data. The frozen models here and in servers.py define the YAML and all its defaults."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr

from simserve.catalog.engine_spec import Engine
from simserve.catalog.types import (
    Count,
    Finite,
    KvDtype,
    Name,
    Natural,
    NotNegative,
    PluginSpec,
    Positive,
    Priority,
    Section,
    Share,
    WeightDtype,
    spelled_as_mapping,
)
from simserve.scenario.servers import ClusterSection
from simserve.units import LONGEST_S
from simserve.workload.amounts import Time


class TraceFile(Section):
    """A recorded load to replay."""

    path: str
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vllm", "simserve"] = "auto"
    rate_scale: Positive = 1.0
    spread: Literal["none", "uniform"] = "none"
    next_turn: Literal["after_arrival", "after_answer"] = "after_arrival"
    """When a session's next request is sent: as recorded, or after the answer and the recorded think time."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file: a resolved scenario replays the same load, or reports that the file has changed."""


class Timeout(Section):
    """How long clients wait before they give up on a request."""

    ttft_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """Limit for the first token."""
    e2e_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """Limit for the whole answer."""
    then: Literal["end_session", "next_turn"] = "end_session"
    """What the client of a session does after its last attempt: it leaves, or goes on as if it had been answered."""


class Retries(Section):
    """How clients retry requests that were rejected or timed out. The defaults are those of OpenAI's client
    (_constants.py and _base_client.py)."""

    max_attempts: Annotated[int, Field(ge=2, le=1000)] = 3
    """Attempts in all, including the first."""
    backoff_s: Annotated[NotNegative, Field(le=86_400)] = 0.5
    """Delay before the second attempt."""
    multiplier: Annotated[Finite, Field(ge=1, le=1000)] = 2.0
    """Factor between one delay and the next."""
    max_backoff_s: Annotated[NotNegative, Field(le=86_400)] = 8.0
    """Upper bound of the delay."""
    jitter: Annotated[Finite, Field(ge=0, le=1)] = 0.25
    """Largest share by which each delay is shortened at random."""


class TrafficClass(Section):
    """Requests of one class."""

    share: Share
    """Share of all requests, or of all conversations."""
    priority: Priority = 0
    """Priority for schedulers that use it; lower values go first."""
    lengths: PluginSpec | None = None
    """Lengths of this class; left out: those of the workload."""


class Batch(Section):
    """Batch jobs next to the interactive load."""

    n_requests: Count
    """Requests of each job."""
    lengths: PluginSpec
    at_s: NotNegative | Annotated[tuple[NotNegative, ...], Field(min_length=1)] = 0.0
    """Start of the job; a list starts a job at each of these times."""
    over_s: NotNegative = 0.0
    """Time over which a job's requests are sent evenly; 0 sends them all at once."""
    slo_class: Name = "batch"
    priority: Priority = 1
    tenant: Name | None = None


class Workload(Section):
    """The load: exactly one of arrivals, trace and client."""

    arrivals: PluginSpec | None = None
    trace: TraceFile | None = None
    client: dict[str, Any] | None = None
    lengths: PluginSpec | None = None
    prefixes: PluginSpec | None = None
    """What prompts begin with, before the new part that `lengths` draws; left out: no prompts share a prefix."""
    classes: dict[Name, TrafficClass] = {}
    """Classes of requests and the share of each."""
    tenants: dict[Name, Share] = {}
    """Tenants and the share of requests of each."""
    batch: Batch | None = None
    duration_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    n_requests: Count | None = None
    max_tokens: Count | None = None
    """Output limit of every request without one in the trace; left out: the model's limit."""
    drain_limit_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """How long the run may continue after the last arrival; left out: until all requests are done."""
    timeout: Timeout | None = None
    """Left out: clients never give up."""
    retries: Retries | None = None
    """Left out: clients do not retry."""


class ClosedLoop(Section):
    """Clients that each wait for the answer before sending the next request."""

    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: Count
    think_s: Time | None = None
    """Think time from an answer to the client's next request, or between sessions; left out: none."""


def _with_classes(value: Any) -> Any:
    """Expand `{ttft_s: 0.5}` to `{default: {ttft_s: 0.5}}`."""
    is_full = not isinstance(value, Mapping) or value.keys() & {"default", "classes"}
    return value if is_full else {"default": value}


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"must be letters, digits, '-', '_' and '.', as it names a folder, got '{value}'")
    return value


class MeasureSection(Section):
    """The part of the run that is measured."""

    warmup_s: NotNegative | Literal["auto"] | None = None
    warmup_requests: Natural | None = None
    replays: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replays with perturbed costs, for prediction intervals; left out: 8."""

    @property
    def counts_all(self) -> bool:
        """Whether there is no warm-up to leave out."""
        return self.warmup_s is None and self.warmup_requests is None


class Targets(Section):
    """Latency limits of a request; those left out are not checked."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None
    itl_s: Positive | None = None

    @property
    def given(self) -> dict[str, float]:
        """Limits that are checked."""
        return {key: limit for key, limit in self if limit is not None}


class Slo(Section):
    """Targets of all requests, and those of named classes."""

    default: Targets = Targets()
    classes: dict[str, Targets] = {}


class Experiment(Section):
    """The keys of a scenario, before and after resolving, and the origins of their values."""

    model_config = ConfigDict(defer_build=True)  # fast: only `Scenario` validates

    schema_: Literal["simserve/1"] = Field(alias="schema")
    name: Annotated[str, AfterValidator(_folder_name)] = "scenario"
    seed: Natural = 0
    model: str
    gpu: str
    engine: Annotated[Engine, spelled_as_mapping("name")] = Engine()
    weight_dtype: WeightDtype = "bf16"
    kv_dtype: KvDtype = "bf16"
    """Dtype in all pools: the KV cache of one serves the others."""
    cluster: ClusterSection = ClusterSection()
    workload: Workload
    measure: MeasureSection = MeasureSection()
    slo: Annotated[Slo, BeforeValidator(_with_classes)] = Slo()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _base_dir: Path = PrivateAttr(default_factory=Path)

    def set_origins(self, origins: Mapping[str, str], base_dir: Path) -> None:
        """Record the origins of values; only resolving calls this."""
        self._origins = dict(origins)
        self._base_dir = base_dir

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each value by dotted path: explicit, engine vllm, default, ..."""
        return self._origins

    @property
    def base_dir(self) -> Path:
        """The first folder that relative paths were looked up in; after resolving, all paths are absolute."""
        return self._base_dir
