"""Prefill first, as in vLLM V0: a step is all prefill or all decode, and prefill goes first."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Scheduler, StepPlan
from simserve.state.policies import PrefillFirstPlanner
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class PrefillFirst(Scheduler):
    """Whole prompts go first, in steps of their own; running requests decode when no prompt can start.

    Source: vLLM before V1, with chunked prefill off.
    """

    budget_argument = "max_num_batched_tokens"
    slots_argument = "max_num_seqs"

    max_num_batched_tokens: PositiveInt | None = None
    """[tokens] Budget of a step for prompts; null: max_model_len, but at least 2048 (vLLM
    `--max-num-batched-tokens`)."""
    max_num_seqs: PositiveInt = 256
    """Maximum running requests (vLLM `--max-num-seqs`)."""

    def __post_init__(self) -> None:
        self._planner = PrefillFirstPlanner(self.max_num_batched_tokens, self.max_num_seqs)

    def rows_planner(self) -> PrefillFirstPlanner:
        """Return what decides."""
        return self._planner

    def plan(self, view: ReplicaView) -> StepPlan:
        """Admit as many whole prompts as tokens, slots and blocks allow; otherwise decode."""
        return self._planner.planned(view)

    def never_fits(self, prompt_tokens: int) -> str | None:
        """Refuse a prompt above the token budget, as vLLM does."""
        if self.max_num_batched_tokens is not None and prompt_tokens > self.max_num_batched_tokens:
            return "prompt longer than max_num_batched_tokens, and prompts are not chunked"
        return None
