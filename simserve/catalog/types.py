"""Types that the catalog and the sections of a scenario share: strict mappings, and numbers with their ranges."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

MOST = 10**9
"""Limit on counts of all kinds."""

MOST_HOST_S = 3600.0
"""A host's time for one operation is at most an hour, so that a mistaken unit is seen."""


def spelled_as_mapping(key: str) -> BeforeValidator:
    """Expand `chunked` to `{kind: chunked}`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


PluginSpec = Annotated[dict[str, Any], spelled_as_mapping("kind")]
"""A plug-in: its name, or `{kind: name, its arguments...}`."""
Count = Annotated[int, Field(ge=1, le=MOST)]
Natural = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Finite, Field(gt=0)]
NotNegative = Annotated[Finite, Field(ge=0)]
HostTime = Annotated[NotNegative, Field(le=MOST_HOST_S)]
"""Seconds of one operation of a host."""
Share = Annotated[Finite, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1)]
Priority = Annotated[int, Field(ge=-(10**6), le=10**6)]
Chance = Annotated[Finite, Field(ge=0, le=1)]
WeightDtype = Literal["bf16", "fp16", "fp8", "fp8_block", "w8a8", "nvfp4", "mxfp4", "int8", "int4"]
KvDtype = Literal["bf16", "fp8"]


class Section(BaseModel):
    """A mapping of the scenario; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


SectionT = TypeVar("SectionT", bound=Section)


def with_keys(keys: Mapping[str, tuple[Any, Any]]) -> Callable[[type[SectionT]], type[SectionT]]:
    """Decorate a section with further keys, each with its type and default: those of a struct that has them already."""

    def decorated(section: type[SectionT]) -> type[SectionT]:
        names = {"__module__": section.__module__, "__doc__": section.__doc__}
        return create_model(section.__name__, __base__=section, **names, **keys)  # type: ignore[call-overload, no-any-return]

    return decorated
