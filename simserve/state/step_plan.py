"""The plan of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simserve.state.request import Request

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
