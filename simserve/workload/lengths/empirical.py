"""Empirical lengths, drawn from a table of observed ones."""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.workload.lengths.base import STRICT, Drawn, Lengths, Tokens
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Empirical(Lengths):
    """Pairs of prompt and output lengths, each equally likely: from lists, or from a trace file."""

    prompt_tokens: Annotated[list[Tokens], Field(min_length=1)] | None = None
    """[tokens] Prompt length of each pair; null: from `path`."""
    output_tokens: Annotated[list[Tokens], Field(min_length=1)] | None = None
    """[tokens] Output length of each pair; null: from `path`."""
    path: str | None = None
    """Trace file in any supported format; null: from the lists."""

    def __post_init__(self) -> None:
        has_lists = self.prompt_tokens is not None and self.output_tokens is not None
        if has_lists == (self.path is not None):
            raise ValueError("needs either path, or prompt_tokens and output_tokens")
        if has_lists and len(self.prompt_tokens or ()) != len(self.output_tokens or ()):
            raise ValueError("prompt_tokens and output_tokens must be equally long: they are pairs")
        if self.path is not None and not Path(self.path).is_file():
            raise ValueError(f"no such file, got '{self.path}'")

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Draw rows of the table with replacement."""
        if self.path is not None:
            from simserve.workload.readers import read_trace

            trace = read_trace(Path(self.path))
            prompts, outputs = trace.prompt_tokens, trace.output_tokens
        else:
            prompts, outputs = np.array(self.prompt_tokens), np.array(self.output_tokens)
        rows = np.floor(stream("lengths/prompt").random(n) * len(prompts)).astype(np.int64)
        return Drawn(prompts[rows], outputs[rows])
