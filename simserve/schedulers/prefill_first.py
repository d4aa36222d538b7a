"""Prefill first, as in vLLM V0: a step is all prefill or all decode, and prefill goes first."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.request import Request
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class PrefillFirst(Scheduler):
    """Whole prompts go first, in steps of their own; running requests decode when no prompt can start.

    Source: vLLM before V1, with chunked prefill off.
    """

    budget_argument = "max_num_batched_tokens"
    slots_argument = "max_num_seqs"

    max_num_batched_tokens: PositiveInt | None = None
    """Maximum prompt tokens per step; left out: max_model_len, but at least 2048."""
    max_num_seqs: PositiveInt = 256
    """Maximum running requests."""

    def plan(self, view: ReplicaView) -> StepPlan:
        """Admit as many whole prompts as tokens, slots and blocks allow; otherwise decode."""
        budget_tokens = self.max_num_batched_tokens or max(view.max_model_len, 2048)
        free_slots = self.max_num_seqs - view.n_running
        free_blocks = view.free_blocks
        chunks: list[tuple[Request, int]] = []
        blocked_by: Blocked | None = None
        for request in view.waiting:
            n_tokens = request.prefill_left_tokens
            free_blocks -= view.blocks_to_admit(request)
            free_slots -= 1
            if free_slots < 0:
                blocked_by = "seats"
            elif free_blocks < 0 or view.just_preempted:
                blocked_by = "blocks"
            elif chunks and n_tokens > budget_tokens:  # alone, a recomputation may exceed the budget
                blocked_by = "budget"
            if blocked_by:
                break
            chunks.append((request, n_tokens))
            budget_tokens -= n_tokens
        return StepPlan(prefill=chunks, decode=not chunks, blocked_by=blocked_by)

    def never_fits(self, prompt_tokens: int) -> str | None:
        """Refuse a prompt above the token budget, as vLLM does."""
        if self.max_num_batched_tokens is not None and prompt_tokens > self.max_num_batched_tokens:
            return "prompt longer than max_num_batched_tokens, and prompts are not chunked"
        return None
