"""Chunked prefill: vLLM V1 and Sarathi-Serve. Decode first, prefill fills the budget."""

from collections import deque
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from simserve.schedulers.base import STRICT, Blocked, Scheduler, StepPlan
from simserve.state.fair_share import ByService, TokenCounters
from simserve.state.planner import WORDS
from simserve.state.policies import ChunkedPlanner
from simserve.state.queues import ByPriority, Waiting, came_at
from simserve.state.request import Request
from simserve.state.view import ReplicaView
from simserve.state.walk import ViewWalk

Weight = Annotated[float, Field(gt=0, le=1e6)]


@dataclass(config=STRICT)
class FairShares:
    """Token weights where tenants share a replica (virtual token counters)."""

    input_weight: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Weight of a prompt token; 1 in the paper."""
    output_weight: Weight = 2.0
    """Weight of an output token; 2 in the paper."""
    tenant_weights: dict[str, Weight] = Field(default_factory=dict)
    """Weights of tenants by name, 1 by default; a tenant of weight 2 is served twice as much as one of weight 1."""


@dataclass(config=STRICT)
class Chunked(Scheduler):
    """Every step decodes all running requests and gives the rest of a token budget to prompts.

    When the next chunk of a started prompt finds no blocks, the request admitted last is preempted, be it the prompt
    itself, and none is admitted in that step (vLLM V1, scheduler.py).

    Sources: Sarathi-Serve (OSDI '24); vLLM V1, which has these arguments, except vtc: "Fairness in Serving Large
    Language Models" (OSDI '24), algorithm 2, and section 4.3 for tenants of different weight.
    """

    budget_argument = "max_num_batched_tokens"
    slots_argument = "max_num_seqs"

    max_num_batched_tokens: PositiveInt = 2048
    """[tokens] Budget of a step, decode tokens included (vLLM `--max-num-batched-tokens`)."""
    max_num_seqs: PositiveInt = 256
    """Maximum running requests (vLLM `--max-num-seqs`)."""
    long_prefill_token_threshold: NonNegativeInt = 0
    """[tokens] Maximum of one prompt per step (vLLM `--long-prefill-token-threshold`); 0: limited only by the
    budget."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if the blocks of its whole prompt are free (as vLLM from 0.19 on); otherwise its first
    chunk's blocks suffice."""
    policy: Literal["fcfs", "priority", "vtc"] = "fcfs"
    """`fcfs`: first come, first served; `priority`: the lowest value goes first, the highest is preempted first; `vtc`:
    the least-served tenant first (vLLM `--scheduling-policy`, without vtc)."""
    vtc: FairShares | None = None
    """Token weights for policy vtc; null: as in the paper, with equal tenants."""

    priority_preemption_threshold: NonNegativeInt | None = None
    """For policy priority, the gap above which a running request is preempted for a waiting one; null: never (SGLang
    `--priority-scheduling-preemption-threshold`)."""

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
        most, reserves = self.long_prefill_token_threshold, self.scheduler_reserve_full_isl
        limits = self.max_num_batched_tokens, self.max_num_seqs, most or self.max_num_batched_tokens
        self._planner = ChunkedPlanner(*limits, reserves_prompt=reserves)

    @property
    def most_chunk(self) -> int:
        """The budget of a step."""
        return self.max_num_batched_tokens

    def queue(self) -> Waiting:
        """Return a queue ordered by arrival, by priority and then arrival, or by the tenants' service."""
        if self.policy == "priority":
            return ByPriority()
        return self._by_service if self.policy == "vtc" else deque()

    def steps_in_order(self, most_tokens: int) -> int | None:
        """Return decode steps for which the head surely stays the head: vtc's counters change with each."""
        return self._by_service.steps_in_order(most_tokens) if self.is_stateful else None

    def rows_planner(self) -> ChunkedPlanner | None:
        """Return what decides under policy fcfs."""
        return self._planner if self.policy == "fcfs" else None

    def plan(self, view: ReplicaView) -> StepPlan:
        """Walk the queue in order until tokens, slots or blocks run out."""
        if self.is_stateful:
            self._by_service.settle()
        planner, walk = self._planner, ViewWalk(view)
        planner.plan(walk)
        blocked_by = WORDS[planner.blocked]
        if blocked_by is None:
            return StepPlan(walk.chunks)
        if planner.preempts:
            return StepPlan(preempt=[self.victim(view)], blocked_by="blocks")  # it may be the prompt itself
        if self.policy == "priority":
            victim = self._to_preempt(walk.request, blocked_by, view)
            if victim is not None:
                return StepPlan(preempt=[victim])
        valid_steps = self.steps_in_order(view.decode_tokens) if blocked_by == "blocks" else None
        return StepPlan(prefill=walk.chunks, valid_steps=valid_steps, blocked_by=blocked_by)

    def victim(self, view: ReplicaView) -> Request:
        """Return the request admitted last; with policy priority, the latest arrival of the worst priority."""
        if self.policy != "priority":
            return super().victim(view)
        return max(view.running, key=lambda request: (request.priority, came_at(request)))

    def first_back(self, swapped: Collection[Request]) -> Request:
        """Return the request that the queue's order puts first, where there is one; its prompt is charged already."""
        if not self.orders:
            return super().first_back(swapped)
        if self.policy == "priority":
            return min(swapped, key=lambda request: (request.priority, came_at(request)))
        return min(swapped, key=lambda request: (self._counters[request.tenant], came_at(request)))

    def _to_preempt(self, request: Request, blocked_by: Blocked, view: ReplicaView) -> Request | None:
        """Return the worst running request if it must yield to a waiting one, of a priority better by the threshold."""
        if blocked_by == "budget" or not view.running or not request.is_new:
            return None
        if self.priority_preemption_threshold is None or view.just_preempted:
            return None
        worst = self.victim(view)
        return worst if worst.priority > request.priority + self.priority_preemption_threshold else None

    # -- calls from the engine with policy vtc --------------------------------------------------------------------

    def on_admit(self, request: Request) -> None:
        """Charge the prompt to the tenant."""
        self._counters.admit(request)

    def on_commit(self, n_steps: int, has_prefill: bool, blocked_by: Blocked | None) -> None:
        """Charge the tokens of the decoding requests."""
        self._counters.advance(n_steps)

    def on_join(self, request: Request) -> None:
        """Charge the first token and start decoding."""
        self._counters.join(request)

    def on_resume(self, request: Request) -> None:
        """Start decoding."""
        self._counters.join(request, 0)

    def on_accept(self, request: Request, n_tokens: int) -> None:
        """Charge accepted tokens."""
        self._counters.accept(request, n_tokens)

    def on_leave(self, request: Request) -> None:
        """Stop decoding."""
        self._counters.leave(request)
