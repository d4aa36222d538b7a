"""TraceSender: sends each request of a load that waits for no answers."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.engine.admission_gate import Send
from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.frontend import FrontEnd, FrontEndQueue
from simserve.engine.offered import OfferedRows
from simserve.engine.recorder import Recorder

LOOK_AHEAD = 4096
"""Rows of a trace that pass the front end at a time."""


class TraceSender:
    """Sends row i at its own arrival time, through the front end's queue."""

    session_requests: NDArray[np.int64] | None = None
    """The load has no sessions."""
    has_attempts = False
    """Clients neither time out nor retry."""

    def __init__(
        self,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        front_end: FrontEnd,
        send: Send,
        on_end: Callable[[], None],
    ) -> None:
        self.n_sent = 0
        self._rows, self._n_rows = rows, len(rows)
        takes_time = front_end.receive_ps or front_end.token_ps
        self._front_end_queue = FrontEndQueue(front_end, recorder) if takes_time else None
        self._first_row = 0
        self._all_out_ps: list[int] = []
        """When rows from `_first_row` on reach the router."""
        self._send = send
        self._on_end = on_end
        self._due = Alarm(clock, self._send_due, SEND_PHASE)

    @property
    def rows_sent(self) -> slice:
        """Rows sent, in the order of sending."""
        return slice(self.n_sent)

    def stop(self) -> int:
        """End the run; return how many requests reached the router."""
        return self.n_sent

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
