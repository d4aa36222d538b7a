"""Deadlines: clients that give up when an answer does not come in time, and what servers do about it."""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from simserve.engine.admission_gate import Placed
from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.offered import OfferedRows
from simserve.engine.patience import Patience
from simserve.engine.recorder import NEVER, TIMED_OUT, Recorder
from simserve.engine.replica import Replica
from simserve.state.request import DECODE, DONE, WAITING, Request
from simserve.units import to_s

ABORT_PHASE = SEND_PHASE + 1
"""At one instant, after sends: those leave whose clients have gone ..."""
DEADLINE_PHASE = SEND_PHASE + 2
"""... then clients give up."""


class Deadlines:
    """The clients that wait, in the order in which they sent, so that one alarm is enough for all of them.

    A client measures at its own end: it has a token when the front end has sent it out. When it gives up, the server
    notices at the end of the step in flight, as engines look for aborts between steps; what was computed is spent.
    """

    def __init__(
        self,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        replicas: Sequence[Replica],
        patience: Patience,
        respond_ps: int,
        on_give_up: Callable[[int, int], None],
    ) -> None:
        self._rows, self._recorder, self._replicas = rows, recorder, replicas
        self._patience = patience
        self._respond_ps = respond_ps
        self._on_give_up = on_give_up
        self._first: deque[tuple[int, int]] = deque()
        """(deadline of the first token, row), in order of both."""
        self._whole: deque[tuple[int, int]] = deque()
        self._waiting: dict[int, Placed | None] = {}
        """Rows whose clients wait; None: not routed yet."""
        self._gone: dict[int, int] = {}
        """Rows whose clients have given up, and when these had a first token."""
        self._leaving: list[tuple[int, int, Placed]] = []
        """A heap of (instant at which a server can let go of it, how many had given up before, who)."""
        self.gave_up_ps: dict[int, int] = {}
        self.stored_tokens: dict[int, int] = {}
        """Of rows whose clients gave up: the tokens that were stored when the server let go of them."""
        self._strike = Alarm(clock, self._strike_due, DEADLINE_PHASE)
        self._abort = Alarm(clock, self._abort_due, ABORT_PHASE)

    # -- what clients and servers tell -----------------------------------------------------------------------------

    def sent(self, row: int, now_ps: int) -> None:
        """A client sends and begins to wait."""
        self._waiting[row] = None
        for queue, after_ps in ((self._first, self._patience.ttft_ps), (self._whole, self._patience.e2e_ps)):
            if after_ps is not None:
                queue.append((now_ps + after_ps, row))
                if len(queue) == 1:
                    self._set_alarm()

    def placed(self, row: int, where: Placed) -> None:
        """A replica has it."""
        self._waiting[row] = where

    def refused(self, row: int) -> None:
        """Its client knows."""
        del self._waiting[row]

    def has_gone(self, row: int) -> bool:
        """Its client has given up."""
        return row in self._gone

    def answered(self, row: int, now_ps: int) -> bool:
        """An answer is computed; whether its client has it in time."""
        if row in self._gone:
            self._undo(row)
            return False
        sent_ps, patience = self._rows.arrival_ps[row], self._patience
        if patience.e2e_ps is not None and now_ps + self._respond_ps > sent_ps + patience.e2e_ps:
            return False
        if patience.ttft_ps is not None and not self._has_first(row, sent_ps + patience.ttft_ps, is_whole=True):
            return False
        del self._waiting[row]
        return True

    def wasted_tokens(self) -> dict[int, int]:
        """Tokens that were computed for rows whose clients gave up: what was stored at the end and was not found in a
        cache, and what was lost before."""
        lost, result = (self._recorder.columns[name] for name in ("n_recomputed_tokens", "cached_tokens"))
        return {row: n + int(lost[row]) - int(result[row]) for row, n in self.stored_tokens.items()}

    # -- clients give up -------------------------------------------------------------------------------------------

    def _strike_due(self, now_ps: int) -> None:
        """All deadlines of this instant, in the order of sending: first those of first tokens."""
        for queue, what in ((self._first, "first token"), (self._whole, "whole answer")):
            while queue and queue[0][0] <= now_ps:
                deadline_ps, row = queue.popleft()
                if row in self._waiting and not (queue is self._first and self._has_first(row, deadline_ps)):
                    self._give_up(row, what, now_ps)
        self._set_alarm()

    def _give_up(self, row: int, what: str, now_ps: int) -> None:
        where = self._waiting.pop(row)
        has_first = self._has_first(row, now_ps)
        self._gone[row] = self._recorder.first_token_ps[row] if has_first else NEVER
        self._undo(row)
        self._recorder.explain(row, f"no {what} within {to_s(now_ps - self._rows.arrival_ps[row]):g} s")
        self.gave_up_ps[row] = now_ps
        if where is not None:
            self._let_go(len(self.gave_up_ps), where, now_ps)
        self._on_give_up(row, now_ps)

    def _has_first(self, row: int, by_ps: int, *, is_whole: bool = False) -> bool:
        """Its client has, or will have, a first token by then; with a whole answer that tokens do not precede."""
        recorder = self._recorder
        first_ps = recorder.first_token_ps[row]
        if first_ps == NEVER or first_ps + self._respond_ps > by_ps:
            return False
        return is_whole or self._replicas[recorder.replica[row]].streams

    def _undo(self, row: int) -> None:
        """Whatever the server goes on to compute, its client has what it had when it gave up."""
        recorder = self._recorder
        recorder.status[row] = TIMED_OUT
        recorder.first_token_ps[row], recorder.finish_ps[row] = self._gone[row], NEVER

    def _set_alarm(self) -> None:
        """At the deadline of the first who still waits."""
        queues = (self._first, self._whole)
        for queue in queues:
            while queue and queue[0][1] not in self._waiting:
                queue.popleft()
        due_ps = min((queue[0][0] for queue in queues if queue), default=None)
        if due_ps is not None and due_ps != self._strike.due_ps:
            self._strike.set(due_ps)

    # -- servers let go --------------------------------------------------------------------------------------------

    def _let_go(self, number: int, where: Placed, now_ps: int) -> None:
        """Now, if no step that it is in is in flight, nor its keys and values; otherwise when these are over."""
        request, replica = self._result(where)
        row = request.row
        again_ps = replica.step_end_ps(now_ps)
        if again_ps is None:
            n_stored = self._stored_tokens(request, replica)
            again_ps = None if request.phase is DONE else replica.abandon(request, now_ps)
        if again_ps is None:
            self.stored_tokens[row] = n_stored
            self._undo(row)
            return
        heappush(self._leaving, (again_ps, number, where))
        if self._abort.due_ps is None or again_ps < self._abort.due_ps:
            self._abort.set(again_ps)

    def _result(self, where: Placed) -> tuple[Request, Replica]:
        """Where a request is now: where it was placed, or where it was handed over to."""
        request, index = where
        moved_to = self._recorder.replica[request.row]
        return request, self._replicas[index if moved_to == NEVER else moved_to]

    def _abort_due(self, now_ps: int) -> None:
        while self._leaving and self._leaving[0][0] <= now_ps:
            _, number, where = heappop(self._leaving)
            self._let_go(number, where, now_ps)
        if self._leaving:
            self._abort.set(self._leaving[0][0])

    def stop(self) -> None:
        """The run ends: what servers were about to let go of is as it is."""
        for _, _, where in self._leaving:
            request, replica = self._result(where)
            self.stored_tokens[request.row] = self._stored_tokens(request, replica)
            self._undo(request.row)

    def _stored_tokens(self, request: Request, replica: Replica) -> int:
        """Keys and values that it has, or had when it was done; padding included."""
        if request.phase is WAITING:
            return 0
        if request.phase is DONE or request in replica.cohort.lingering:
            return request.padding_tokens + request.prompt_tokens + self._rows.output_tokens[request.row] - 1
        if request.phase is DECODE:
            return request.kv_offset + replica.cohort.step
        return request.prefilled_tokens
