"""Views: what policies see of a replica. Policies only read them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from mypy_extensions import mypyc_attr

from simserve.state.layer_blocks import LayerBlocks
from simserve.state.request import Finder, Request


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True)
class ReplicaView:
    """A replica between two steps, as its scheduler sees it."""

    waiting: Collection[Request]
    """Waiting requests in the order of arrival, with preempted ones first, or last if the policy says so; or in the
    order of the policy's own `queue`."""
    prefilling: Sequence[Request]
    """Requests with a partly computed prompt, in the order of admission."""
    running: Collection[Request]
    """Requests with a slot, in the order of admission."""
    total_blocks: int
    block_size: int
    max_model_len: int
    now_ps: int = 0
    n_decoding: int = 0
    n_running: int = 0
    """Slots in use."""
    free_blocks: int = 0
    """Free blocks after the decoding requests have taken theirs for the next step."""
    just_preempted: bool = False
    """A request was preempted at this very boundary, as blocks ran out."""
    decode_tokens: int = 1
    """Tokens of the budget that each decoding request takes per step: one, plus the proposed ones."""
    layers: LayerBlocks | None = None
    """Blocks by group of layers; None: all layers keep all tokens."""
    finder: Finder | None = None
    """The prefix cache; None: blocks are not shared."""

    @property
    def queue(self) -> Iterable[Request]:
        """Requests that need prefill: partly computed ones first, then waiting ones."""
        return chain(self.prefilling, self.waiting) if self.prefilling else self.waiting

    def blocks_for(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds."""
        return -(-n_tokens // self.block_size) if self.layers is None else self.layers.most(n_tokens)

    def tokens_in(self, n_blocks: int) -> int:
        """Return the tokens that n_blocks hold, if no window frees any of them."""
        return n_blocks * self.block_size if self.layers is None else self.layers.room(n_blocks)

    def tokens_of_hit(self, request: Request) -> int:
        """Return the tokens that would fill the free blocks which a new request takes besides those for its chunks:
        idle ones of its cache hit, and states."""
        layers, n_blocks = self.layers, request.idle_hit_blocks
        if layers is None:
            return n_blocks * self.block_size
        return layers.tokens_to_fill(n_blocks + layers.n_states)

    def blocks_to_admit(self, request: Request, n_tokens: int | None = None) -> int:
        """Return the free blocks that the first n_tokens of a new request take, by default its whole prefill: blocks to
        fill, and idle blocks of its cache hit."""
        left_tokens = request.prefill_left_tokens if n_tokens is None else n_tokens
        if self.layers is not None:
            n_found = request.prompt_tokens + request.emitted_tokens - request.prefill_left_tokens
            return self.layers.most(n_found + left_tokens, n_found) + request.idle_hit_blocks
        n_blocks = -(-left_tokens // self.block_size)
        return n_blocks if request.finder is None else n_blocks + request.idle_hit_blocks

    def blocks_for_chunk(self, request: Request, n_tokens: int) -> int:
        """Return the blocks that the next n_tokens of a prefill begin."""
        done = request.prefilled_tokens
        if self.layers is not None:
            return self.layers.begun(done, n_tokens)
        return -(-(done + n_tokens) // self.block_size) - -(-done // self.block_size)

    def missing_block(self, request: Request) -> int | None:
        """Return the id of the first whole block of a request's prefill that is not cached: equal ids, equal contents.
        None: all are cached, or their contents are shared with no request."""
        return None if self.finder is None else self.finder.missing(request)


class LoadView(Protocol):
    """A replica as a router sees it: live, even mid-step, or as of the last refresh."""

    @property
    def id(self) -> int:
        """Id of the member: stable for the run, never reused; the number of the replica in every table."""

    @property
    def n_outstanding(self) -> int:
        """Requests sent there that have not ended."""

    @property
    def n_waiting(self) -> int:
        """Outstanding requests without a step yet, or preempted."""

    @property
    def total_blocks(self) -> int:
        """KV blocks in total."""

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""

    @property
    def block_tokens(self) -> int | None:
        """The block size, of which `request.chains` has the ids; None: no prefix caching, and requests may lack ids."""

    def blocks_for(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds there."""

    def held_blocks(self) -> int:
        """Return the KV blocks used or reserved, including those of the step in flight."""

    def found_tokens(self, request: Request) -> int:
        """Return the prompt tokens in the replica's prefix cache now; 0 without one."""


FEW = 16
"""Members at all of which a look takes no longer than the index."""


@mypyc_attr(native_class=False)  # a tuple
class MemberViews(tuple[LoadView, ...]):
    """Views of the ready members, in the order of joining; finds the least busy without a look at all of them.

    Invariant: once asked, each view is counted with at most its number of requests. Members say when they have fewer
    (`fewer`); that one has more is found out when it is the first of those with the fewest.
    """

    def __init__(self, _: Iterable[LoadView]) -> None:
        self.watch: Callable[[], None] = lambda: None
        """Called before the first answer: from then on `fewer` or `forget` follow each change to fewer requests."""
        self._counted: list[int] = []
        """Number of requests with which each view is counted; empty until asked."""
        self._with: list[int] = []
        """Places of the views counted with n requests, as the bits of an integer, by n.

        fast: one small object for all views, where entries of a heap would be many.
        """
        self._least = 0
        """No view is counted with fewer requests."""
        self._places: dict[int, int] = {}
        """Places by member id."""

    def least_busy(self) -> int:
        """Return the place of the view with the fewest outstanding requests, the first on a tie. Needs a view."""
        counted, n_requests = self._counted, self._least
        if not counted:
            self.watch()
            self._places = {view.id: place for place, view in enumerate(self)}
            counted += [0] * len(self)
            self._with, n_requests = [(1 << len(self)) - 1], 0
        places_with = self._with
        while True:
            places = places_with[n_requests]
            if not places:
                n_requests += 1
                continue
            bit = places & -places
            place = bit.bit_length() - 1
            n_now = self[place].n_outstanding
            if n_now == n_requests:
                self._least = n_requests
                return place
            places_with[n_requests] = places ^ bit
            self._count(place, bit, n_now)

    def fewer(self, member: int, n_requests: int) -> None:
        """Note that a member has fewer requests than before."""
        place = self._places[member]
        n_counted = self._counted[place]
        if n_requests < n_counted:
            bit = 1 << place
            self._with[n_counted] ^= bit
            self._count(place, bit, n_requests)
            if n_requests < self._least:
                self._least = n_requests

    def forget(self) -> None:
        """Look at all views again."""
        self._counted = []

    def _count(self, place: int, bit: int, n_requests: int) -> None:
        """Count a view, at a place of this bit, with a number of requests."""
        places_with = self._with
        if n_requests >= len(places_with):
            places_with += [0] * (n_requests + 1 - len(places_with))
        places_with[n_requests] |= bit
        self._counted[place] = n_requests


def least_busy(views: Sequence[LoadView]) -> int:
    """Return the place of the view with the fewest outstanding requests, the first on a tie. Needs a view."""
    if len(views) > FEW and isinstance(views, MemberViews):
        return views.least_busy()
    loads = [view.n_outstanding for view in views]
    return loads.index(min(loads))
