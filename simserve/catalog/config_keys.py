"""Types of the keys of a Hugging Face config.json, with their ranges. A key may be null, and 2.0 stands for 2."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from simserve.catalog.quantization import Names, Quantization
from simserve.catalog.types import StopAtFirst

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

TYPES: Mapping[str, Any] = {
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
    "frequency": COUNT | BY_LAYER,
    "period": COUNT | Annotated[str, Field(pattern="^L+G$")],
    "number": float,
    "flag": bool,
    "text": str,
    "numbers": Annotated[str, Field(pattern=r"^\d{1,4}(,\d{1,4})*$", max_length=10 * MOST_LAYERS)],
    "names": Names,
    "dtype": Literal["float32", "bfloat16", "float16", "auto"],
    "quantization": Quantization,
}
"""Types by the names that the files of families have for them."""
