"""Scheduler: plan(view) -> StepPlan. What a policy promises, and what it may return."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass as dataclass_of_policy

from simserve.state.queues import Waiting
from simserve.state.request import Request
from simserve.state.view import ReplicaView

STRICT = ConfigDict(extra="forbid")
"""For the pydantic dataclass of a policy: its fields are its YAML, and unknown ones are mistakes."""

SEATS = ("max_num_seqs", "max_batch_size", "max_running_requests", "batch_size")
"""What policies call the requests that run at once."""

NO_LIMIT = 1 << 62

Blocked = Literal["seats", "blocks", "budget"]


@dataclass(slots=True)
class StepPlan:
    """What the next step does."""

    prefill: Sequence[tuple[Request, int]] = ()
    """Requests and the prompt tokens each of them computes in this step."""
    decode: bool = True
    """The decoding requests produce a token each in this step."""
    reserve_tokens: Sequence[int] = ()
    """For a policy that reserves: KV tokens to set aside for each new request of `prefill`."""
    valid_steps: int | None = None
    """Ask again after so many steps; None: when members change."""
    wake_at_ps: int | None = None
    """Ask again at the first step boundary from this instant on."""
    preempt: Sequence[Request] = ()
    """Running requests that give seats and blocks to one who waits. If there are any, nothing else of the plan counts:
    they are preempted, and it is asked again at once."""
    blocked_by: Blocked | None = None
    """What keeps the head of the queue out. Saying so is a promise: until a member finishes or is preempted,
    nobody who arrives behind that head would be started either."""


class Scheduler:
    """A policy: which prompt chunks the next step computes, and whether it decodes.

    `plan` is a pure function of the view, and of what a policy that `follows` was told. It is asked when something
    waits for prefill and the members of the replica have changed; with an empty queue the engine simply decodes on.
    """

    reserves: bool = False
    """Blocks for the longest possible output are set aside on admission (each plan says how many tokens)."""
    runs_to_completion: ClassVar[bool] = False
    """Prompts are padded to one length and finished requests stay, at full cost, until the whole batch is done."""
    requeues_last: ClassVar[bool] = False
    """Who is preempted waits behind all others; otherwise before them."""
    is_stateful: bool = False
    """It keeps state of its own, which changes only when the engine calls the `on_...` methods below."""
    orders: bool = False
    """Its queue is another than first come, first served: who comes may be before who waits."""
    stream: bool = True
    """Tokens leave as they come; otherwise the answer leaves whole."""

    @property
    def max_running(self) -> int:
        """Requests that run at once at most, as far as its arguments say."""
        given = (getattr(self, name, None) for name in SEATS)
        return next((slots for slots in given if slots is not None), NO_LIMIT)

    def plan(self, view: ReplicaView) -> StepPlan:
        """What the next step does."""
        raise NotImplementedError

    def victim(self, view: ReplicaView) -> Request:
        """Who gives its blocks back when they run out: by default the one admitted last."""
        return next(reversed(view.running))  # type: ignore[call-overload, no-any-return]

    def queue(self) -> Waiting:
        """A new queue of those who wait, in the order in which it takes them; of a policy that orders an `Ordered`."""
        return deque()

    def never_fits(self, prompt_tokens: int) -> str | None:
        """Why this policy can never start a prompt of that length; None when it can."""
        return None

    # -- what the engine tells a policy that follows -----------------------------------------------------------------

    def on_commit(self, n_steps: int, has_prefill: bool, blocked_by: Blocked | None) -> None:
        """Steps of one plan are over: so many that decoded, with prompts or not, and what that plan was blocked by.

        A stretch may be told in one piece or in several: the state after it must be the same.
        """

    def on_admit(self, request: Request) -> None:
        """A request has got a seat, for the first time or after a preemption."""

    def on_join(self, request: Request) -> None:
        """A request has had a token at the end of its prefill, and decodes from the next step on."""

    def on_leave(self, request: Request) -> None:
        """A request that decoded, or whose first token was its last, has finished, is preempted, or has left because
        its client gave up."""

    def on_abandon(self, request: Request) -> None:
        """A request whose prompt was being computed has left because its client gave up."""

    def on_preempt(self) -> None:
        """Room is made for the next decode step: all who had to go have left."""

    def on_idle(self) -> None:
        """Nobody runs and nobody waits."""


@dataclass_of_policy(config=STRICT)
class PaddedBatches(Scheduler):
    """What static and dynamic batching share: batches padded to one length that run until the last answer is done.

    KV for the padded prompt and the longest max_tokens of the batch is set aside for each request.
    """

    reserves = True
    runs_to_completion = True

    batch_size: PositiveInt = 32
    """Requests in a batch at most."""
    stream: bool = False
    """Give tokens as they come, rather than all answers when the batch is done."""

    def padded_batch(self, view: ReplicaView) -> StepPlan:
        """The longest run of waiting requests, up to batch_size, whose padded batch fits the free blocks."""
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
