"""Lengths: numbers of prompt and output tokens."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from simserve.tables.columns import Ints
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS

STRICT = ConfigDict(extra="forbid")
"""Config of a plug-in's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
"""A number of tokens."""


@dataclass(frozen=True)
class Drawn:
    """Lengths of n requests."""

    prompt_tokens: Ints
    output_tokens: Ints
    notes: tuple[str, ...] = ()


class Lengths:
    """A distribution. Its first n draws are a prefix of its first m > n."""

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw the lengths of n requests, `(n,)` each, at least 1."""
        raise NotImplementedError
