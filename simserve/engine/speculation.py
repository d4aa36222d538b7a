"""Speculation: acceptance of proposed tokens, and batch state with blocks for them."""

from dataclasses import dataclass

from simserve.engine.batch_state import BatchState
from simserve.engine.prefixes import CachingBatchState
from simserve.schedulers.base import StepPlan
from simserve.state.acceptance import Acceptance
from simserve.state.request import Request
from simserve.state.speculative_cohort import SpeculativeCohort


@dataclass(frozen=True)
class Speculation:
    """Proposals and their acceptance."""

    acceptance: Acceptance
    n_slots: int
    """Tokens beyond those stored that a request has blocks for before a step: its next one and the proposed ones."""

    @classmethod
    def drawn(cls, rates: tuple[float, ...], seed: int, n_slots: int) -> "Speculation":
        """Return a speculation with acceptances of these rates, drawn from a seed."""
        return cls(Acceptance(rates, seed), n_slots)


class SpeculatingBatchState(BatchState):
    """Batch state of requests that get several tokens per step."""

    cohort: SpeculativeCohort

    def speculate(self, how: Speculation) -> None:
        """Switch to a speculative cohort while no request decodes."""
        self.cohort = SpeculativeCohort(self.pool.block_size, how.acceptance, how.n_slots)
        self.view.decode_tokens = how.acceptance.n_proposed + 1

    def plan(self, now_ps: int, just_preempted: bool) -> StepPlan:
        """Return the scheduler's plan. Raises PolicyError."""
        cohort = self.cohort
        cohort.crossings[cohort.step % cohort.block_size] = cohort.blocks_to_grow(1)  # read by the parent class
        return super().plan(now_ps, just_preempted)

    def give_back(self, request: Request, kv_tokens: int) -> int:
        """Free the blocks of a request, including those for proposals, which hold nothing that a lookup could find."""
        n_kept = self.cohort.pop_kept_blocks(request)
        if request.reserved_blocks:
            self.pool.take(-n_kept, from_reserved=True)
        else:
            self.pool.release(n_kept)
        return super().give_back(request, kv_tokens) + n_kept


class SpeculatingCachingBatchState(SpeculatingBatchState, CachingBatchState):
    """Batch state with speculation and a prefix cache."""
