"""Errors of steps: their mean times, as an engine's lines tell them, against the simulator's for the same batches."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simserve.cost.model import StepShape
from simserve.lab.log_errors import ReplayedLog
from simserve.scenario import PoolSetup
from simserve.scenario.typical_steps import CONTEXT_TOKENS, StepTimes, windows_of
from simserve.tables.columns import Flags, Floats
from simserve.units import to_s
from simserve.workload.readers.logs.steps import StepLog


@dataclass(frozen=True)
class ReplayedSteps:
    """Lines about steps, and the server that should take as long. Prompts are taken for CONTEXT_TOKENS each."""

    log: StepLog
    setup: PoolSetup
    """The server that decodes."""
    metrics = ("tpot_s",)
    unit: Literal["lines"] = "lines"

    @property
    def in_flight(self) -> Floats:
        """Running requests of each line, `(n_lines,)`."""
        return self.log.running

    @property
    def features(self) -> dict[str, Floats | None]:
        """What groups of a metric have in common: TPOT, the running requests."""
        return {"tpot_s": self.in_flight}

    def compared(self, metric: str) -> Flags:
        """Mark the lines that have the metric, `(n_lines,)`."""
        return np.full(len(self.log), metric in self.log.measured)

    @cached_property
    def predicted(self) -> dict[str, Floats]:
        """Mean times of steps as TPOT, `(n_lines,)`: those of decoding, and what prompts add to some of them."""
        log, pool_tokens = self.log, self.setup.ledger.lane_tokens
        kv_tokens = np.where(np.isnan(log.kv_tokens), log.kv_frac * pool_tokens, log.kv_tokens)
        n_prompts = log.prompt_tokens * log.running / self._prompt_tokens
        rows = zip(np.rint(log.running).astype(int).tolist(), kv_tokens.astype(int).tolist(), n_prompts, strict=True)
        steps_s = np.array([self._step_s(max(n, 1), max(keys, n), more) for n, keys, more in rows])
        return {"tpot_s": steps_s / (1.0 if (how := self.setup.speculation) is None else how.tokens_per_step)}

    @cached_property
    def _times(self) -> StepTimes:
        return StepTimes(self.setup)

    @property
    def _prompt_tokens(self) -> int:
        return min(CONTEXT_TOKENS, self.setup.max_model_len)

    def _step_s(self, n: int, kv_tokens: int, n_prompts: float) -> float:
        """Return the mean time of steps of n requests with so many keys in all, and so many prompts a step."""
        decode_s = self._seconds(n, kv_tokens, 0)
        mixed_s = self._seconds(n, kv_tokens, self._prompt_tokens) if n_prompts else decode_s
        return decode_s + n_prompts * (mixed_s - decode_s)

    def _seconds(self, n: int, kv_tokens: int, prompt: int) -> float:
        groups = windows_of(self.setup)
        windows = tuple((*group.reads(0, prompt), n * group.keys(kv_tokens // n)) for group in groups)
        pairs = prompt * (prompt + 1) // 2
        return to_s(self._times.ps(StepShape(prompt, pairs, prompt, n, kv_tokens, n + bool(prompt), windows)))


Replayed = ReplayedLog | ReplayedSteps
