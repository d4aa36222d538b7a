"""Types of the catalog and of the sections of a scenario: strict mappings, numbers with their ranges, and how a foreign
JSON file is read in such types."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError, create_model

from simserve.errors import CatalogError
from simserve.plugins.validation import Path, as_json, problems_of

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
Positive = Annotated[Finite, Field(gt=0, le=1e18)]
"""At most what an answer file can say."""
NotNegative = Annotated[Finite, Field(ge=0, le=1e18)]
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


class Strict(BaseModel):
    """Keys with their types, beside others that are not read."""

    model_config = ConfigDict(strict=True, protected_namespaces=())


class StopAtFirst(FailFast):
    """Stop at the first wrong item of a list: an error for each of a million would take gigabytes."""

    __hash__ = object.__hash__  # unions compare their members by it


MOST_LAYERS = 10_000
"""Eighty times as many as the deepest model has (Llama 3.1 405B: 126); each is looked at."""

MOST_PARTS = 2**14
"""Heads, groups and experts: 32 times as many as any model has in a layer (Qwen3-Next: 512 experts)."""

MOST_WIDTH = 2**20
"""Fourteen times the widest matrix (Nemotron-4 340B: 73,728), so that products of three widths fit 64 bits."""

MOST_TOKENS = 2**30
"""A hundred times the longest context (Llama 4 Scout: 10,485,760), and more than any vocabulary."""


def whole(least: int, most: int) -> Any:
    """Return the type of whole numbers from least to most."""
    return Annotated[int, Field(ge=least, le=most)]


COUNT, WIDTH, PARTS, TOKENS = (whole(1, most) for most in (MOST_LAYERS, MOST_WIDTH, MOST_PARTS, MOST_TOKENS))
COUNT_OR_0, WIDTH_OR_0, PARTS_OR_0, TOKENS_OR_0 = (
    whole(0, most) for most in (MOST_LAYERS, MOST_WIDTH, MOST_PARTS, MOST_TOKENS)
)
"""Types of counts of layers and of the rest; 0 switches an optional part off."""

BY_LAYER = Annotated[list[Literal[0, 1]], StopAtFirst()]
"""A choice for each layer."""

LAYERS = Annotated[list[Annotated[int, Field(ge=0, lt=MOST_LAYERS)]], Field(max_length=MOST_LAYERS), StopAtFirst()]
"""Layers by number."""

KEY_TYPES: Mapping[str, Any] = {
    "count": COUNT,
    "count_or_0": COUNT_OR_0,
    "width": WIDTH,
    "width_or_0": WIDTH_OR_0,
    "width_or_auto": WIDTH | Literal["auto"],
    "parts": PARTS,
    "parts_or_0": PARTS_OR_0,
    "tokens": TOKENS,
    "tokens_or_0": TOKENS_OR_0,
    "layer": whole(-MOST_LAYERS, MOST_LAYERS),
    "layers": LAYERS,
    "by_layer": BY_LAYER,
    "flags": Annotated[list[bool], StopAtFirst()],
    "frequency": COUNT | BY_LAYER,
    "period": COUNT | Annotated[str, Field(pattern="^L+G$")],
    "number": NotNegative,
    "ratio": Annotated[float, Field(gt=0, le=100)],
    "flag": bool,
    "text": str,
    "numbers": Annotated[str, Field(pattern=r"^\d{1,4}(,\d{1,4})*$", max_length=10 * MOST_LAYERS)],
    "names": Annotated[list[str], StopAtFirst()],
    "dtype": Literal["float32", "bfloat16", "float16", "auto"],
}
"""Types of the keys of a config.json by the names that the files of families have for them; 2.0 stands for 2."""

UNEVEN = "a list must have one for each layer, of heads or sizes of MLPs alone"

Schema = TypeVar("Schema", bound=Strict)


def checked(schema: type[Schema], data: object, path: Path = ()) -> Schema:
    """Return data in the types of a schema. Raises CatalogError for a value of another type or out of range, by the
    keys that lead to it from the top of the file."""
    try:
        return schema.model_validate_json(as_json(data))
    except ValidationError as error:
        problem = problems_of(error, data)[0].below(path)
        is_uneven = str(problem.value).startswith("[") and re.search("number|true", problem.rule) is not None
        remedy = problem.remedy or (UNEVEN if is_uneven else "compare it with the published file")
        raise CatalogError(str(replace(problem, remedy=remedy))) from None
