"""Planner: what a built-in policy decides on a walk along the queue of a replica."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from mypy_extensions import i64

from simserve.integers import NEVER
from simserve.state.step_plan import Blocked, StepPlan
from simserve.state.view import ReplicaView
from simserve.state.walk import ViewWalk, Walk

SEATS: Final = 1
BLOCKS: Final = 2
BUDGET: Final = 3
WORDS: Final[tuple[Blocked | None, ...]] = (None, "seats", "blocks", "budget")
"""Why the head of the queue is not admitted, by number."""

MOST: Final = 1 << 40
"""More tokens, and requests, than any step has: larger limits are none."""


def limit(n: int | None) -> int:
    """Return a limit as a machine integer; None: there is none."""
    return MOST if n is None or n > MOST else n


class Planner:
    """What a built-in policy decides about the next step: one body for requests in columns and in views.

    `plan` is a pure function of the walk, and of the state of a policy that keeps any, which changes in the other
    methods. A copy begins anew.
    """

    def __init__(self) -> None:
        self.blocked: i64 = 0
        """Why the head of the queue is not admitted, by number; 0: it is, or there is none."""
        self.decodes = True
        """The decoding requests produce a token each in this step."""
        self.valid_steps: i64 = 0
        """Steps for which the plan holds; 0: until the batch changes."""
        self.reserves = False
        """The blocks of the longest output are reserved at admission."""
        self.preempts = False
        """A request is to be preempted at once, as the next chunk of a started prompt lacks blocks."""
        self.wake_ps: i64 = NEVER
        """It plans again then, whatever happens until then."""
        self.follows = False
        """It is told of each request that comes and goes, and is asked which one to preempt."""
        self.looks = False
        """It looks at requests as objects."""

    def __deepcopy__(self, _: dict[int, Any]) -> Planner:
        return self

    def plan(self, walk: Walk) -> None:
        """Plan the next step."""
        raise NotImplementedError

    def planned(self, view: ReplicaView) -> StepPlan:
        """Return the plan for a view, without a request to preempt."""
        walk = ViewWalk(view)
        self.plan(walk)
        return StepPlan(
            walk.chunks,
            self.decodes,
            walk.reserve_tokens if self.reserves else (),
            self.valid_steps or None,
            blocked_by=WORDS[self.blocked],
        )

    # -- calls to the planner of a policy that follows requests --------------------------------------------------------

    def committed(self, n_steps: i64, has_prefill: bool, blocked: i64) -> None:
        """Note that steps of a plan are over: how many decoded, whether they had prefill, and its `blocked`."""

    def admitted(self, member: Hashable) -> None:
        """Note that a request is about to get a slot."""

    def granted(self, member: Hashable) -> None:
        """Note that a request with a prompt of another replica is about to get a slot and blocks."""

    def computed(self, member: Hashable) -> None:
        """Note that a part of a prompt is computed."""

    def joined(self, member: Hashable, prompt_tokens: int, most_tokens: int, emitted_tokens: int) -> None:
        """Note that a request decodes from the next step on; most_tokens: of its answer."""

    def resumed(self, member: Hashable, prompt_tokens: int, most_tokens: int, emitted_tokens: int) -> None:
        """Note that a request decodes from the next step on with keys and values from elsewhere."""
        self.joined(member, prompt_tokens, most_tokens, emitted_tokens)

    def accepted(self, member: Hashable, n_tokens: int) -> None:
        """Note that a request has produced n_tokens more than one a step."""

    def left(self, member: Hashable) -> None:
        """Note that a decoding request has left, or that a first token was the last."""

    def requeued(self, member: Hashable, now_ps: int) -> None:
        """Note that a request has lost its slot, and waits again."""

    def gone(self, member: Hashable, *, is_ended: bool) -> None:
        """Note that a request has no slot any more: it has ended, or another replica decodes it."""

    def abandoned(self) -> None:
        """Note that a request in prefill is gone."""

    def abandoned_by(self, member: Hashable) -> None:
        """Note that the client of a request in prefill has given up."""
        self.abandoned()

    def preempted(self) -> None:
        """Note that the next decode step has room again."""

    def idle(self) -> None:
        """Note that no request runs or waits."""

    def check_blocks(self, n_blocks: int) -> None:
        """Raise PolicyError if a step takes more blocks than were free."""

    def victims(self) -> list[int]:
        """Return the requests that the plan preempts; empty: the one admitted last."""
        return []

    def first_back(self, members: list[int], now_ps: int) -> Hashable:
        """Return the request to bring back next from host memory, of those in the order in which they left."""
        return members[0]

    def steps_in_order(self, most_tokens: int) -> int | None:
        """Return decode steps for which the head of the queue surely stays the head; None: until others come or go."""
        return None

    def victim(self) -> Hashable | None:
        """Return the decoding request to preempt; None: the one admitted last, or the last started prompt where the
        policy keeps state."""
        return None
