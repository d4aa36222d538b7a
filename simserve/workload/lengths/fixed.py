"""Fixed lengths of all prompts and all outputs."""

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.workload.lengths.base import STRICT, Drawn, Lengths, Tokens
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Fixed(Lengths):
    """One pair of lengths for all requests."""

    prompt_tokens: Tokens
    """[tokens] Length of each prompt; with `prefixes`, of its new part (`vllm bench serve --random-input-len`)."""
    output_tokens: Tokens
    """[tokens] Length of each answer (`vllm bench serve --random-output-len`)."""

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Return the fixed lengths."""
        return Drawn(np.full(n, self.prompt_tokens), np.full(n, self.output_tokens))
