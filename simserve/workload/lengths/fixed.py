"""All prompts are alike, and all answers."""

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.workload.lengths.base import STRICT, Drawn, Lengths, Tokens
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Fixed(Lengths):
    """The same lengths for every request."""

    prompt_tokens: Tokens
    output_tokens: Tokens

    def draw(self, n: int, stream: Stream) -> Drawn:
        """No chance at all."""
        return Drawn(np.full(n, self.prompt_tokens), np.full(n, self.output_tokens))
