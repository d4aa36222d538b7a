"""SessionSender: sends requests that wait for the answers of others; UserSender: so do users, session after session."""

import math
from array import array
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from simserve.engine.admission_gate import Send
from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.frontend import FrontEnd, FrontEndQueue
from simserve.engine.offered import Offered, OfferedRows
from simserve.engine.recorder import Recorder
from simserve.engine.sessions import Sessions
from simserve.errors import TraceError
from simserve.units import MAX_PS, to_s
from simserve.workload.dependencies import Dependencies


class SessionSender:
    """Sessions begin at their own times; all else is sent think_s after the last answer that it waits for.

    At one instant rows are sent in their order. A session one of whose requests is refused ends: what of it is not
    sent never will be.
    """

    def __init__(
        self,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        offered: Offered,
        front_end: FrontEnd,
        send: Send,
        on_end: Callable[[], None],
    ) -> None:
        self.sessions = Sessions(offered.trace.dependencies or Dependencies.none(len(offered.trace)))
        self._n_begun = 0
        self._n_left = len(rows)
        """Rows that may still be sent, as far as they are drawn."""
        self._rows = rows
        self._recorder = recorder
        self._offered = offered
        self._stop_ps = math.inf if offered.stop_sending_ps is None else offered.stop_sending_ps
        self._front_end_queue = FrontEndQueue(front_end, recorder)
        self._respond_ps = front_end.respond_ps
        self._send = send
        self._on_end = on_end
        self._sent = array("q")
        self._to_send: list[tuple[int, int]] = []
        """A heap of (instant, row) of what waits for nothing but its time; of sessions to begin the next one alone."""
        self._coming: deque[tuple[int, int]] = deque()
        """(instant at which it is through the door, row) of requests on their way, in order."""
        self._due = Alarm(clock, self._send_due, SEND_PHASE)
        self._stop = Alarm(clock, lambda _: on_end(), SEND_PHASE)

    @property
    def n_sent(self) -> int:
        """Requests that came to the router."""
        return len(self._sent)

    @property
    def rows_sent(self) -> NDArray[np.int64]:
        """Their rows, in the order of sending, `(n_sent,)`."""
        return np.array(self._sent, np.int64)

    def start(self) -> None:
        """Wait for the first session."""
        if self._offered.stop_sending_ps is not None:
            self._stop.set(self._offered.stop_sending_ps)
        self._begin_first()

    def on_answer(self, row: int, now_ps: int) -> None:
        """The last token of an answer is computed; its client has it soon after, and then what waits for it is due."""
        sessions, at_ps = self.sessions, now_ps + self._respond_ps
        session = sessions.of_row[row]
        if sessions.n_unsent[session]:
            for child in sessions.children(row):
                sessions.n_awaited[child] -= 1
                if not sessions.n_awaited[child]:
                    self._plan(child, at_ps + sessions.think_ps[child])
        self._end_one(session, at_ps)

    def on_refusal(self, row: int, reason: str, now_ps: int) -> None:
        """A request was refused, so nobody can go on from its answer: the session ends with what is under way."""
        sessions = self.sessions
        session = sessions.of_row[row]
        self._n_left -= sessions.n_unsent[session]
        if sessions.n_due[session]:
            self._to_send = [each for each in self._to_send if sessions.of_row[each[1]] != session]
            heapify(self._to_send)
        sessions.n_unsent[session] = sessions.n_due[session] = 0
        self._end_one(session, now_ps)
        self._check_end()

    def on_turning_away(self, row: int, reason: str, now_ps: int) -> None:
        """Not admitted, it is refused."""
        self.on_refusal(row, reason, now_ps)

    def _begin_first(self) -> None:
        """The first session is due at its arrival."""
        self._on_begun()

    def _on_begun(self) -> None:
        """A session has begun: the next is due at its arrival."""
        if self._n_begun < len(self.sessions):
            row = self._next_first_row()
            self._plan(row, self._rows.arrival_ps[row])

    def _on_over(self, at_ps: int) -> None:
        """All that was sent of a session is answered, and nothing more of it will be sent."""

    def _next_first_row(self) -> int:
        self._n_begun += 1
        return self.sessions.first_rows[self._n_begun - 1]

    def _end_one(self, session: int, at_ps: int) -> None:
        sessions = self.sessions
        sessions.n_unanswered[session] -= 1
        if not sessions.n_unanswered[session] and not sessions.n_unsent[session]:
            self._on_over(at_ps)

    def _plan(self, row: int, sent_ps: int) -> None:
        """Send it then, unless no more is sent then."""
        if sent_ps >= self._stop_ps:
            return
        if sent_ps > MAX_PS // 2:
            raise TraceError(f"workload: all must be sent within 53 days, got {to_s(sent_ps):g} s; shorten think times")
        self.sessions.n_due[self.sessions.of_row[row]] += 1
        heappush(self._to_send, (sent_ps, row))
        if self._due.due_ps is None or sent_ps < self._due.due_ps:
            self._due.set(sent_ps)

    def _send_due(self, now_ps: int) -> None:
        """Let all of this instant in at the door, and hand over all that are through it, in the order of sending."""
        coming = self._coming
        while True:
            while self._to_send and self._to_send[0][0] <= now_ps:
                self._enter(heappop(self._to_send)[1], now_ps)
            if not coming or coming[0][0] > now_ps:
                break
            row = coming.popleft()[1]
            self._sent.append(row)
            self._send(row, now_ps)
        instants = [each[0][0] for each in (self._to_send, coming) if each]
        if instants:
            self._due.set(min(instants))
        self._check_end()

    def _check_end(self) -> None:
        """Where no instant ends the sending, it ends with the last row."""
        if not self._n_left and not self._coming and self._offered.stop_sending_ps is None:
            self._on_end()

    def _enter(self, row: int, now_ps: int) -> None:
        """A client sends it."""
        sessions = self.sessions
        session = sessions.of_row[row]
        sessions.n_due[session] -= 1
        sessions.n_unsent[session] -= 1
        sessions.n_unanswered[session] += 1
        self._n_left -= 1
        self._rows.arrival_ps[row] = now_ps
        self._coming.append((self._front_end_queue.out_ps(row, now_ps, self._rows.prompt_tokens[row]), row))
        if row == sessions.first_rows[session]:
            self._on_begun()


class UserSender(SessionSender):
    """A fixed number of users: each begins a session, and when that is over, thinks, and begins the next."""

    _n_refused_at_once = 0

    def on_answer(self, row: int, now_ps: int) -> None:
        """As for any session."""
        self._n_refused_at_once = 0
        super().on_answer(row, now_ps)

    def on_refusal(self, row: int, reason: str, now_ps: int) -> None:
        """As for any session."""
        self._n_refused_at_once += 1
        self._offered.check_refusals(self._n_refused_at_once, reason)
        super().on_refusal(row, reason, now_ps)

    def _begin_first(self) -> None:
        """All users begin at time zero."""
        for _ in range(self._offered.concurrency or 0):
            if self._has_session(0):
                self._plan(self._next_first_row(), 0)

    def _on_begun(self) -> None:
        """Nobody else begins because of it."""

    def _on_over(self, at_ps: int) -> None:
        """Its user thinks, and begins another."""
        if self._has_session(at_ps):
            row = self._next_first_row()
            self._plan(row, at_ps + self.sessions.think_ps[row])

    def _has_session(self, at_ps: int) -> bool:
        """There is a session to begin; draws further ones where the users go on for a time."""
        draw_more = self._offered.draw_more
        if self._n_begun == len(self.sessions) and draw_more is not None and at_ps < self._stop_ps:
            trace = draw_more(len(self._rows))
            self._rows.append(trace)
            self._recorder.grow(len(self._rows))
            self.sessions.append(trace.dependencies or Dependencies.none(len(trace)))
            self._n_left += len(trace)
        return self._n_begun < len(self.sessions)
