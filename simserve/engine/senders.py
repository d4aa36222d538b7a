"""Senders: send each request of the load; one class for traces, one for closed loops."""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.engine.admission_gate import Send
from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.frontend import FrontEnd, FrontEndQueue
from simserve.engine.offered import Offered, OfferedRows
from simserve.engine.recorder import Recorder

LOOK_AHEAD = 4096
"""Rows of a trace that pass the front end at a time."""


class RowSender:
    """Sends the rows of a load in their order, each once."""

    session_requests: NDArray[np.int64] | None = None
    """The load has no sessions."""
    has_attempts = False
    """Clients neither time out nor retry."""

    def __init__(self) -> None:
        self.n_sent = 0

    @property
    def rows_sent(self) -> slice:
        """Rows sent, in the order of sending."""
        return slice(self.n_sent)

    def stop(self) -> int:
        """End the run; return how many requests reached the router."""
        return self.n_sent


class TraceSender(RowSender):
    """Sends row i at its own arrival time, through the front end's queue."""

    def __init__(
        self,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        front_end: FrontEnd,
        send: Send,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()
        self._rows, self._n_rows = rows, len(rows)
        takes_time = front_end.receive_ps or front_end.token_ps
        self._front_end_queue = FrontEndQueue(front_end, recorder) if takes_time else None
        self._first_row = 0
        self._all_out_ps: list[int] = []
        """When rows from `_first_row` on reach the router."""
        self._send = send
        self._on_end = on_end
        self._due = Alarm(clock, self._send_due, SEND_PHASE)

    def start(self) -> None:
        """Wait for the first arrival."""
        if self._n_rows:
            self._due.set(self.out_ps(0))

    def _send_due(self, now_ps: int) -> int | None:
        """Send all requests of this instant; return the next one."""
        row, n, next_ps, send = self.n_sent, self._n_rows, now_ps, self._send
        while next_ps == now_ps:
            send(row, now_ps)
            row += 1
            if row == n:
                break
            next_ps = self.out_ps(row)
        self.n_sent = row
        if row < n:
            return next_ps
        self._on_end()
        return None

    def out_ps(self, row: int) -> int:
        """Return when the next row reaches the router."""
        place = row - self._first_row
        if place == len(self._all_out_ps):
            place, self._first_row, self._all_out_ps = 0, row, self.look_ahead(row).tolist()
        return self._all_out_ps[place]

    def look_ahead(self, row: int) -> NDArray[np.int64]:
        """Return when the next rows reach the router."""
        ahead = slice(row, min(row + LOOK_AHEAD, self._n_rows))
        sent_ps, queue = self._rows.arrivals[ahead], self._front_end_queue
        return sent_ps if queue is None else queue.all_out_ps(row, sent_ps, self._rows.prompts[ahead])


class ClosedLoopSender(RowSender):
    """Clients that each send a request, wait for the answer, and then send the next."""

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
        super().__init__()
        self._n_begun = 0
        self._rows = rows
        self._recorder = recorder
        self._offered, self._stop_sending_ps, self._n_rows = offered, offered.stop_sending_ps, len(rows)
        self._front_end_queue = FrontEndQueue(front_end, recorder)
        self._respond_ps = front_end.respond_ps
        self._send = send
        self._on_end = on_end
        self._coming: deque[tuple[int, int]] = deque()
        """(instant at which it leaves the front end, row) of requests in the front end, in order."""
        self._n_consecutive_refusals = 0
        self._due = Alarm(clock, self._send_due, SEND_PHASE)

    def start(self) -> None:
        """Send from all clients at time zero."""
        for _ in range(self._offered.concurrency or 0):
            self._send_next(0)

    @property
    def next_ps(self) -> int | None:
        """When the next row leaves the front end; None: none is there."""
        return self._coming[0][0] if self._coming else None

    def take(self) -> int | None:
        """Return the row that leaves the front end next, in place of sending it."""
        now_ps, row = self._coming.popleft()
        self.n_sent = row + 1
        if not self._coming and not self._has_row(now_ps):
            self._on_end()
        return row

    def on_answer(self, row: int, now_ps: int) -> None:
        """Let a client send its next request when it has the last token of an answer."""
        self._n_consecutive_refusals = 0
        self._send_next(now_ps + self._respond_ps)

    def on_refusal(self, row: int, reason: str, now_ps: int) -> None:
        """Let a refused client send its next request at once."""
        self._n_consecutive_refusals += 1
        self._offered.check_refusals(self._n_consecutive_refusals, reason)
        self._send_next(now_ps)

    def on_not_admitted(self, row: int, reason: str, now_ps: int) -> None:
        """Let a client that is not admitted send its next request at once, too."""
        self.on_refusal(row, reason, now_ps)

    def on_failure(self, row: int, now_ps: int) -> None:
        """Let a client send its next request at once when one was lost."""
        self._send_next(now_ps)

    def _send_next(self, sent_ps: int) -> None:
        """Send the next row, if there is one."""
        if not self._has_row(sent_ps):
            if not self._coming:
                self._on_end()
            return
        row = self._n_begun
        self._n_begun = row + 1
        self._rows.arrival_ps[row] = sent_ps
        self._coming.append((self._front_end_queue.out_ps(row, sent_ps, self._rows.prompt_tokens[row]), row))
        if len(self._coming) == 1:
            self._due.set(self._coming[0][0])

    def _send_due(self, now_ps: int) -> int | None:
        """Forward all requests that have left the front end, in the order of sending; return when the next leaves."""
        coming = self._coming
        while coming and coming[0][0] <= now_ps:
            row = coming[0][1]
            self.n_sent = row + 1
            self._send(row, now_ps)
            coming.popleft()
        if coming:
            return coming[0][0]
        if not self._has_row(now_ps):
            self._on_end()
        return None

    def _has_row(self, sent_ps: int) -> bool:
        """Return whether a row is left; draw more where the loop runs for a fixed time."""
        stop_ps = self._stop_sending_ps
        if stop_ps is not None and sent_ps >= stop_ps:
            return False
        if self._n_begun == self._n_rows and self._offered.draw_more is not None:
            self._rows.append(self._offered.draw_more(self._n_begun))
            self._n_rows = len(self._rows)
            self._recorder.grow(self._n_rows)
        return self._n_begun < self._n_rows
