"""Deadlines: clients that time out, and the servers' reaction."""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from simserve.engine.offered import OfferedRows, Patience
from simserve.engine.recorder import NEVER, TIMED_OUT, Recorder
from simserve.engine.replica import Replica
from simserve.units import to_s

Placed = Any
"""Where the servers find an accepted request."""


class Servers(Protocol):
    """What drops the requests of clients that have given up."""

    def abandon(self, row: int, where: Placed, now_ps: int) -> tuple[int | None, int]:
        """Drop a request, unless a step or a transfer of it is in flight; return when to try again, None: it is gone,
        and the tokens stored for it."""

    def stored_tokens(self, row: int, where: Placed) -> int:
        """Return the tokens stored for a request."""


class Deadlines:
    """Waiting clients in the order of sending, so that one alarm serves all of them.

    Times are the client's: it has a token when the front end has sent it. When it gives up, the server notices at the
    end of the step in flight, as engines check for aborts between steps; tokens computed until then are wasted.
    """

    def __init__(
        self,
        rows: OfferedRows,
        recorder: Recorder,
        replicas: Sequence[Replica],
        patience: Patience,
        respond_ps: int,
        on_give_up: Callable[[int, int], None],
    ) -> None:
        self._rows, self._recorder, self._replicas = rows, recorder, replicas
        self.servers: Servers | None = None
        """What drops requests, once the run has begun."""
        self._patience = patience
        self._respond_ps = respond_ps
        self._on_give_up = on_give_up
        self._first: deque[tuple[int, int]] = deque()
        """(deadline of the first token, row), ordered by both."""
        self._whole: deque[tuple[int, int]] = deque()
        self._waiting: dict[int, Placed | None] = {}
        """Rows of waiting clients; None: not routed yet."""
        self._gone: dict[int, int] = {}
        """Timed-out rows and the instant of their first token."""
        self._leaving: list[tuple[int, int, int, Placed]] = []
        """A heap of (instant at which the server can drop the request, number of give-ups before, row, request)."""
        self.gave_up_ps: dict[int, int] = {}
        self._expiry_ps: int | None = None
        """When clients next give up, and ..."""
        self._abort_ps: int | None = None
        """... when servers next drop what such clients have sent, which is first at an instant."""

    # -- called by clients and servers ---------------------------------------------------------------------------------

    def sent(self, row: int, now_ps: int) -> None:
        """Start the deadlines of a request that is sent."""
        self._waiting[row] = None
        for queue, after_ps in ((self._first, self._patience.ttft_ps), (self._whole, self._patience.e2e_ps)):
            if after_ps is not None:
                queue.append((now_ps + after_ps, row))
                if len(queue) == 1:
                    self._find_expiry()

    def placed(self, row: int, where: Placed | None) -> None:
        """Record the replica of a request; None: it was refused, and its client stops waiting. Until then it waits at
        the gateway, from which it is gone as soon as its client is."""
        if where is None:
            del self._waiting[row]
        else:
            self._waiting[row] = where

    def has_gone(self, row: int) -> bool:
        """Return whether the client has given up."""
        return row in self._gone

    def answered(self, row: int, now_ps: int) -> bool:
        """Handle a computed answer; return whether the client receives it in time."""
        if row in self._gone:
            self.restore(row)
            return False
        sent_ps, patience = self._rows.arrival_ps[row], self._patience
        if patience.e2e_ps is not None and now_ps + self._respond_ps > sent_ps + patience.e2e_ps:
            return False
        if patience.ttft_ps is not None and not self._has_first(row, sent_ps + patience.ttft_ps, is_whole=True):
            return False
        del self._waiting[row]
        return True

    def back_at_gateway(self, row: int) -> None:
        """Note that a request lost its replica and waits at the gateway again."""
        self._waiting[row] = None

    def left(self, row: int, n_stored_tokens: int) -> None:
        """Note that a replica has dropped or lost a request of a client that has gone."""
        self._recorder.end_early(row, n_stored_tokens)
        self.restore(row)

    # -- clients give up -------------------------------------------------------------------------------------------

    def _expire_due(self, now_ps: int) -> None:
        """Expire all deadlines of this instant, in the order of sending, those of first tokens first."""
        for queue, what in ((self._first, "first token"), (self._whole, "whole answer")):
            while queue and queue[0][0] <= now_ps:
                deadline_ps, row = queue.popleft()
                if row in self._waiting and not (queue is self._first and self._has_first(row, deadline_ps)):
                    self._give_up(row, what, now_ps)
        self._find_expiry()

    def _give_up(self, row: int, what: str, now_ps: int) -> None:
        where = self._waiting.pop(row)
        has_first = self._has_first(row, now_ps)
        self._gone[row] = self._recorder.first_token_ps[row] if has_first else NEVER
        self.restore(row)
        self._recorder.explain(row, f"no {what} within {to_s(now_ps - self._rows.arrival_ps[row]):g} s")
        self.gave_up_ps[row] = now_ps
        if where is not None:
            self._let_go(len(self.gave_up_ps), row, where, now_ps)
        self._on_give_up(row, now_ps)

    def _has_first(self, row: int, by_ps: int, *, is_whole: bool = False) -> bool:
        """Return whether the client has a first token by then; without streaming, only with the whole answer."""
        recorder = self._recorder
        first_ps = recorder.first_token_ps[row]
        if first_ps == NEVER or first_ps + self._respond_ps > by_ps:
            return False
        return is_whole or self._replicas[recorder.replica[row]].streams

    def restore(self, row: int) -> None:
        """Restore what the client had when it gave up, whatever the server computes afterward."""
        recorder = self._recorder
        recorder.status[row] = TIMED_OUT
        recorder.first_token_ps[row], recorder.finish_ps[row] = self._gone[row], NEVER

    def _find_expiry(self) -> None:
        """Find the first pending deadline."""
        queues = (self._first, self._whole)
        for queue in queues:
            while queue and queue[0][1] not in self._waiting:
                queue.popleft()
        due_ps = min((queue[0][0] for queue in queues if queue), default=None)
        if due_ps is not None:
            self._expiry_ps = due_ps

    # -- servers drop requests -----------------------------------------------------------------------------------------

    @property
    def next_ps(self) -> int | None:
        """When something is next due; None: nothing is."""
        if self._abort_ps is None or (self._expiry_ps is not None and self._expiry_ps < self._abort_ps):
            return self._expiry_ps
        return self._abort_ps

    def take(self, now_ps: int) -> None:
        """Do what is due at this instant: the first of the two."""
        if self._abort_ps == now_ps:
            self._abort_ps = None
            self._abort_due(now_ps)
        else:
            self._expiry_ps = None
            self._expire_due(now_ps)

    def _let_go(self, number: int, row: int, where: Placed, now_ps: int) -> None:
        """Drop a request now, unless a step or a transfer of it is in flight; otherwise retry when that ends."""
        if row in self._recorder.stored_tokens:
            return  # lost with its replica, or it has its whole answer
        assert self.servers is not None, "the run has begun"
        again_ps, n_stored = self.servers.abandon(row, where, now_ps)
        if again_ps is None:
            self.left(row, n_stored)
            return
        heappush(self._leaving, (again_ps, number, row, where))
        if self._abort_ps is None or again_ps < self._abort_ps:
            self._abort_ps = again_ps

    def _abort_due(self, now_ps: int) -> None:
        while self._leaving and self._leaving[0][0] <= now_ps:
            _, number, row, where = heappop(self._leaving)
            self._let_go(number, row, where, now_ps)
        if self._leaving:
            self._abort_ps = self._leaving[0][0]

    def stop(self) -> None:
        """End the run with pending aborts recorded as they are."""
        for _, _, row, where in self._leaving:
            assert self.servers is not None, "the run has begun"
            self.left(row, self.servers.stored_tokens(row, where))
