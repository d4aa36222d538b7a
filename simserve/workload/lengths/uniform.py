"""Uniform lengths between two bounds, both included, as in benchmarks with random data."""

from pydantic.dataclasses import dataclass

from simserve.workload.amounts import Bounds, between
from simserve.workload.lengths.base import STRICT, Drawn, Lengths
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Uniform(Lengths):
    """Prompt and output lengths drawn independently and uniformly from the integers between two bounds."""

    prompt_tokens: Bounds
    """[tokens] Shortest and longest prompt; with `prefixes`, new part of a prompt."""
    output_tokens: Bounds
    """[tokens] Shortest and longest answer."""

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw prompts and outputs independently."""
        return Drawn(
            between(self.prompt_tokens, stream("lengths/prompt").random(n)),
            between(self.output_tokens, stream("lengths/output").random(n)),
        )
