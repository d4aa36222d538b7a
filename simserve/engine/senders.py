"""TraceSender: sends each request of a load that waits for no answers."""

import numpy as np
from numpy.typing import NDArray

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

    def __init__(self, rows: OfferedRows, recorder: Recorder, front_end: FrontEnd) -> None:
        self.n_sent = 0
        self._rows, self._n_rows = rows, len(rows)
        takes_time = front_end.receive_ps or front_end.token_ps or front_end.bootstrap_ps
        self._front_end_queue = FrontEndQueue(front_end, recorder) if takes_time else None
        self._first_row = 0
        self._all_out_ps: list[int] = []
        """When rows from `_first_row` on reach the router."""

    @property
    def rows_sent(self) -> slice:
        """Rows sent, in the order of sending."""
        return slice(self.n_sent)

    def stop(self) -> int:
        """End the run; return how many requests reached the router."""
        return self.n_sent

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
