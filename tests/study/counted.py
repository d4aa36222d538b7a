"""Lengths that leave a line behind for each run that draws them, so that a test can count the runs that were done."""

import os
import time

import numpy as np
from pydantic.dataclasses import dataclass

from simserve.workload.lengths.base import STRICT, Drawn, Lengths, Tokens
from simserve.workload.streams import Stream


@dataclass(config=STRICT)
class Counted(Lengths):
    """All alike; drawing takes `lasts_s`."""

    prompt_tokens: Tokens
    log: str
    lasts_s: float = 0.0

    def draw(self, n: int, stream: Stream) -> Drawn:
        """Write down that a run began."""
        with open(self.log, "a", encoding="utf-8") as lines:
            lines.write(f"{self.prompt_tokens} {os.getpid()}\n")
        time.sleep(self.lasts_s)
        return Drawn(np.full(n, self.prompt_tokens), np.full(n, 8))
