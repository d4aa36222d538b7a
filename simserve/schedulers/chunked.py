"""Chunked prefill, first come first served: vLLM V1 and Sarathi-Serve. Decode first, prefill fills the budget."""

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.request import Request
from simserve.state.view import ReplicaView


@dataclass(config=STRICT)
class Chunked(Scheduler):
    """Every step decodes all running requests and gives what is left of a token budget to prompts.

    Sources: Sarathi-Serve (OSDI '24); vLLM V1, whose knobs these are.
    """

    max_num_batched_tokens: PositiveInt = 2048
    """Tokens a step computes at most, decoded ones included."""
    max_num_seqs: PositiveInt = 256
    """Requests that run at once at most."""
    long_prefill_token_threshold: NonNegativeInt = 0
    """Tokens of one prompt in a step at most; 0: no limit but the budget."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if the blocks of its whole prompt are free; otherwise those of its first chunk do."""

    def plan(self, view: ReplicaView) -> StepPlan:
        """Walk the queue in order until tokens, seats or blocks run out."""
        budget_tokens = self.max_num_batched_tokens - view.n_decoding * view.decode_tokens
        free_seats = self.max_num_seqs - view.n_running
        free_blocks = view.free_blocks
        most_tokens = self.long_prefill_token_threshold or self.max_num_batched_tokens
        chunks: list[tuple[Request, int]] = []
        blocked_by: Blocked | None = None
        for request in view.queue:
            if budget_tokens <= 0:
                blocked_by = "budget"
                break
            left_tokens = request.prefill_left_tokens
            n_tokens = min(left_tokens, budget_tokens, most_tokens)
            if request.is_new:
                if free_seats <= 0:
                    blocked_by = "seats"
                    break
                free_seats -= 1
                n_blocks = view.blocks_to_admit(request, left_tokens if self.scheduler_reserve_full_isl else n_tokens)
                if n_blocks > free_blocks or view.just_preempted:
                    blocked_by = "blocks"
                    break
            else:
                n_blocks = view.blocks_for_chunk(request, n_tokens)
                if n_blocks > free_blocks:
                    blocked_by = "blocks"
                    break
            free_blocks -= n_blocks
            chunks.append((request, n_tokens))
            budget_tokens -= n_tokens
        return StepPlan(prefill=chunks, blocked_by=blocked_by)
