"""Keys of Weka/AgentX traces, and their types.

Source: ai-dynamo/aiperf, src/aiperf/dataset/loader/weka_trace_models.py @90f31d1.
"""

from array import array
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from simserve.errors import TraceError
from simserve.plugins.validation import problems_of
from simserve.workload.readers.base import MOST_S, MS
from simserve.workload.readers.cells import MOST_ID
from simserve.workload.trace import MOST_TOKENS

DECIMALS = 6
"""Decimals of times in seconds, so that sums compare as in the file."""

REMEDY = "correct or remove it"

Seconds = Annotated[
    float, Field(ge=0, le=MOST_S, allow_inf_nan=False), AfterValidator(lambda time_s: round(time_s, DECIMALS))
]
Ids = Annotated[list[Annotated[int, Field(ge=0, le=MOST_ID)]], FailFast(), AfterValidator(lambda ids: array("q", ids))]


class AgentKeys(BaseModel):
    """Keys with their types, beside others that are not read."""

    model_config = ConfigDict(strict=True, protected_namespaces=())


class AgentRequest(AgentKeys):
    """A request of an agent, not streamed or streamed."""

    type: Literal["n", "s"]
    t: Seconds
    prompt_tokens: Annotated[int, Field(alias="in", ge=1, le=MOST_TOKENS)]
    output_tokens: Annotated[int, Field(alias="out", ge=0, le=MOST_TOKENS)]
    hash_ids: Annotated[Ids, Field(validate_default=True)] = []
    api_time: Seconds | None = None
    model: str | None = None


class Subagent(AgentKeys):
    """An agent that another one started."""

    type: Literal["subagent"]
    t: Seconds
    duration_ms: Annotated[float, Field(ge=0, le=MOST_S / MS, allow_inf_nan=False)] | None = None
    requests: list[AgentRequest]


class Session(AgentKeys):
    """What holds for all requests of a session."""

    id: str | int
    block_size: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    hash_id_scope: Literal["local"]
    requests: Any


def is_agents(text: str) -> bool:
    """Return whether a text begins such a trace."""
    return '"hash_id_scope"' in text


def as_kind(place: str, kind: type[AgentKeys], data: Any) -> Any:
    """Return a value in a type of this module. Raises TraceError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = problems_of(error, data)[0]
        raise TraceError(f"{place}: {replace(problem, remedy=REMEDY)}") from None
