"""Clients: senders of a load with timeouts or retries."""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from simserve.engine.admission_gate import Send
from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.deadlines import Deadlines
from simserve.engine.frontend import FrontEnd, FrontEndQueue
from simserve.engine.offered import Offered, OfferedRows, Patience
from simserve.engine.recorder import Recorder


class Clients:
    """Sends an open load at its own times, or a closed loop: each client sends when its last request has ended.

    Each attempt is a row of its own: the load's rows, and copies of refused or timed-out ones. A request that can never
    be served is not retried.
    """

    def __init__(
        self,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        offered: Offered,
        patience: Patience,
        front_end: FrontEnd,
        send: Send,
        on_end: Callable[[], None],
    ) -> None:
        self._rows, self._recorder, self._offered = rows, recorder, offered
        self._backoff = patience.backoff
        self._front_end_queue = FrontEndQueue(front_end, recorder)
        self._respond_ps = front_end.respond_ps
        self._send = send
        self._on_end = on_end
        self.deadlines: Deadlines | None = None
        self._fresh: Iterator[int] = iter(range(len(rows)))
        """Rows of the load not sent yet."""
        self._n_fresh = 0
        """Number of rows of the load sent."""
        self._failed: dict[int, int] = {}
        """Attempt number of each row that is a retry."""
        self._to_send: list[tuple[int, int, int | None]] = []
        """A heap of (instant, number, failed row; None: a new row of the load)."""
        self._n_entries = 0
        self._in_front_end: deque[tuple[int, int]] = deque()
        """(instant at which it leaves the front end, row) of requests in the front end, in order."""
        self._sent: list[int] = []
        self._whole_tokens: dict[int, int] = {}
        """Output lengths, as offered, of rows that were cut at a limit."""
        self._n_consecutive_refusals = 0
        self._due = Alarm(clock, self._send_due, SEND_PHASE)

    # -- called by the cluster -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait for the first arrival, or send from all clients of a closed loop."""
        if self._offered.concurrency is None:
            self._wait_for_arrival()
        for _ in range(self._offered.concurrency or 0):
            self._put(0, None)

    @property
    def n_sent(self) -> int:
        """Number of requests sent, counting each attempt."""
        return len(self._sent)

    @property
    def rows_sent(self) -> NDArray[np.int64]:
        """Rows sent, in the order of sending."""
        return np.array(self._sent, np.int64)

    @property
    def attempts(self) -> NDArray[np.int32]:
        """Attempt number of each row sent, from 1."""
        return np.array([self._failed.get(row, 1) for row in self._sent], np.int32)

    def stop(self) -> int:
        """End the run; return how many requests were sent and have left the front end."""
        if self.deadlines is not None:
            self.deadlines.stop()
        return self.n_sent - sum(not self._has_gone(row) for _, row in self._in_front_end)

    def on_answer(self, row: int, now_ps: int) -> None:
        """Handle the last token of an answer; if its client still waits, it receives the token shortly after."""
        if self.deadlines is None or self.deadlines.answered(row, now_ps):
            self._n_consecutive_refusals = 0
            self._send_next_at(now_ps + self._respond_ps)

    def on_refusal(self, row: int, reason: str, now_ps: int) -> None:
        """Handle a request that can never be served."""
        if self.deadlines is not None:
            self.deadlines.refused(row)
        self._n_consecutive_refusals += 1
        self._offered.check_refusals(self._n_consecutive_refusals, reason)
        self._send_next_at(now_ps)

    def on_not_admitted(self, row: int, _: str, now_ps: int) -> None:
        """Handle a request that was not admitted."""
        if self.deadlines is not None:
            self.deadlines.refused(row)
        self.on_failure(row, now_ps)

    def on_failure(self, row: int, now_ps: int) -> None:
        """Retry a request that got no answer, or drop it."""
        attempt, backoff = self._failed.get(row, 1), self._backoff
        if backoff is None or attempt >= backoff.max_attempts:
            self._send_next_at(now_ps)
        else:
            self._put(now_ps + backoff.wait_ps(self._rows.original(row), attempt), row)

    # -- sending ---------------------------------------------------------------------------------------------------

    def _send_next_at(self, at_ps: int) -> None:
        """Let a client of a closed loop send its next request at an instant."""
        if self._offered.concurrency is not None:
            self._put(at_ps, None)

    def _wait_for_arrival(self) -> None:
        """Schedule the next row of an open load."""
        row = next(self._fresh, None)
        if row is None:
            self._on_end()
            return
        heappush(self._to_send, (self._rows.arrival_ps[row], -1, row))  # before retries at that instant
        self._wake(self._rows.arrival_ps[row])

    def _put(self, at_ps: int, failed_row: int | None) -> None:
        self._n_entries += 1
        heappush(self._to_send, (at_ps, self._n_entries, failed_row))
        self._wake(at_ps)

    def _wake(self, at_ps: int) -> None:
        due_ps = self._due.due_ps
        if due_ps is None or at_ps < due_ps:
            self._due.set(at_ps)

    def _send_due(self, now_ps: int) -> None:
        """Send what is due at this instant, then forward what leaves the front end; either may cause more sends."""
        to_send, in_front_end = self._to_send, self._in_front_end
        while True:
            if to_send and to_send[0][0] <= now_ps:
                self._go(heappop(to_send), now_ps)
            elif in_front_end and in_front_end[0][0] <= now_ps:
                self._enter(in_front_end.popleft()[1], now_ps)
            else:
                break
        for queue in (to_send, in_front_end):
            if queue:
                self._wake(queue[0][0])

    def _go(self, entry: tuple[int, int, int | None], now_ps: int) -> None:
        """Send a new row of the load, or a retry."""
        _, number, failed_row = entry
        row: int | None
        if number < 0:
            row = failed_row
            self._wait_for_arrival()
        elif self._has_stopped(now_ps):
            row = None
        else:
            row = self._next_fresh() if failed_row is None else self._again(failed_row)
        if row is None:
            self._on_end()
            return
        self._rows.arrival_ps[row] = now_ps
        self._sent.append(row)
        if self.deadlines is not None:
            self.deadlines.sent(row, now_ps)
        self._in_front_end.append((self._front_end_queue.out_ps(row, now_ps, self._rows.prompt_tokens[row]), row))

    def _has_stopped(self, now_ps: int) -> bool:
        stop_ps = self._offered.stop_sending_ps
        return stop_ps is not None and now_ps >= stop_ps

    def _next_fresh(self) -> int | None:
        """Return the next row of a closed loop; draw more where the loop runs for a fixed time."""
        row = next(self._fresh, None)
        if row is None and self._offered.draw_more is not None:
            first = len(self._rows)
            self._rows.append(self._offered.draw_more(self._n_fresh))
            self._recorder.grow(self._rows.capacity)
            self._fresh = iter(range(first, len(self._rows)))
            row = next(self._fresh)
        self._n_fresh += row is not None
        return row

    def _again(self, failed_row: int) -> int:
        """Add a row for the next attempt."""
        row = self._rows.copy_row(failed_row, self._whole_tokens.get(failed_row))
        if self._rows.capacity > len(self._recorder.status):
            self._recorder.grow(self._rows.capacity)
        self._failed[row] = self._failed.get(failed_row, 1) + 1
        return row

    def _enter(self, row: int, now_ps: int) -> None:
        """Forward a request from the front end to a replica, unless its client has given up."""
        if self._has_gone(row):
            return
        offered_tokens = self._rows.output_tokens[row]
        placed = self._send(row, now_ps)
        if self._rows.output_tokens[row] != offered_tokens:
            self._whole_tokens[row] = offered_tokens
        if placed is not None and self.deadlines is not None:
            self.deadlines.placed(row, placed)

    def _has_gone(self, row: int) -> bool:
        return self.deadlines is not None and self.deadlines.has_gone(row)
