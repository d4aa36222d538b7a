"""Running: the requests with a slot on a replica, in columns, and the finishes of those that decode; with proposals,
the cohort draws what each step accepts."""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from simserve.columns.contents import BlockContents
from simserve.columns.live import Live
from simserve.engine.replica import Replica
from simserve.integers import NEVER, NONE, Heap, filled, vec, widened
from simserve.state.cohort import NO_FINISH
from simserve.state.grouped_cohort import GroupedCohort
from simserve.state.speculative_cohort import SpeculativeCohort
from simserve.units import EndsTooLate

PLACE_BITS: Final = 30
"""Bits of a place in the key of a finish, below its step."""
MOST_PLACES: Final = 1 << PLACE_BITS
LAST_STEP: Final = 1 << (62 - PLACE_BITS)


class Running:
    """Requests with a slot, linked in the order of admission. The cohort counts those that decode.

    A finish stays among the others when its request is preempted: it is then due for none, or for one that took the
    place since and finishes in the same step.
    """

    def __init__(self, replica: Replica, live: Live, contents: BlockContents) -> None:
        cohort = replica.cohort
        self._replica: i64 = replica.id
        self._live, self._cohort, self._contents = live, cohort, contents
        has_windows = len(replica.decode.windows) > 0 and not replica.decode.is_uneven
        self._grouped = cast(GroupedCohort, cohort) if has_windows else None
        """The cohort, if layers have windows."""
        self._block_size: i64 = cohort.block_size
        self.n: i64 = 0
        self.n_away: i64 = 0
        """Requests with blocks here that have left for another replica, or are in transfer to this one; and ..."""
        self.n_promised: i64 = 0
        """... how many of these had slots at the last plan."""
        self.newest: i64 = NONE
        """The request that was admitted last."""
        self._finishes = Heap()
        self._n_joins: i64 = 0
        self.finished: vec[i64] = filled(16, NONE)
        """Places that the last step finished, in the order of joining, as many as `pop_finished` says."""
        self.returned: list[int] = []
        """Requests that go on here and have had no token since; their spans are recorded."""

    def has_returned(self, place: int) -> bool:
        """Return whether a request goes on here and has had no token since; it stops counting as such."""
        if place not in self.returned:
            return False
        self.returned.remove(place)
        return True

    def give_tokens(self, now_ps: i64) -> None:
        """Give returned requests their tokens at the end of a decode step, before its commit."""
        for place in self.returned:
            self._live.joined_ps[place] = now_ps
            self.count_first(place)
        self.returned.clear()

    def places(self) -> list[int]:
        """Return the requests in the order of admission."""
        places, place = list[int](), self.newest
        while place >= 0:
            places.append(int(place))
            place = self._live.older[place]
        return places[::-1]

    def admit(self, place: i64) -> None:
        """Give a request a slot."""
        live, newest = self._live, self.newest
        live.older[place], live.newer[place] = newest, NONE
        if newest >= 0:
            live.newer[newest] = place
        self.newest = place
        self.n += 1

    def leave(self, place: i64) -> None:
        """Take the slot of a request."""
        live = self._live
        older, newer = live.older[place], live.newer[place]
        if older >= 0:
            live.newer[older] = newer
        if newer >= 0:
            live.older[newer] = older
        else:
            self.newest = older
        self.n -= 1

    def join(self, place: i64, n_left: i64) -> None:
        """Let a request with a computed prompt decode n_left more tokens; with none left it lingers."""
        live, cohort = self._live, self._cohort
        step: i64 = cohort.step
        kv_tokens = live.prefilled_tokens[place] + live.padding_tokens[place]
        live.kv_offset[place] = kv_tokens - step
        cohort.n += 1
        cohort.kv_tokens += kv_tokens + 1
        cohort.crossings[(step - kv_tokens) % self._block_size] += 1
        if self._grouped is not None:
            request = self._contents.named(place)
            if request is not None:
                request.kv_offset = kv_tokens - step
            self._grouped.join_windows(place if request is None else request, kv_tokens - step, request)
        if n_left:
            self._will_finish(place, step + n_left)

    def _will_finish(self, place: i64, step: i64) -> None:
        """Note the step that will finish a request. Raises EndsTooLate."""
        live, cohort = self._live, self._cohort
        if step >= LAST_STEP:
            raise EndsTooLate
        live.finish_step[place] = step
        live.join_number[place] = self._n_joins
        self._n_joins += 1
        self._finishes.push((step << PLACE_BITS) | place)
        if step < cohort.next_finish_step:
            cohort.next_finish_step = step

    def stored_tokens(self, place: i64) -> i64:
        """Return the tokens that a decoding request holds."""
        return self._live.kv_offset[place] + self._cohort.step

    def stop_decoding(self, place: i64) -> i64:
        """Take a request from the cohort; return the tokens it holds."""
        live, cohort = self._live, self._cohort
        offset = live.kv_offset[place]
        kv_tokens = offset + cohort.step
        live.emitted_tokens[place] += cohort.step - live.join_step[place]
        cohort.n -= 1
        cohort.kv_tokens -= kv_tokens + 1
        cohort.crossings[-offset % self._block_size] -= 1
        if self._grouped is not None:
            request = self._contents.named(place)
            self._grouped.leave_windows(place if request is None else request, kv_tokens, request)
        return kv_tokens

    def drop(self, place: i64) -> i64:
        """Take a request from the cohort before its end; return the tokens it holds."""
        self.cancel(place)
        return self.stop_decoding(place)

    def count_first(self, place: i64) -> None:
        """Count the token of a request's first step, which is about to end, as produced before it joined."""
        self._live.emitted_tokens[place] += 1
        self._live.join_step[place] = self._cohort.step + 1

    def cancel(self, place: i64) -> None:
        """Cancel the finish of a request."""
        self._live.finish_step[place] = NONE
        self._find_next_finish()

    def pop_finished(self) -> i64:
        """Find the requests that the last step finished; return their number. They are in the cohort still."""
        live, finishes, finished = self._live, self._finishes, self.finished
        step: i64 = self._cohort.step
        n: i64 = 0
        key = finishes.least()
        while key >> PLACE_BITS <= step:
            finishes.pop()
            if self._is_due(key):
                place = key & (MOST_PLACES - 1)
                live.finish_step[place] = NONE
                if n == len(finished):
                    self.finished = finished = widened(finished, n)
                at = n
                while at and live.join_number[finished[at - 1]] > live.join_number[place]:
                    finished[at] = finished[at - 1]
                    at -= 1
                finished[at] = place
                n += 1
            key = finishes.least()
        self._find_next_finish()
        return n

    def _find_next_finish(self) -> None:
        """Let the first finish be one of a member, and note its step."""
        finishes = self._finishes
        key = finishes.least()
        while key < NEVER and not self._is_due(key):
            finishes.pop()
            key = finishes.least()
        self._cohort.next_finish_step = key >> PLACE_BITS if key < NEVER else NO_FINISH

    def _is_due(self, key: i64) -> bool:
        """Return whether a finish is that of a member: it may have been preempted, and its place taken since."""
        place = key & (MOST_PLACES - 1)
        return self._live.finish_step[place] == key >> PLACE_BITS and self._live.replica[place] == self._replica


class SpeculativeRunning(Running):
    """Requests with a slot, of which those that decode are members of a `SpeculativeCohort` as objects."""

    def __init__(self, replica: Replica, live: Live, contents: BlockContents) -> None:
        super().__init__(replica, live, contents)
        self._courses, self._pool = cast(SpeculativeCohort, replica.cohort), replica.pool

    def join(self, place: i64, n_left: i64) -> None:
        """Let a request with a computed prompt decode n_left more tokens."""
        self._will_finish(place, self._courses.join(self._live.request(place), n_left))

    def stored_tokens(self, place: i64) -> i64:
        """Return the tokens that a decoding request holds."""
        return self._courses.stored_tokens(self._live.requests[place])

    def stop_decoding(self, place: i64) -> i64:
        """Take a request from the cohort, and free its blocks for proposed tokens; return the tokens it holds."""
        request = self._live.requests[place]
        kv_tokens, n_kept = self._courses.leave(request)
        self._live.emitted_tokens[place] = request.emitted_tokens
        if n_kept:
            self._pool.drop(n_kept, self._live.reserved_blocks[place] > 0)
        return kv_tokens

    def count_first(self, place: i64) -> None:
        """Count the tokens of a request's first step, which is about to end, as produced before it joined."""
        request = self._live.requests[place]
        self._courses.count_first(request)
        self._live.emitted_tokens[place], self._live.join_step[place] = request.emitted_tokens, request.join_step
