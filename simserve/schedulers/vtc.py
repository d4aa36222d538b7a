"""Fair shares for tenants: chunked prefill in which the tenant who was served least is next (virtual token counters)."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, StepPlan
from simserve.schedulers.chunked import Chunked
from simserve.state.fair_share import ByService, TokenCounters
from simserve.state.queues import Waiting
from simserve.state.request import Request
from simserve.state.view import ReplicaView

Weight = Annotated[float, Field(gt=0, le=1e6)]
NoWeight = Annotated[float, Field(ge=0, le=1e6)]


@dataclass(config=STRICT)
class Vtc(Chunked):
    """As chunked, but of those who wait it takes the first of the tenant with the lowest counter of tokens served.

    Nobody is held back while seats and blocks are free, and two tenants who always have somebody waiting are served
    alike, but for a bounded difference. Source: "Fairness in Serving Large Language Models" (OSDI '24), algorithm 2,
    and section 4.3 for weights of tenants.
    """

    follows = True

    policy: Literal["fcfs"] = "fcfs"
    """Among the requests of a tenant."""
    input_weight: NoWeight = 1.0
    """What a prompt token counts; 1 in the paper."""
    output_weight: Weight = 2.0
    """What an output token counts; 2 in the paper."""
    tenant_weights: dict[str, Weight] = Field(default_factory=dict)
    """A tenant of weight 2 is served twice as much as one of weight 1, which those have who are not named."""

    def __post_init__(self) -> None:
        self.orders = True
        self._counters = TokenCounters(self.input_weight, self.output_weight, self.tenant_weights)
        self._waiting = ByService(self._counters)

    def queue(self) -> Waiting:
        """A line a tenant."""
        return self._waiting

    def plan(self, view: ReplicaView) -> StepPlan:
        """As chunked; where blocks keep the head out, until another may be the head."""
        self._waiting.settle()
        plan = super().plan(view)
        if plan.blocked_by == "blocks" and not plan.prefill:
            plan.valid_steps = self._waiting.steps_in_order()
        return plan

    # -- what the engine tells ------------------------------------------------------------------------------------

    def on_admit(self, request: Request) -> None:
        """Its tenant is charged for its prompt."""
        self._counters.admit(request)

    def on_commit(self, n_steps: int, has_prefill: bool, blocked_by: Blocked | None) -> None:
        """Who decodes has had so many tokens."""
        self._counters.advance(n_steps)

    def on_join(self, request: Request) -> None:
        """It has had its first token, and decodes."""
        self._counters.join(request)

    def on_leave(self, request: Request) -> None:
        """It decodes no more."""
        self._counters.leave(request)
