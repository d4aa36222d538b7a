"""Records: rows of steps, spans and ended requests in columns, which the recorder takes over now and then."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.columns.live import Live
from simserve.engine.deadlines import Deadlines
from simserve.engine.recorder import Recorder
from simserve.integers import NONE, buffer, vec
from simserve.units import EndsTooLate

STEP_WIDTH: Final = 10
"""A replica and a STEP_RUN_ROW: its instants and numbers of keys, then its counts, two in a cell."""
SPAN_WIDTH: Final = 5
"""A replica and a SPAN_ROW."""
ENDED: Final = ("replica", "status", "scheduled_ps", "first_token_ps", "finish_ps", "chunks_ps")
ENDED_WIDTH: Final = 7
"""A row and its cells in these columns."""
FIRST_ROWS: Final = 1024
COUNT_BITS: Final = 32
MOST_COUNT: Final = (1 << 31) - 1
"""Largest count of a step run that its row holds."""


class RowBuffer:
    """Rows of equal width in one column."""

    def __init__(self, width: i64) -> None:
        self._width = width
        self.cells: vec[i64] = buffer(FIRST_ROWS * width)
        self.n: i64 = 0
        """Cells in use."""

    def room(self) -> i64:
        """Make room for a row; return its first cell, which counts as in use from now on with the others."""
        at = self.n
        if at == len(self.cells):
            wider: vec[i64] = buffer(2 * at)
            for i in range(at):
                wider[i] = self.cells[i]
            self.cells = wider
        self.n = at + self._width
        return at

    def take(self) -> NDArray[np.int64]:
        """Return all rows, and forget them."""
        cells: Any = self.cells
        rows = np.asarray(cells)[: self.n].reshape(-1, self._width)
        self.n = 0
        return rows


class Records:
    """What a run has recorded since the last flush."""

    def __init__(self, recorder: Recorder, live: Live, deadlines: Deadlines | None) -> None:
        """deadlines: they look at what is recorded of requests while the run goes on."""
        self.recorder, self.live, self.deadlines = recorder, live, deadlines
        self.padding_tokens: dict[int, int] = {}
        """Padding of answered rows that have some, of which clients may have given up."""
        self.steps, self.spans, self.ended = RowBuffer(STEP_WIDTH), RowBuffer(SPAN_WIDTH), RowBuffer(ENDED_WIDTH)
        recorder.flush_steps = self.flush_steps

    def span(self, place: i64, step: i64) -> None:
        """Record the tokens of a request: one from its prefill and one per decode step since, before `step`."""
        live, at, cells = self.live, self.spans.room(), self.spans.cells
        cells[at] = live.replica[place]
        cells[at + 1] = live.row[place]
        cells[at + 2] = live.join_step[place]
        cells[at + 3] = step - 1
        cells[at + 4] = live.joined_ps[place]

    def end(self, place: i64, status: i64, finish_ps: i64) -> None:
        """Record a request that has ended, or is there as the run ends."""
        if self.deadlines is not None:
            self._end_now(place, status, finish_ps)
            return
        live, at, cells = self.live, self.ended.room(), self.ended.cells
        cells[at] = live.row[place]
        cells[at + 1] = NONE
        if live.scheduled_ps[place] >= 0:
            cells[at + 1] = live.replica[place]
        cells[at + 2] = status
        cells[at + 3] = live.scheduled_ps[place]
        cells[at + 4] = live.first_token_ps[place]
        cells[at + 5] = finish_ps
        cells[at + 6] = live.chunks_ps[place]

    def first_token(self, place: i64, now_ps: i64) -> None:
        """Note a first token."""
        live, recorder = self.live, self.recorder
        live.first_token_ps[place] = now_ps
        if self.deadlines is not None:
            row = live.row[place]
            recorder.first_token_ps[row] = now_ps
            recorder.replica[row] = live.replica[place]

    def _end_now(self, place: i64, status: i64, finish_ps: i64) -> None:
        """Record it at once; a client that has given up keeps what it had then."""
        live, row, columns = self.live, int(self.live.row[place]), self.recorder.columns
        if live.scheduled_ps[place] >= 0 and row not in self.recorder.moved:
            columns["replica"][row] = live.replica[place]
        columns["scheduled_ps"][row] = live.scheduled_ps[place]
        columns["first_token_ps"][row] = live.first_token_ps[place]
        columns["status"][row], columns["finish_ps"][row] = status, finish_ps
        columns["chunks_ps"][row] = live.chunks_ps[place]
        if live.padding_tokens[place]:
            self.padding_tokens[row] = live.padding_tokens[place]
        if self.deadlines is not None and self.deadlines.has_gone(row):
            self.deadlines.restore(row)

    def flush_steps(self) -> None:
        """Give the recorder all rows of steps."""
        _append(self.recorder.step_run_rows, self.steps.take())

    def flush(self) -> None:
        """Give the recorder all rows."""
        recorder = self.recorder
        self.flush_steps()
        _append(recorder.span_rows, self.spans.take())
        ended = self.ended.take()
        stays = ~np.isin(ended[:, 0], [*recorder.moved])  # others were first on another replica
        for place, name in enumerate(ENDED, 1):
            rows = ended[stays] if name == "replica" else ended
            recorder.columns[name][rows[:, 0]] = rows[:, place]
        recorder.spill()


def counts(one: i64, other: i64) -> i64:
    """Return the cell with two counts of a step run. Raises EndsTooLate for one that it does not hold."""
    if (one | other) > MOST_COUNT:
        raise EndsTooLate
    return one | other << COUNT_BITS


def _append(tails: list[bytearray], rows: NDArray[np.int64]) -> None:
    """Append rows to the buffers of their replicas, which stand before the fields."""
    if len(tails) > 1:
        replica = rows[:, 0].astype(np.min_scalar_type(len(tails)))  # fast: narrow numbers are sorted by their digits
        rows = rows[np.argsort(replica, kind="stable")]
    ends = np.searchsorted(rows[:, 0], np.arange(len(tails)), side="right").tolist()
    start = 0
    for tail, end in zip(tails, ends, strict=True):
        if end > start:
            tail += rows[start:end, 1:].tobytes()
        start = end
