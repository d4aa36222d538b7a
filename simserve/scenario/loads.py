"""Loads: who asks for what, when: arrivals, a trace or clients, as the YAML says it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.scenario.types import (
    LONGEST_S,
    Count,
    Finite,
    Name,
    NotNegative,
    PluginSpec,
    Positive,
    Priority,
    Section,
    Share,
)
from simserve.workload.amounts import Time


class TraceFile(Section):
    """A recorded load to replay."""

    path: str
    format: Literal["auto", "azure", "mooncake", "burstgpt", "vllm", "simserve"] = "auto"
    rate_scale: Positive = 1.0
    spread: Literal["none", "uniform"] = "none"
    next_turn: Literal["after_arrival", "after_answer"] = "after_arrival"
    """When a session's next request is sent: as recorded, or after the answer and the recorded time to think."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the file: a resolved scenario replays what it replayed before, or says that the file has changed."""


class Timeout(Section):
    """How long clients wait before they give up."""

    ttft_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """For the first token."""
    e2e_s: Annotated[Positive, Field(le=LONGEST_S)] | None = None
    """For the whole answer."""


class Retries(Section):
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


class TrafficClass(Section):
    """Requests of one class."""

    share: Share
    """Of all requests, or of all conversations."""
    priority: Priority = 0
    """The lower, the better, for schedulers that look at it."""
    lengths: PluginSpec | None = None
    """Of its own; left out: those of the workload."""


class Batch(Section):
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


class Workload(Section):
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


class ClosedLoop(Section):
    """Clients that each wait for their answer before they ask again."""

    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: Count
    think_s: Time | None = None
    """From an answer, or the last of a session, to the client's next request or session; left out: none."""
