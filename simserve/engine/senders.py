"""Senders: when each request of the load is sent. One for a trace at its own times, one for a closed loop."""

from collections.abc import Callable

from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.offered import Offered, Rows
from simserve.engine.recorder import Recorder
from simserve.errors import SimserveError

MOST_REFUSED_AT_ONCE = 10_000
"""A closed loop whose requests are all refused would never move the clock; after so many we say so."""


class TraceSender:
    """Sends row i at its own arrival time."""

    def __init__(self, clock: Clock, rows: Rows, send: Callable[[int, int], None], on_end: Callable[[], None]) -> None:
        self.n_sent = 0
        self._rows = rows
        self._send = send
        self._on_end = on_end
        self._due = Alarm(clock, self._send_due, SEND_PHASE)

    def start(self) -> None:
        """Wait for the first arrival."""
        if len(self._rows):
            self._due.set(self._rows.arrival_ps[0])

    def _send_due(self, now_ps: int) -> None:
        """Send all requests of this instant, then wait for the next."""
        arrival_ps = self._rows.arrival_ps
        row, n = self.n_sent, len(arrival_ps)
        while row < n and arrival_ps[row] == now_ps:
            self._send(row, now_ps)
            row += 1
        self.n_sent = row
        if row < n:
            self._due.set(arrival_ps[row])
        else:
            self._on_end()


class ClosedLoopSender:
    """Clients that each send a request, wait for the answer, and send the next at the same instant."""

    def __init__(
        self,
        clock: Clock,
        rows: Rows,
        recorder: Recorder,
        offered: Offered,
        send: Callable[[int, int], None],
        on_end: Callable[[], None],
    ) -> None:
        self.n_sent = 0
        self._rows = rows
        self._recorder = recorder
        self._offered = offered
        self._send = send
        self._on_end = on_end
        self._n_idle = offered.concurrency or 0
        self._n_refused_at_once = 0
        self._due = Alarm(clock, self._send_due, SEND_PHASE)

    def start(self) -> None:
        """All clients send at time zero."""
        self._due.set(0)

    def on_answer(self, now_ps: int) -> None:
        """A client has its whole answer."""
        self._n_refused_at_once = 0
        self._n_idle += 1
        if self._n_idle == 1:
            self._due.set(now_ps)

    def on_refusal(self, reason: str) -> None:
        """A client was refused; it asks again at once (`_send_due` is running)."""
        self._n_idle += 1
        self._n_refused_at_once += 1
        if self._offered.draw_more is not None and self._n_refused_at_once > MOST_REFUSED_AT_ONCE:
            raise SimserveError(f"workload: every request of the closed loop is refused ({reason}); shorten them")

    def _send_due(self, now_ps: int) -> None:
        while self._n_idle and self._has_row(now_ps):
            row = self.n_sent
            self._n_idle -= 1
            self.n_sent = row + 1
            self._rows.arrival_ps[row] = now_ps
            self._send(row, now_ps)
        if not self._has_row(now_ps):
            self._on_end()

    def _has_row(self, now_ps: int) -> bool:
        """There is a request to send; draws further ones where the loop runs for a time."""
        stop_ps = self._offered.stop_sending_ps
        if stop_ps is not None and now_ps >= stop_ps:
            return False
        if self.n_sent == len(self._rows) and self._offered.draw_more is not None:
            self._rows.append(self._offered.draw_more(self.n_sent))
            self._recorder.grow(len(self._rows))
        return self.n_sent < len(self._rows)
