"""Scheduler: plan(view) -> StepPlan."""

from collections import deque
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, ClassVar

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass as dataclass_of_policy

from simserve.state.planner import Planner
from simserve.state.queues import Waiting
from simserve.state.request import Request
from simserve.state.step_plan import Blocked as Blocked
from simserve.state.step_plan import StepPlan as StepPlan
from simserve.state.view import ReplicaView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""


class Scheduler:
    """A policy: which prompt chunks the next step computes, and whether it decodes.

    `plan` is a pure function of the view, and of the state of a policy that sets `is_stateful`. The engine calls it
    when requests need prefill and the batch has changed; with an empty queue it simply decodes on.
    """

    reserves: bool = False
    """Blocks for the longest possible output are reserved at admission (each plan gives the tokens)."""
    without_reserving: ClassVar[str | None] = None
    """Its setting under which it reserves nothing, or less; None: it has none."""
    shares_blocks: ClassVar[bool] = True
    """A request may hold blocks that others have computed; otherwise it has memory of its own, in one piece."""
    runs_to_completion: ClassVar[bool] = False
    """Prompts are padded to one length, and finished requests stay, at full cost, until the whole batch is done."""
    requeues_last: ClassVar[bool] = False
    """Preempted requests are queued last; otherwise first."""
    caches_answers: ClassVar[bool] = True
    """Preempted requests find also what they decoded since their prefill."""
    is_stateful: bool = False
    """It keeps state, which changes only in the `on_...` methods below."""
    orders: bool = False
    """Its queue is not first come, first served: an arrival may go before a waiting request."""
    stream: bool = True
    """Tokens are streamed; otherwise an answer leaves whole."""

    budget_argument: ClassVar[str | None] = None
    """Its argument for the most tokens of a step; None: it has none."""
    slots_argument: ClassVar[str | None] = None
    """Its argument for the most running requests; None: it has none."""
    budgets_decode: ClassVar[bool] = True
    """The budget counts a token of each decoding request, so it may not be less than the slots."""

    role_arguments: ClassVar[Mapping[str, Any]] = {}
    """Its defaults in pools with a role, where a prompt and its answer are on different replicas."""

    @property
    def budget_tokens(self) -> int | None:
        """Most tokens of a step, which size activations; None: no limit of its own."""
        return None if self.budget_argument is None else getattr(self, self.budget_argument)

    @property
    def max_running(self) -> int | None:
        """Most running requests; None: no limit of its own."""
        return None if self.slots_argument is None else getattr(self, self.slots_argument)

    @property
    def recv_interval(self) -> int:
        """Decode steps after which it looks for arrivals; it also does after a step with prompts."""
        return 1

    @property
    def most_chunk(self) -> int | None:
        """Most tokens of one prompt that a step ever computes; None: prompts are computed whole."""
        return None

    @property
    def most_counted_on(self) -> int | None:
        """Most output tokens that it keeps room for as it admits a request, without blocks reserved; None: it does
        not look ahead."""
        return None

    def plan(self, view: ReplicaView) -> StepPlan:
        """Return the plan of the next step."""
        raise NotImplementedError

    def rows_planner(self) -> Planner | None:
        """Return what decides for requests in columns, too; None: the policy only plans for views."""
        return None

    def victim(self, view: ReplicaView) -> Request:
        """Return the request to preempt when blocks run out: by default the one admitted last."""
        return next(reversed(view.running))  # type: ignore[call-overload, no-any-return]

    def first_back(self, swapped: Collection[Request]) -> Request:
        """Return the request to bring back next from host memory: by default the one that left first."""
        return next(iter(swapped))

    def queue(self) -> Waiting:
        """Return a new queue in the order of admission; a policy that `orders` returns an `Ordered`."""
        return deque()

    def steps_in_order(self, most_tokens: int) -> int | None:
        """Return decode steps, at least 1, for which the head of an ordered queue surely stays the head, where a
        request gets up to most_tokens a step; None: until an arrival, admission or finish."""
        return None

    def never_fits(self, prompt_tokens: int) -> str | None:
        """Return why this policy can never start a prompt of this length; None if it can."""
        return None

    # -- calls from the engine to a stateful policy ------------------------------------------------------------------

    def on_commit(self, n_steps: int, has_prefill: bool, blocked_by: Blocked | None) -> None:
        """Called when steps of a plan are over: n_steps that decoded, whether they had prefill, its blocked_by. Each
        decoding request has produced a token a step; `on_accept` tells of more.

        A step run may be reported whole or in pieces: the state after it must be the same.
        """

    def on_admit(self, request: Request) -> None:
        """Called when a request gets a slot, for the first time or after a preemption."""

    def on_join(self, request: Request) -> None:
        """Called when a request has a token from its prefill; it decodes from the next step on."""

    def on_resume(self, request: Request) -> None:
        """Called when a request decodes from the next step on with keys and values from host memory or from another
        replica, without a token from a prefill here. By default like `on_join`."""
        self.on_join(request)

    def on_accept(self, request: Request, n_tokens: int) -> None:
        """Called with speculation, right after `on_commit`: a request has produced n_tokens more than one a step."""

    def on_leave(self, request: Request) -> None:
        """Called when a decoding request finishes, is preempted or times out, or when a first token is the last."""

    def on_abandon(self, request: Request) -> None:
        """Called when a request in prefill times out."""

    def on_preempt(self) -> None:
        """Called when the next decode step has room again: all preempted requests have left."""

    def on_idle(self) -> None:
        """Called when no request runs or waits."""


@dataclass_of_policy(config=STRICT)
class PaddedBatches(Scheduler):
    """Base of static and dynamic batching: batches padded to one length that run until the last answer is done.

    KV for the padded prompt and the longest max_tokens of the batch is reserved for each request.
    """

    reserves = True
    shares_blocks = False
    runs_to_completion = True
    slots_argument = "batch_size"

    batch_size: PositiveInt = 32
    """Maximum requests in a batch."""
    stream: bool = False
    """Stream tokens, rather than return all answers when the batch is done."""

    def padded_batch(self, view: ReplicaView) -> StepPlan:
        """Plan the longest run of waiting requests, up to batch_size, that fits the free blocks when padded."""
        batch: list[Request] = []
        prompt_tokens = answer_tokens = 0
        for request in islice(view.waiting, self.batch_size):
            prompt = max(prompt_tokens, request.prompt_tokens)
            answer = max(answer_tokens, request.max_tokens)
            if (len(batch) + 1) * view.blocks_for(prompt + answer) > view.free_blocks:
                break
            prompt_tokens, answer_tokens = prompt, answer
            batch.append(request)
        return StepPlan(
            prefill=[(request, prompt_tokens) for request in batch],
            reserve_tokens=[prompt_tokens + answer_tokens] * len(batch),
        )
