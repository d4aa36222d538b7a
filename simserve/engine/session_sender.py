"""SessionSender: sends sessions at their own times; UserSender: a fixed number of users, session after session.

They also send closed loops, and all loads with timeouts or retries; there a request without dependencies is a session
of its own.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.engine.deadlines import Deadlines
from simserve.engine.frontend import FrontEnd, FrontEndQueue
from simserve.engine.offered import Offered, OfferedRows, Patience
from simserve.engine.recorder import Recorder
from simserve.errors import TraceError
from simserve.integers import append, extended, vec
from simserve.units import LONGEST, LONGEST_S, PS_PER_S, array_to_ps, to_s
from simserve.workload.trace import Dependencies

LATEST_PS: Final = LONGEST_S * PS_PER_S
# fmt: off
COLUMNS: Final = (
    "of_row", "think_ps", "n_awaited", "children", "child_starts", "first_rows", "n_rows", "n_unsent", "n_due",
    "n_unanswered",
)
# fmt: on


class Sessions:
    """Columns by row and by session; whole sessions, and further attempts of rows, can be appended.

    Invariant: the rows of a live session = n_unsent + n_unanswered + answered; n_due <= n_unsent.
    """

    of_row: vec[i64]
    """The session of each row."""
    think_ps: vec[i64]
    """Think time between the last answer that each row waits for and its sending."""
    n_awaited: vec[i64]
    """Answers that each row still waits for."""
    children: vec[i64]
    """Rows that wait for others: those of row i are children[child_starts[i] : child_starts[i + 1]]."""
    child_starts: vec[i64]
    first_rows: vec[i64]
    """First row of each session."""
    n_rows: vec[i64]
    """Requests of each session."""
    n_unsent: vec[i64]
    """Requests of each session that may still be sent."""
    n_due: vec[i64]
    """Unsent requests of each session that wait only for their time."""
    n_unanswered: vec[i64]
    """Requests of each session that were sent and have not ended."""

    def __init__(self, dependencies: Dependencies) -> None:
        for name in COLUMNS:
            setattr(self, name, extended((), np.zeros(int(name == "child_starts"))))
        self.append(dependencies)

    def append(self, more: Dependencies) -> None:
        """Append the rows of whole sessions."""
        first, n_before, n_children = len(self.of_row), len(self.first_rows), len(self.children)
        begins = np.flatnonzero(more.n_parents == 0)
        of_row = np.searchsorted(begins, more.first_rows())
        n_rows = np.bincount(of_row, minlength=len(begins))
        n_children_of = np.bincount(more.parents, minlength=len(more))
        children = more.children[np.argsort(more.parents, kind="stable")]
        cells = (
            n_before + of_row,
            array_to_ps(more.think_s),
            more.n_parents,
            first + children,
            n_children + np.cumsum(n_children_of),
            first + begins,
            n_rows,
            n_rows,
            np.zeros(len(begins)),
            np.zeros(len(begins)),
        )
        for name, values in zip(COLUMNS, cells, strict=True):
            setattr(self, name, extended(getattr(self, name), values))

    def copy_row(self, row: i64) -> None:
        """Append another attempt of a row: the same rows wait for its answer."""
        for at in range(self.child_starts[row], self.child_starts[row + 1]):
            self.children = append(self.children, self.children[at])
        self.child_starts = append(self.child_starts, len(self.children))
        self.of_row = append(self.of_row, self.of_row[row])
        self.think_ps, self.n_awaited = append(self.think_ps, 0), append(self.n_awaited, 0)

    def n_rows_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of requests in the session of each row, `(n_rows,)`."""
        of_row, n_rows = np.array(self.of_row, np.int64), np.array(self.n_rows, np.int64)
        return n_rows[of_row[rows]]

    def __len__(self) -> int:
        return len(self.first_rows)


class SessionSender:
    """Sessions begin at their own times; other requests are sent think_s after the last answer they wait for.

    At one instant rows are sent in their order. Each attempt is a row: the load's rows, and copies of those that were
    not admitted or timed out. A session ends when one of its requests can never be served, or fails and is not retried:
    its unsent requests are never sent, unless its client goes on with the next turn.
    """

    def __init__(
        self,
        rows: OfferedRows,
        recorder: Recorder,
        offered: Offered,
        front_end: FrontEnd,
        on_end: Callable[[], None],
    ) -> None:
        self.sessions = Sessions(offered.trace.dependencies or Dependencies.none(len(offered.trace)))
        self._n_begun = 0
        self._timed = range(len(self.sessions) - offered.n_timed, len(self.sessions))
        """Sessions that have their own times beside those of users."""
        self._n_drawn = len(rows) - offered.n_timed
        """Rows drawn for users."""
        self._n_left = len(rows)
        """Rows of the load that may still reach the router."""
        self._rows = rows
        self._recorder = recorder
        self._offered = offered
        self._stop_ps = math.inf if offered.stop_sending_ps is None else offered.stop_sending_ps
        self._front_end_queue = FrontEndQueue(front_end, recorder)
        self._respond_ps = front_end.respond_ps
        self._on_end = on_end
        self._patience = offered.patience or Patience()
        backoff = self._patience.backoff
        self._budget = None if backoff is None else backoff.budget()
        """Tokens that all clients have for retries; None: no limit."""
        self.deadlines: Deadlines | None = None
        self._attempts: dict[int, int] = {}
        """Attempt number of each row that is a retry."""
        self._ended: set[int] = set()
        """Sessions that ended before all their requests were answered."""
        self._ready_ps: dict[int, int] = {}
        """Earliest start of the think time of rows that wait for further answers, where clients go on without one."""
        self._sent = array("q")
        self._to_send: list[tuple[int, int]] = []
        """A heap of (instant, row) of rows that wait only for their time; of session starts only the next."""
        self._coming: deque[tuple[int, int]] = deque()
        """(instant at which it leaves the front end, row) of requests in the front end, in order."""
        self._stops_at_ps: int | None = None
        """When sending ends at a fixed instant, once that is to come."""

    @property
    def n_sent(self) -> int:
        """Requests that reached the router, or were given up before."""
        return len(self._sent)

    @property
    def rows_sent(self) -> NDArray[np.int64]:
        """Rows sent, in the order of sending, `(n_sent,)`."""
        return np.array(self._sent, np.int64)

    @property
    def has_attempts(self) -> bool:
        """Clients may time out or retry."""
        return self._offered.patience is not None

    @property
    def attempts(self) -> NDArray[np.int32]:
        """Attempt number of each row sent, from 1, `(n_sent,)`."""
        numbers = np.ones(len(self._rows), np.int32)
        numbers[list(self._attempts)] = list(self._attempts.values())
        return numbers[self.rows_sent]

    @property
    def session_requests(self) -> NDArray[np.int64] | None:
        """Planned number of requests of the session of each row sent, `(n_sent,)`; None of a load without sessions."""
        return None if self._offered.trace.dependencies is None else self.sessions.n_rows_of(self.rows_sent)

    def start(self) -> None:
        """Wait for the first session."""
        if self._offered.stop_sending_ps is not None:
            self._stops_at_ps = self._offered.stop_sending_ps
        self._begin_first()

    def stop(self) -> int:
        """End the run; return how many requests reached the router, or were given up before."""
        deadlines = self.deadlines
        if deadlines is not None:
            deadlines.stop()
            self._sent.extend(row for _, row in self._coming if deadlines.has_gone(row))
        return self.n_sent

    def on_answer(self, row: int, now_ps: int) -> None:
        """Handle an answer; if its client still waits, it has the last token shortly after."""
        if self.deadlines is None or self.deadlines.answered(row, now_ps):
            self._go_on(row, now_ps + self._respond_ps)

    def on_refusal(self, row: int, _: str, now_ps: int) -> None:
        """End the session of a request that can never be served, except for requests in flight."""
        self._end_session(self.sessions.of_row[row], now_ps)

    def on_not_admitted(self, row: int, _: str, now_ps: int) -> None:
        """Treat a request that is not admitted as one that timed out."""
        self.on_failure(row, now_ps)

    def on_failure(self, row: int, now_ps: int) -> None:
        """Retry a request; without attempts or tokens left, its session ends, or goes on as if it had been answered."""
        sessions, backoff, attempt = self.sessions, self._patience.backoff, self._attempts.get(row, 1)
        session = sessions.of_row[row]
        may_retry = backoff is not None and attempt < backoff.max_attempts and session not in self._ended
        if backoff is not None and may_retry and (self._budget is None or self._budget.take()):
            again = self._rows.copy_row(row)
            self._recorder.grow(self._rows.capacity)
            sessions.copy_row(row)
            self._attempts[again] = attempt + 1
            sessions.n_unanswered[session] -= 1
            sessions.n_unsent[session] += 1
            self._plan(again, now_ps + backoff.wait_ps(self._rows.original(row), attempt))
        elif self._patience.goes_on:
            self._go_on(row, now_ps)
        else:
            self._end_session(session, now_ps)

    def _go_on(self, row: int, at_ps: int) -> None:
        """Schedule the requests that waited for a row and for no other."""
        sessions, ready_ps = self.sessions, self._ready_ps
        session = sessions.of_row[row]
        if sessions.n_unsent[session]:
            for at in range(sessions.child_starts[row], sessions.child_starts[row + 1]):
                child = sessions.children[at]
                sessions.n_awaited[child] -= 1
                if not sessions.n_awaited[child]:
                    begin_ps = max(at_ps, ready_ps.pop(child, 0)) if ready_ps else at_ps
                    self._plan_after(child, begin_ps)
                elif self._patience.goes_on:
                    ready_ps[child] = max(at_ps, ready_ps.get(child, 0))
        self._end_one(session, at_ps)

    def _end_session(self, session: int, now_ps: int) -> None:
        """End a session with a request that failed, except for requests in flight."""
        sessions = self.sessions
        n_rows = sessions.n_unsent[session]
        self._ended.add(session)
        if sessions.n_due[session]:
            kept = [each for each in self._to_send if sessions.of_row[each[1]] != session]
            n_rows -= sum(sessions.of_row[row] == session and row in self._attempts for _, row in self._to_send)
            self._to_send = kept
            heapify(kept)
        self._n_left -= n_rows
        sessions.n_unsent[session] = sessions.n_due[session] = 0
        self._end_one(session, now_ps)
        self._check_end()

    def _begin_first(self) -> None:
        """Schedule the first session."""
        self._on_begun()

    def _on_begun(self) -> None:
        """Schedule the next session when one has begun."""
        if self._n_begun < len(self.sessions):
            row = self._next_first_row()
            self._plan(row, self._rows.arrival_ps[row])

    def _on_over(self, session: int, at_ps: int) -> None:
        """Handle a session that is over: all its sent requests have ended, and none is left to send."""

    def _next_first_row(self) -> int:
        self._n_begun += 1
        return self.sessions.first_rows[self._n_begun - 1]

    def _end_one(self, session: int, at_ps: int) -> None:
        sessions = self.sessions
        sessions.n_unanswered[session] -= 1
        if not sessions.n_unanswered[session] and not sessions.n_unsent[session]:
            self._on_over(session, at_ps)

    def _plan_after(self, row: int, at_ps: int) -> None:
        """Schedule a row after its think time."""
        think_ps: int = self.sessions.think_ps[row]  # one of Python's: machine integers would wrap in silence
        self._plan(row, at_ps + think_ps)

    def _plan(self, row: int, sent_ps: int) -> None:
        """Schedule a row, unless sending ends before."""
        if sent_ps >= self._stop_ps:
            return
        if sent_ps > LATEST_PS:
            rule = f"all requests must be sent within {LONGEST}"
            raise TraceError(f"workload: {rule}, got one at {to_s(sent_ps):g} s; shorten think times")
        self.sessions.n_due[self.sessions.of_row[row]] += 1
        heappush(self._to_send, (sent_ps, row))

    def _leaving(self, now_ps: int) -> int | None:
        """Let the rows of this instant into the front end; return the next that leaves it now, in the order of
        sending."""
        coming = self._coming
        while self._to_send and self._to_send[0][0] <= now_ps:
            self._enter(heappop(self._to_send)[1], now_ps)
        if not coming or coming[0][0] > now_ps:
            return None
        row = coming.popleft()[1]
        if not self._attempts or row not in self._attempts:  # fast: nearly always
            self._n_left -= 1
        self._sent.append(row)
        return row

    @property
    def _next_due_ps(self) -> int | None:
        """When the next row enters the front end or leaves it; None: none does."""
        if not self._coming:  # fast: without a search for the least
            return self._to_send[0][0] if self._to_send else None
        next_ps = self._coming[0][0]
        return self._to_send[0][0] if self._to_send and self._to_send[0][0] < next_ps else next_ps

    @property
    def next_ps(self) -> int | None:
        """When something is next due; None: nothing is."""
        next_ps, stop_ps = self._next_due_ps, self._stops_at_ps
        return stop_ps if next_ps is None or (stop_ps is not None and stop_ps < next_ps) else next_ps

    def take(self) -> int | None:
        """Do what is next due; return the row that leaves the front end, if one does."""
        now_ps = self.next_ps
        assert now_ps is not None, "something is due"
        if self._stops_at_ps == now_ps:
            self._stops_at_ps = None
            self._on_end()
        row = self._leaving(now_ps)
        self._check_end()
        return row

    def _check_end(self) -> None:
        """End the sending with the load's last row, retries aside, unless a fixed instant ends it."""
        if not self._n_left and self._offered.stop_sending_ps is None:
            self._on_end()

    def _enter(self, row: int, now_ps: int) -> None:
        """Send a row into the front end."""
        sessions = self.sessions
        session = sessions.of_row[row]
        sessions.n_due[session] -= 1
        sessions.n_unsent[session] -= 1
        sessions.n_unanswered[session] += 1
        self._rows.arrival_ps[row] = now_ps
        if self._budget is not None and row not in self._attempts:
            self._budget.add()
        if self.deadlines is not None:
            self.deadlines.sent(row, now_ps)
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
        self._count_refusal(row, reason)
        super().on_refusal(row, reason, now_ps)

    def on_not_admitted(self, row: int, reason: str, now_ps: int) -> None:
        """Count a request that is not admitted, unless retries let time pass."""
        if self._patience.backoff is None:
            self._count_refusal(row, reason)
        super().on_not_admitted(row, reason, now_ps)

    def _count_refusal(self, row: int, reason: str) -> None:
        self._n_consecutive_refusals += self.sessions.of_row[row] not in self._timed
        self._offered.check_refusals(self._n_consecutive_refusals, reason)

    def _begin_first(self) -> None:
        """Begin a session of each user at time zero, and schedule the sessions that have their own times."""
        for _ in range(self._offered.concurrency or 0):
            if self._has_session(0):
                self._plan(self._next_first_row(), 0)
        for session in self._timed:
            row = self.sessions.first_rows[session]
            self._plan(row, self._rows.arrival_ps[row])

    def _on_begun(self) -> None:
        """Do nothing: a session begins only when its user's last one is over."""

    def _on_over(self, session: int, at_ps: int) -> None:
        """Schedule the user's next session after its think time."""
        if not (self._timed and session in self._timed) and self._has_session(at_ps):
            row = self._next_first_row()
            self._plan_after(row, at_ps)

    def _has_session(self, at_ps: int) -> bool:
        """Return whether a session is left; draw more where users run for a fixed time."""
        draw_more = self._offered.draw_more
        if self._n_begun == self._timed.start:
            self._n_begun = self._timed.stop
        if self._n_begun == len(self.sessions) and draw_more is not None and at_ps < self._stop_ps:
            trace = draw_more(self._n_drawn)
            self._rows.append(trace)
            self._recorder.grow(self._rows.capacity)
            self.sessions.append(trace.dependencies or Dependencies.none(len(trace)))
            self._n_drawn += len(trace)
            self._n_left += len(trace)
        return self._n_begun < len(self.sessions)
