"""Chunked prefill: vLLM V1 and Sarathi-Serve. Decode first, prefill fills the budget."""

from collections import deque
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.fair_share import ByService, TokenCounters
from simserve.state.queues import ByPriority, Waiting, came_at
from simserve.state.request import Request
from simserve.state.view import ReplicaView

Weight = Annotated[float, Field(gt=0, le=1e6)]


@dataclass(config=STRICT)
class FairShares:
    """What tokens count where tenants share a replica (virtual token counters)."""

    input_weight: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Of a prompt token; 1 in the paper."""
    output_weight: Weight = 2.0
    """Of an output token; 2 in the paper."""
    tenant_weights: dict[str, Weight] = Field(default_factory=dict)
    """A tenant of weight 2 is served twice as much as one of weight 1, which those have who are not named."""


@dataclass(config=STRICT)
class Chunked(Scheduler):
    """Every step decodes all running requests and gives what is left of a token budget to prompts.

    Sources: Sarathi-Serve (OSDI '24); vLLM V1, whose knobs these are but for vtc: "Fairness in Serving Large Language
    Models" (OSDI '24), algorithm 2, and section 4.3 for tenants of different weight.
    """

    max_num_batched_tokens: PositiveInt = 2048
    """Tokens a step computes at most, decoded ones included."""
    max_num_seqs: PositiveInt = 256
    """Requests that run at once at most."""
    long_prefill_token_threshold: NonNegativeInt = 0
    """Tokens of one prompt in a step at most; 0: no limit but the budget."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if the blocks of its whole prompt are free; otherwise those of its first chunk do."""
    policy: Literal["fcfs", "priority", "vtc"] = "fcfs"
    """priority: the lowest value is first, and the highest preempted first; vtc: the tenant who was served least."""
    vtc: FairShares | None = None
    """What tokens count for policy vtc; left out: as in the paper, and all tenants alike."""

    priority_preemption_threshold: NonNegativeInt | None = None
    """With policy priority: how much worse a running request is that gives way to who waits; left out: none does."""

    def __post_init__(self) -> None:
        if self.priority_preemption_threshold is not None and self.policy != "priority":
            raise ValueError(f"priority_preemption_threshold goes with policy priority, got policy {self.policy}")
        if self.vtc is not None and self.policy != "vtc":
            raise ValueError(f"vtc goes with policy vtc, got policy {self.policy}")
        self.orders = self.policy != "fcfs"
        self.is_stateful = self.policy == "vtc"
        shares = self.vtc or FairShares()
        self._counters = TokenCounters(shares.input_weight, shares.output_weight, shares.tenant_weights)
        self._by_service = ByService(self._counters)

    def queue(self) -> Waiting:
        """In the order of arrival, of priority and then arrival, or of what tenants were served."""
        if self.policy == "priority":
            return ByPriority()
        return self._by_service if self.policy == "vtc" else deque()

    def plan(self, view: ReplicaView) -> StepPlan:
        """Walk the queue in order until tokens, seats or blocks run out."""
        if self.is_stateful:
            self._by_service.settle()
        budget_tokens = self.max_num_batched_tokens - view.n_decoding * view.decode_tokens
        free_slots = self.max_num_seqs - view.n_running
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
                if free_slots <= 0:
                    blocked_by = "seats"
                    break
                free_slots -= 1
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
        if blocked_by and self.policy == "priority":
            in_the_way = self._in_the_way(request, blocked_by, view)
            if in_the_way is not None:
                return StepPlan(preempt=[in_the_way])
        valid_steps = self._by_service.steps_in_order() if self.is_stateful and blocked_by == "blocks" else None
        return StepPlan(prefill=chunks, valid_steps=valid_steps, blocked_by=blocked_by)

    def victim(self, view: ReplicaView) -> Request:
        """The one admitted last; by priority the one of the worst, and of these the one who came last."""
        if self.policy != "priority":
            return super().victim(view)
        return max(view.running, key=lambda request: (request.priority, came_at(request)))

    def _in_the_way(self, request: Request, blocked_by: Blocked, view: ReplicaView) -> Request | None:
        """The worst of those who run, where one whom blocks keep from going on has a right to its blocks; or one whom
        seats or blocks keep out, to whom it is worse by enough."""
        if blocked_by == "budget" or not view.running:
            return None
        if not request.is_new:
            return self.victim(view) if len(view.running) > 1 else None
        if self.priority_preemption_threshold is None or view.just_preempted:
            return None
        worst = self.victim(view)
        return worst if worst.priority > request.priority + self.priority_preemption_threshold else None

    # -- what the engine tells, of policy vtc ---------------------------------------------------------------------

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
