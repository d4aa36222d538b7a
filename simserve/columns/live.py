"""Live: the requests that have reached a replica and have not ended, a place each, in columns."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from simserve.engine.losses import LostLife
from simserve.engine.recorder import Recorder
from simserve.integers import NONE, filled, vec, widened
from simserve.state.request import Request

PASSES: Final = 0
"""It leaves the queue before others that wait."""
WAITS: Final = 1
PREFILLS: Final = 2
DECODES: Final = 3
ENDED: Final = 4
"""A receiver has blocks for it, and no keys and values will come."""
MOVES: Final = 5
"""Its prompt is computed, and another replica decodes it."""
ASKS: Final = 6
"""Another replica will decode it, and has given it no blocks yet."""
SWAPPED: Final = 7
"""Its keys and values are in host memory."""
LOST: Final = 8
"""Its decode replica was lost while a step computes a part of its prompt."""
MIGRATES: Final = 9
"""Its replica leaves, and it goes on elsewhere with its keys and values, of prompt and answer so far."""

FIRST_PLACES: Final = 256
"""Places at first; they double when there are more requests."""

# fmt: off
COLUMNS: Final = (
    "row", "prompt_tokens", "output_tokens", "most_tokens", "phase", "prefilled_tokens", "emitted_tokens", "replica",
    "kv_offset", "join_step", "joined_ps", "finish_step", "join_number", "n_preemptions", "preempted_ps",
    "scheduled_ps", "first_token_ps", "chunks_ps", "due_step", "after", "older", "newer", "reserved_blocks",
    "is_kept", "sender", "receiver", "there_tokens", "there_ps", "padding_tokens", "life",
)
# fmt: on


class Live:
    """Columns by place. A place is taken again after its request has ended. A column is looked up here for each use, as
    it is another one when there are more places."""

    row: vec[i64]
    """Row in the load."""
    prompt_tokens: vec[i64]
    output_tokens: vec[i64]
    """True output length, cut at its limits."""
    most_tokens: vec[i64]
    """Limit on its output."""
    phase: vec[i64]
    prefilled_tokens: vec[i64]
    """Tokens of prompt and earlier output with computed keys and values that it holds."""
    emitted_tokens: vec[i64]
    """Tokens produced, as of the last time it began or stopped decoding."""
    replica: vec[i64]
    kv_offset: vec[i64]
    """Stored tokens when it began to decode, minus the step of the cohort then."""
    join_step: vec[i64]
    joined_ps: vec[i64]
    finish_step: vec[i64]
    """Step of the cohort that ends it; NONE: it does not decode."""
    join_number: vec[i64]
    """Order of joining the cohort, for those that finish in one step."""
    n_preemptions: vec[i64]
    preempted_ps: vec[i64]
    """Instant of the last preemption."""
    scheduled_ps: vec[i64]
    first_token_ps: vec[i64]
    chunks_ps: vec[i64]
    """Duration of the steps that computed a part of its prompt, not the last."""
    due_step: vec[i64]
    """Steps of its replica that begin before the scheduler can see it, from the first on."""
    after: vec[i64]
    """The place behind it in its line, or among the free places."""
    older: vec[i64]
    """The running request that was admitted before it, and ..."""
    newer: vec[i64]
    """... after it."""
    is_kept: vec[i64]
    """1: the replica that computes its prompt decodes it."""
    sender: vec[i64]
    """The replica that computes its prompt, and holds its blocks until they have been sent."""
    receiver: vec[i64]
    """The replica that keys and values are pushed to."""
    there_tokens: vec[i64]
    """Tokens found there or sent so far, and ..."""
    there_ps: vec[i64]
    """... when those sent arrive."""
    reserved_blocks: vec[i64]
    """Blocks reserved at admission, used ones included."""
    padding_tokens: vec[i64]
    """Dummy prompt tokens that a padded batch computes for it."""
    life: vec[i64]
    """Number of its life: that of a row that is sent again is another one."""

    def __init__(self) -> None:
        for name in COLUMNS:
            setattr(self, name, filled(FIRST_PLACES, NONE))
        self.requests: dict[int, Request] = {}
        """Requests as objects where routers, policies or prefix caches look at them, by place, and ..."""
        self._places: dict[int, int] = {}
        """... their places by row."""
        self._n_lives: i64 = 0
        self._first_free: i64 = NONE
        self._free(0, FIRST_PLACES)

    def add(self, row: i64, prompt_tokens: i64, output_tokens: i64, most_tokens: i64) -> i64:
        """Give a request a place; return it."""
        if self._first_free < 0:
            self._widen()
        place = self._first_free
        self._first_free = self.after[place]
        self.row[place] = row
        self.prompt_tokens[place] = prompt_tokens
        self.output_tokens[place] = output_tokens
        self.most_tokens[place] = most_tokens
        self.reserved_blocks[place] = 0
        self.padding_tokens[place] = 0
        self.life[place] = self._n_lives
        self._n_lives += 1
        self.is_kept[place] = 1
        self.phase[place] = WAITS
        self.prefilled_tokens[place] = 0
        self.emitted_tokens[place] = 0
        self.n_preemptions[place] = 0
        self.first_token_ps[place] = NONE
        self.scheduled_ps[place] = NONE
        self.chunks_ps[place] = 0
        self.replica[place] = NONE
        return place

    def go_on(self, place: i64, recorder: Recorder, left_ps: int) -> None:
        """Let a request that lost its replica at an instant keep what it has until its first token."""
        row = self.row[place]
        self.scheduled_ps[place], self.first_token_ps[place] = recorder.scheduled_ps[row], recorder.first_token_ps[row]
        self.chunks_ps[place], self.preempted_ps[place] = int(recorder.columns["chunks_ps"][row]), left_ps

    def lost(self, place: i64, n_stored: int, left_ps: int) -> LostLife:
        """Return what a request was that is lost. left_ps: when it lost its blocks, unless it had none before."""
        if self.scheduled_ps[place] >= 0 and self.phase[place] in (WAITS, ASKS, SWAPPED, MIGRATES):
            left_ps = int(self.preempted_ps[place])
        return LostLife(int(self.row[place]), int(self.life[place]), int(self.emitted_tokens[place]), n_stored, left_ps)

    def remove(self, place: i64) -> None:
        """Free the place of a request that has ended."""
        self.finish_step[place] = self.row[place] = self.life[place] = NONE
        if self.requests:
            row = self.requests.pop(place).row
            if self._places.get(row) == place:  # a row that is sent again has another life elsewhere
                del self._places[row]
        self.after[place] = self._first_free
        self._first_free = place

    def show(self, place: i64, request: Request) -> None:
        """Let a request be seen as an object."""
        self.requests[place] = request
        self._places[request.row] = place

    def place_of(self, request: Request) -> i64:
        """Return the place of a request that is seen as an object."""
        return self._places[request.row]

    def request(self, place: i64) -> Request:
        """Return a request as routers and prefix caches see it now."""
        return self.updated(self.requests[place], place)

    def updated(self, request: Request, place: i64) -> Request:
        """Return the request at a place as it is now."""
        request.prefilled_tokens, request.emitted_tokens = self.prefilled_tokens[place], self.emitted_tokens[place]
        request.n_preemptions = self.n_preemptions[place]
        return request

    def sent_tokens(self, place: i64) -> i64:
        """Return the tokens that a replica has when it goes on with a request of another one."""
        n_computed, prompt_tokens = self.prefilled_tokens[place], self.prompt_tokens[place]
        return n_computed if n_computed > prompt_tokens else prompt_tokens

    def left_tokens(self, place: i64) -> i64:
        """Return the tokens to compute before its next one."""
        return self.prompt_tokens[place] + self.emitted_tokens[place] - self.prefilled_tokens[place]

    def _free(self, first: i64, end: i64) -> None:
        """Free the places from first on, which are taken in this order."""
        after = self.after
        for place in range(first, end):
            after[place] = place + 1
        after[end - 1] = self._first_free
        self._first_free = first

    def _widen(self) -> None:
        """Double the places."""
        n: i64 = len(self.row)
        for name in COLUMNS:
            setattr(self, name, widened(getattr(self, name), n))
        self._free(n, 2 * n)
