"""SessionSender: sends sessions at their own times; UserSender: a fixed number of users, session after session."""

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
from simserve.errors import TraceError
from simserve.units import MAX_PS, array_to_ps, to_s
from simserve.workload.dependencies import Dependencies


class Sessions:
    """Columns by row and by session; whole sessions can be appended.

    Invariant: the rows of a live session = n_unsent + n_unanswered + answered; n_due <= n_unsent.

    fast: an array reads and writes Python integers, in 8 bytes a cell.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.of_row = array("q")
        """The session of each row."""
        self.think_ps = array("q")
        """Think time between the last answer that each row waits for and its sending."""
        self.n_awaited = array("q")
        """Answers that each row still waits for."""
        self._children, self._child_starts = array("q"), array("q", [0])
        self.first_rows = array("q")
        """First row of each session."""
        self.n_rows = array("q")
        """Requests of each session."""
        self.n_unsent = array("q")
        """Requests of each session that may still be sent."""
        self.n_due = array("q")
        """Unsent requests of each session that wait only for their time."""
        self.n_unanswered = array("q")
        """Requests of each session that were sent and have not ended."""
        self.append(dependencies)

    def append(self, more: Dependencies) -> None:
        """Append the rows of whole sessions."""
        first, n_before, n_children = len(self.of_row), len(self.first_rows), len(self._children)
        begins = np.flatnonzero(more.n_parents == 0)
        of_row = np.searchsorted(begins, more.first_rows())
        n_rows = np.bincount(of_row, minlength=len(begins))
        n_children_of = np.bincount(more.parents, minlength=len(more))
        children = more.children[np.argsort(more.parents, kind="stable")]
        for column, values in (
            (self.of_row, n_before + of_row),
            (self.think_ps, array_to_ps(more.think_s)),
            (self.n_awaited, more.n_parents),
            (self._children, first + children),
            (self._child_starts, n_children + np.cumsum(n_children_of)),
            (self.first_rows, first + begins),
            (self.n_rows, n_rows),
            (self.n_unsent, n_rows),
            (self.n_due, np.zeros(len(begins))),
            (self.n_unanswered, np.zeros(len(begins))),
        ):
            column.frombytes(np.ascontiguousarray(values, np.int64).tobytes())

    def children(self, row: int) -> "array[int]":
        """Return the rows that wait for the answer to a row."""
        return self._children[self._child_starts[row] : self._child_starts[row + 1]]

    def n_rows_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of requests in the session of each row, `(n_rows,)`."""
        of_row, n_rows = np.array(self.of_row, np.int64), np.array(self.n_rows, np.int64)
        return n_rows[of_row[rows]]

    def __len__(self) -> int:
        return len(self.first_rows)


class SessionSender:
    """Sessions begin at their own times; other requests are sent think_s after the last answer they wait for.

    At one instant rows are sent in their order. A session ends when one of its requests is refused: its unsent requests
    are never sent.
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
        """Rows drawn that may still be sent."""
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
        """A heap of (instant, row) of rows that wait only for their time; of session starts only the next."""
        self._coming: deque[tuple[int, int]] = deque()
        """(instant at which it leaves the front end, row) of requests in the front end, in order."""
        self._due = Alarm(clock, self._send_due, SEND_PHASE)
        self._stop = Alarm(clock, lambda _: on_end(), SEND_PHASE)

    @property
    def n_sent(self) -> int:
        """Requests that reached the router."""
        return len(self._sent)

    @property
    def rows_sent(self) -> NDArray[np.int64]:
        """Rows sent, in the order of sending, `(n_sent,)`."""
        return np.array(self._sent, np.int64)

    def start(self) -> None:
        """Wait for the first session."""
        if self._offered.stop_sending_ps is not None:
            self._stop.set(self._offered.stop_sending_ps)
        self._begin_first()

    def on_answer(self, row: int, now_ps: int) -> None:
        """Schedule the requests that waited for an answer, when its client has the last token."""
        sessions, at_ps = self.sessions, now_ps + self._respond_ps
        session = sessions.of_row[row]
        if sessions.n_unsent[session]:
            for child in sessions.children(row):
                sessions.n_awaited[child] -= 1
                if not sessions.n_awaited[child]:
                    self._plan(child, at_ps + sessions.think_ps[child])
        self._end_one(session, at_ps)

    def on_refusal(self, row: int, reason: str, now_ps: int) -> None:
        """End the session of a refused request, except for requests in flight."""
        sessions = self.sessions
        session = sessions.of_row[row]
        self._n_left -= sessions.n_unsent[session]
        if sessions.n_due[session]:
            self._to_send = [each for each in self._to_send if sessions.of_row[each[1]] != session]
            heapify(self._to_send)
        sessions.n_unsent[session] = sessions.n_due[session] = 0
        self._end_one(session, now_ps)
        self._check_end()

    def on_not_admitted(self, row: int, reason: str, now_ps: int) -> None:
        """Treat a request that is not admitted as refused."""
        self.on_refusal(row, reason, now_ps)

    def _begin_first(self) -> None:
        """Schedule the first session."""
        self._on_begun()

    def _on_begun(self) -> None:
        """Schedule the next session when one has begun."""
        if self._n_begun < len(self.sessions):
            row = self._next_first_row()
            self._plan(row, self._rows.arrival_ps[row])

    def _on_over(self, at_ps: int) -> None:
        """Handle a session that is over: all its sent requests have ended, and none is left to send."""

    def _next_first_row(self) -> int:
        self._n_begun += 1
        return self.sessions.first_rows[self._n_begun - 1]

    def _end_one(self, session: int, at_ps: int) -> None:
        sessions = self.sessions
        sessions.n_unanswered[session] -= 1
        if not sessions.n_unanswered[session] and not sessions.n_unsent[session]:
            self._on_over(at_ps)

    def _plan(self, row: int, sent_ps: int) -> None:
        """Schedule a row, unless sending ends before."""
        if sent_ps >= self._stop_ps:
            return
        if sent_ps > MAX_PS // 2:
            raise TraceError(f"workload: all must be sent within 53 days, got {to_s(sent_ps):g} s; shorten think times")
        self.sessions.n_due[self.sessions.of_row[row]] += 1
        heappush(self._to_send, (sent_ps, row))
        if self._due.due_ps is None or sent_ps < self._due.due_ps:
            self._due.set(sent_ps)

    def _send_due(self, now_ps: int) -> None:
        """Let the rows of this instant into the front end, and forward those that leave it, in the order of sending."""
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
        """End the sending with the last row, unless a fixed instant ends it."""
        if not self._n_left and not self._coming and self._offered.stop_sending_ps is None:
            self._on_end()

    def _enter(self, row: int, now_ps: int) -> None:
        """Send a row into the front end."""
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
    """A fixed number of users: each runs a session, thinks, and begins the next."""

    _n_consecutive_refusals = 0

    def on_answer(self, row: int, now_ps: int) -> None:
        """Handle an answer and reset the count of refusals."""
        self._n_consecutive_refusals = 0
        super().on_answer(row, now_ps)

    def on_refusal(self, row: int, reason: str, now_ps: int) -> None:
        """Count a refusal and end its session."""
        self._n_consecutive_refusals += 1
        self._offered.check_refusals(self._n_consecutive_refusals, reason)
        super().on_refusal(row, reason, now_ps)

    def _begin_first(self) -> None:
        """Begin a session of each user at time zero."""
        for _ in range(self._offered.concurrency or 0):
            if self._has_session(0):
                self._plan(self._next_first_row(), 0)

    def _on_begun(self) -> None:
        """Do nothing: a session begins only when its user's last one is over."""

    def _on_over(self, at_ps: int) -> None:
        """Schedule the user's next session after its think time."""
        if self._has_session(at_ps):
            row = self._next_first_row()
            self._plan(row, at_ps + self.sessions.think_ps[row])

    def _has_session(self, at_ps: int) -> bool:
        """Return whether a session is left; draw more where users run for a fixed time."""
        draw_more = self._offered.draw_more
        if self._n_begun == len(self.sessions) and draw_more is not None and at_ps < self._stop_ps:
            trace = draw_more(len(self._rows))
            self._rows.append(trace)
            self._recorder.grow(len(self._rows))
            self.sessions.append(trace.dependencies or Dependencies.none(len(trace)))
            self._n_left += len(trace)
        return self._n_begun < len(self.sessions)
