"""Uniform lengths between two bounds, both included, as in benchmarks with random data."""

from typing import Annotated

import numpy as np
from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Floats, Ints
from simserve.workload.lengths.base import STRICT, Drawn, Lengths, Tokens
from simserve.workload.streams import Stream


def _in_order(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"the first bound must not be above the second, got {list(bounds)}")
    return bounds


Bounds = Annotated[tuple[Tokens, Tokens], AfterValidator(_in_order)]


@dataclass(config=STRICT)
class Uniform(Lengths):
    """Prompt and output lengths drawn independently and uniformly from the integers between two bounds."""

    prompt_tokens: Bounds
    output_tokens: Bounds

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw prompts and outputs independently."""
        return Drawn(
            between(self.prompt_tokens, stream("lengths/prompt").random(n)),
            between(self.output_tokens, stream("lengths/output").random(n)),
        )


def between(bounds: tuple[int, int], share: Floats) -> Ints:
    """Return the integer at a share of the way from the first bound to the second, both included, `(n,)`."""
    low, high = bounds
    return (low + np.floor(share * (high - low + 1))).astype(np.int64)
