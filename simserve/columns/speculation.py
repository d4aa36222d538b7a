"""SpeculativeRunning: requests that decode with proposals: the cohort draws what each step accepts, by request."""

from __future__ import annotations

from typing import cast

from mypy_extensions import i64

from simserve.columns.contents import BlockContents
from simserve.columns.live import Live
from simserve.columns.running import Running
from simserve.engine.replica import Replica
from simserve.integers import append
from simserve.state.request import Request
from simserve.state.speculative_cohort import SpeculativeCohort


class SpeculativeRunning(Running):
    """Requests with a slot, of which those that decode are members of a `SpeculativeCohort` as objects."""

    def __init__(self, replica: Replica, live: Live, contents: BlockContents) -> None:
        super().__init__(replica, live, contents)
        self._courses, self._pool = cast(SpeculativeCohort, replica.cohort), replica.pool

    def join(self, place: i64, n_left: i64) -> None:
        """Let a request with a computed prompt decode n_left more tokens."""
        self._courses.join(self._live.request(place), n_left)

    def stored_tokens(self, place: i64) -> i64:
        """Return the tokens that a decoding request holds."""
        return self._courses.stored_tokens(self._live.requests[place])

    def stop_decoding(self, place: i64) -> i64:
        """Take a request from the cohort, and free its blocks for proposed tokens; return the tokens it holds."""
        request = self._live.requests[place]
        kv_tokens = self._courses.leave(request)
        self._take_back(place, request)
        return kv_tokens

    def drop(self, place: i64) -> i64:
        """Take a request from the cohort before its end; return the tokens it holds."""
        request = self._live.requests[place]
        kv_tokens = self._courses.drop(request)
        self._take_back(place, request)
        return kv_tokens

    def count_first(self, place: i64) -> None:
        """Count the tokens of a request's first step, which is about to end, as produced before it joined."""
        request = self._live.requests[place]
        self._courses.count_first(request)
        self._live.emitted_tokens[place], self._live.join_step[place] = request.emitted_tokens, request.join_step

    def _take_back(self, place: i64, request: Request) -> None:
        """Note the tokens of a request that has left the cohort, and free its blocks for proposed ones."""
        self._live.emitted_tokens[place] = request.emitted_tokens
        n_kept = self._courses.pop_kept_blocks(request)
        if n_kept:
            self._pool.drop(n_kept, self._live.reserved_blocks[place] > 0)

    def pop_finished(self) -> i64:
        """Find the requests that the last step finished; return their number. They are in the cohort still."""
        n: i64 = 0
        for request in self._courses.pop_finished():
            place = self._live.place_of(request)
            if n == len(self.finished):
                self.finished = append(self.finished, place)
            else:
                self.finished[n] = place
            n += 1
        return n
