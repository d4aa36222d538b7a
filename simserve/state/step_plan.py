"""The plan of a step, and the walk along the queue that makes it; apart from policies, as these cannot be compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simserve.state.request import WAITING, Request
from simserve.state.view import ReplicaView

Blocked = Literal["seats", "blocks", "budget"]


@dataclass(slots=True, init=False)
class StepPlan:
    """The work of the next step."""

    prefill: Sequence[tuple[Request, int]]
    """Requests and the prompt tokens that each computes in this step."""
    decode: bool
    """The decoding requests produce a token each in this step."""
    reserve_tokens: Sequence[int]
    """For a policy that reserves: KV tokens to reserve for each new request of `prefill`."""
    valid_steps: int | None
    """Steps for which the plan holds; None: until the batch changes."""
    wake_at_ps: int | None
    """Plan again at the first step boundary from this instant on."""
    preempt: Sequence[Request]
    """Running requests to preempt. If there are any, the rest of the plan is ignored: they are preempted, and `plan` is
    called again at once; with blocked_by "blocks" as after any preemption for lack of blocks (`just_preempted`)."""
    blocked_by: Blocked | None
    """Why the head of the queue is not admitted. It is a promise: until a running request finishes or is preempted, no
    arrival behind the head would be started either."""

    def __init__(  # fast: a generated one is not compiled
        self,
        prefill: Sequence[tuple[Request, int]] = (),
        decode: bool = True,
        reserve_tokens: Sequence[int] = (),
        valid_steps: int | None = None,
        wake_at_ps: int | None = None,
        preempt: Sequence[Request] = (),
        blocked_by: Blocked | None = None,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.reserve_tokens = reserve_tokens
        self.valid_steps = valid_steps
        self.wake_at_ps = wake_at_ps
        self.preempt = preempt
        self.blocked_by = blocked_by


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """Limits of a walk along the queue in order, with decode first and a budget for the rest."""

    budget_tokens: int
    """Most tokens of a step."""
    slots: int
    """Most running requests."""
    most_chunk_tokens: int
    """Most tokens of one prompt in a step."""
    reserves_prompt: bool
    """A new request needs the blocks of its whole prompt; otherwise those of its chunk."""


def chunks_within(
    view: ReplicaView, budget_tokens: int, free_slots: int, most_tokens: int, reserves_prompt: bool
) -> tuple[list[tuple[Request, int]], Request | None, Blocked | None]:
    """Walk the queue in order until tokens, slots or blocks run out, with at most most_tokens for a request.

    Returns requests with their prompt tokens, and the request that was left out with the reason. A new request needs
    the blocks of its whole prompt if `reserves_prompt`, else those of its chunk.
    """
    free_blocks = view.free_blocks
    chunks: list[tuple[Request, int]] = []
    for request in view.queue:
        if budget_tokens <= 0:
            return chunks, request, "budget"
        n_tokens = left_tokens = request.prefill_left_tokens
        if n_tokens > most_tokens:  # fast: without a call of min
            n_tokens = most_tokens
        if n_tokens > budget_tokens:
            n_tokens = budget_tokens
        if request.phase is WAITING:  # fast: is_new, without a call
            if free_slots <= 0:
                return chunks, request, "seats"
            free_slots -= 1
            n_blocks = view.blocks_to_admit(request, left_tokens if reserves_prompt else n_tokens)
            if n_blocks > free_blocks or view.just_preempted:
                return chunks, request, "blocks"
        else:
            n_blocks = view.blocks_for_chunk(request, n_tokens)
            if n_blocks > free_blocks:
                return chunks, request, "blocks"
        free_blocks -= n_blocks
        chunks.append((request, n_tokens))
        budget_tokens -= n_tokens
    return chunks, None, None
