"""Continuous batching, as in Orca: requests join and leave at every step; memory is reserved for the longest output."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class Continuous(Scheduler):
    """Iteration-level scheduling: whole prompts join the decoding requests in the next step.

    Admission reserves KV for prompt + max_tokens (without max_tokens: up to max_model_len), so no request is preempted.
    Source: Orca (OSDI '22), section 4.2.
    """

    reserves = True
    shares_blocks = False
    slots_argument = "max_num_seqs"

    max_num_seqs: PositiveInt = 256
    """Maximum running requests (Orca's max batch size)."""

    def plan(self, view: ReplicaView) -> StepPlan:
        """Admit in order while a slot and the blocks of the longest output are free."""
        free_slots = self.max_num_seqs - view.n_running
        free_blocks = view.free_blocks
        chunks = []
        reserve_tokens = []
        blocked_by: Blocked | None = None
        for request in view.waiting:
            longest_tokens = request.prompt_tokens + request.max_tokens
            free_blocks -= view.blocks_for(longest_tokens)
            free_slots -= 1
            if free_slots < 0 or free_blocks < 0:
                blocked_by = "seats" if free_slots < 0 else "blocks"
                break
            chunks.append((request, request.prefill_left_tokens))
            reserve_tokens.append(longest_tokens)
        return StepPlan(prefill=chunks, reserve_tokens=reserve_tokens, blocked_by=blocked_by)
