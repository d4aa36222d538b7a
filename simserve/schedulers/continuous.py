"""Continuous batching, as in Orca: requests join and leave at every step; memory is reserved for the longest output."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Scheduler, StepPlan
from simserve.state.policies import ContinuousPlanner
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

    def __post_init__(self) -> None:
        self._planner = ContinuousPlanner(self.max_num_seqs)

    def rows_planner(self) -> ContinuousPlanner:
        """Return what decides."""
        return self._planner

    def plan(self, view: ReplicaView) -> StepPlan:
        """Admit in order while a slot and the blocks of the longest output are free."""
        return self._planner.planned(view)
