"""Lognormal lengths: many short, a few very long."""

import numpy as np
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass

from simserve.tables.columns import Ints
from simserve.workload.lengths.base import STRICT, Drawn, Lengths, Tokens
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class LognormalSide:
    """Prompt or output lengths: exp of a normal variable, rounded down, clipped to [1, max]."""

    median: Tokens
    sigma: NonNegativeFloat
    """Standard deviation of the logarithm."""
    max: Tokens

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Ints, float]:
        """Draw n lengths; also return the share clipped."""
        with np.errstate(over="ignore"):  # infinite lengths are clipped with the other long ones
            tokens = np.floor(self.median * np.exp(self.sigma * rng.standard_normal(n)))
        clipped = (tokens < 1) | (tokens > self.max)
        return np.clip(tokens, 1, self.max).astype(np.int64), float(clipped.mean()) if n else 0.0


@dataclass(config=STRICT)
class Lognormal(Lengths):
    """Prompt and output lengths drawn independently."""

    prompt_tokens: LognormalSide
    output_tokens: LognormalSide

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw prompts and outputs independently; note the share clipped."""
        prompts, prompt_share = self.prompt_tokens.draw(n, stream("lengths/prompt"))
        outputs, output_share = self.output_tokens.draw(n, stream("lengths/output"))
        shares = {"prompt": prompt_share, "output": output_share}
        notes = tuple(f"{share:.2%} of {side} lengths clipped to [1, max]" for side, share in shares.items() if share)
        return Drawn(prompts, outputs, notes)
