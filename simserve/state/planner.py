"""Walk: the queue of a replica as a built-in policy walks along it; Planner: what such a policy decides on it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final

from mypy_extensions import i64

from simserve.integers import NEVER
from simserve.state.request import WAITING, Request
from simserve.state.step_plan import Blocked, StepPlan
from simserve.state.view import ReplicaView

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


class Walk:
    """Requests that need prefill, between two steps: partly computed ones first, then waiting ones in order.

    The walk is at one of them; numbers are those of the replica before any of them is taken.
    """

    def __init__(self) -> None:
        self.n_decoding: i64 = 0
        self.decode_tokens: i64 = 1
        """Tokens of the budget that each decoding request takes."""
        self.n_running: i64 = 0
        """Slots in use, ..."""
        self.n_members: i64 = 0
        """... and those of requests that can be preempted."""
        self.n_prefilling: i64 = 0
        """Partly computed prompts."""
        self.free_blocks: i64 = 0
        """Free blocks after the decoding requests have taken theirs for the next step."""
        self.total_blocks: i64 = 0
        self.block_size: i64 = 0
        self.max_model_len: i64 = 0
        self.just_preempted = False
        """A request was preempted at this very boundary, as blocks ran out."""
        self.is_new = False
        """The request has no slot and no blocks."""

    def next(self) -> bool:
        """Go to the next request; return whether there is one."""
        raise NotImplementedError

    def skip_started(self) -> None:
        """Go to the last of the partly computed prompts, so that the next request is the first that waits."""
        raise NotImplementedError

    def take(self, n_tokens: i64, reserve_tokens: i64) -> None:
        """Let the step compute so many tokens of the request, which reserves blocks for others if the policy does."""
        raise NotImplementedError

    # -- the request ---------------------------------------------------------------------------------------------------

    def left_tokens(self) -> i64:
        """Return the tokens to compute before it can produce its next one, without its prefix cache hit."""
        raise NotImplementedError

    def new_tokens(self) -> i64:
        """Return the most tokens that it can still produce."""
        raise NotImplementedError

    def most_tokens(self) -> i64:
        """Return the most tokens that it can ever store: its prompt and the longest answer."""
        raise NotImplementedError

    def blocks_to_admit(self, n_tokens: i64) -> i64:
        """Return the free blocks that the next n_tokens of a new request take."""
        raise NotImplementedError

    def blocks_for_chunk(self, n_tokens: i64) -> i64:
        """Return the blocks that the next n_tokens begin."""
        raise NotImplementedError

    def tokens_of_hit(self) -> i64:
        """Return the tokens that would fill the free blocks which a new request takes besides those for its chunks."""
        raise NotImplementedError

    def missing_block(self) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        raise NotImplementedError

    # -- the replica ---------------------------------------------------------------------------------------------------

    def blocks_for(self, n_tokens: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever holds."""
        raise NotImplementedError

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the tokens that n_blocks hold."""
        raise NotImplementedError


class ViewWalk(Walk):
    """The walk along the queue of a view, with requests as objects."""

    def __init__(self, view: ReplicaView) -> None:
        super().__init__()
        self._view = view
        self._queue: Iterator[Request] = iter(view.queue)
        self.n_decoding, self.decode_tokens, self.n_running = view.n_decoding, view.decode_tokens, view.n_running
        self.n_members, self.n_prefilling = len(view.running), len(view.prefilling)
        self.free_blocks, self.total_blocks, self.block_size = view.free_blocks, view.total_blocks, view.block_size
        self.max_model_len, self.just_preempted = view.max_model_len, view.just_preempted
        self.request: Any = None
        """The request that the walk is at."""
        self.chunks: list[tuple[Request, int]] = []
        """Requests that were taken, each with its tokens, and ..."""
        self.reserve_tokens: list[int] = []
        """... the tokens that each reserves blocks for."""

    def next(self) -> bool:
        """Go to the next request; return whether there is one."""
        for request in self._queue:
            self.request = request
            self.is_new = request.phase is WAITING
            return True
        return False

    def skip_started(self) -> None:
        """Go to the last of the partly computed prompts, so that the next request is the first that waits."""
        self._queue = iter(self._view.waiting)

    def take(self, n_tokens: i64, reserve_tokens: i64) -> None:
        """Let the step compute so many tokens of the request, which reserves blocks for others if the policy does."""
        self.chunks.append((self.request, n_tokens))
        self.reserve_tokens.append(reserve_tokens)

    def left_tokens(self) -> i64:
        """Return the tokens to compute before it can produce its next one, without its prefix cache hit."""
        request: Request = self.request
        return request.prefill_left_tokens

    def new_tokens(self) -> i64:
        """Return the most tokens that it can still produce."""
        request: Request = self.request
        return request.max_tokens - request.emitted_tokens

    def most_tokens(self) -> i64:
        """Return the most tokens that it can ever store: its prompt and the longest answer."""
        request: Request = self.request
        return request.prompt_tokens + request.max_tokens

    def blocks_to_admit(self, n_tokens: i64) -> i64:
        """Return the free blocks that the next n_tokens of a new request take."""
        return self._view.blocks_to_admit(self.request, n_tokens)

    def blocks_for_chunk(self, n_tokens: i64) -> i64:
        """Return the blocks that the next n_tokens begin."""
        return self._view.blocks_for_chunk(self.request, n_tokens)

    def tokens_of_hit(self) -> i64:
        """Return the tokens that would fill the free blocks which a new request takes besides those for its chunks."""
        return self._view.tokens_of_hit(self.request)

    def missing_block(self) -> int | None:
        """Return the id of the first whole block to compute; None: all are there, or have no id."""
        return self._view.missing_block(self.request)

    def blocks_for(self, n_tokens: i64) -> i64:
        """Return the most blocks that a request of n_tokens ever holds."""
        return self._view.blocks_for(n_tokens)

    def tokens_in(self, n_blocks: i64) -> i64:
        """Return the tokens that n_blocks hold."""
        return self._view.tokens_in(n_blocks)


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

    # -- calls to the planner of a policy with state -------------------------------------------------------------------

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
