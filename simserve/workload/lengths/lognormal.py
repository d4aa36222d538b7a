"""Lognormal lengths: many short, a few very long."""

from pydantic.dataclasses import dataclass

from simserve.workload.amounts import LognormalSide
from simserve.workload.lengths.base import STRICT, Drawn, Lengths
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Lognormal(Lengths):
    """Prompt and output lengths drawn independently."""

    prompt_tokens: LognormalSide
    """[tokens] Lengths of prompts; with `prefixes`, of their new part."""
    output_tokens: LognormalSide
    """[tokens] Lengths of answers."""

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw prompts and outputs independently; note the share clipped."""
        prompts, prompt_share = self.prompt_tokens.draw(n, stream("lengths/prompt"))
        outputs, output_share = self.output_tokens.draw(n, stream("lengths/output"))
        shares = {"prompt": prompt_share, "output": output_share}
        notes = tuple(f"{share:.2%} of {side} lengths clipped to [1, max]" for side, share in shares.items() if share)
        return Drawn(prompts, outputs, notes)
