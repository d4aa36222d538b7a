"""DecodeRows: the rows of steps with decoding requests, and the rows in which each span begins and ends."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simserve.errors import InvariantError
from simserve.tables import large
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.units import array_to_ps


@dataclass(frozen=True)
class DecodeRows:
    """Rows with decode_requests > 0, in table order: replica by replica, each in time order.

    Invariant: a span begins with the first step of one row and ends with the last step of another; a span without
    steps has last = first - 1.
    """

    replica: Any
    n_steps: Ints
    start_s: Floats
    end_s: Floats
    first_ps: Ints
    """Duration of the row's first step, in whole picoseconds."""
    growth_ps: Ints
    """Increase of the duration from step to step."""
    span_first: Ints
    """The row in which each span begins, `(n_spans,)`."""
    span_last: Ints
    accepted_tokens: Any
    """Accepted proposals of the steps of each row."""
    places: Any
    """Indices of these rows in the table: a slice or whole numbers."""

    def __len__(self) -> int:
        return len(self.n_steps)

    def last_ps(self, rows: slice) -> Ints:
        """Return the duration of the last step of some rows."""
        return self.first_ps[rows] + self.growth_ps[rows] * (self.n_steps[rows] - 1)

    def place(self, rows: slice) -> Any:
        """Return the indices of some rows in the table."""
        return rows if isinstance(self.places, slice) else self.places[rows]

    @cached_property
    def has_steps(self) -> Flags:
        """Whether each span has a decode step."""
        return large.built(len(self.span_last), lambda piece: self.span_last[piece] >= self.span_first[piece])

    @cached_property
    def pause_ps(self) -> Ints:
        """Time from the end of the row before to the start of each row, `(n_rows,)`: prefill-only steps, or none."""
        return large.built(len(self), self._pauses_ps)

    def _pauses_ps(self, piece: slice) -> Ints:
        pause = np.zeros(piece.stop - piece.start, np.int64)
        first = max(piece.start, 1)
        own, before = slice(first, piece.stop), slice(first - 1, piece.stop - 1)
        since = pause[first - piece.start :]
        since[:] = array_to_ps(self.start_s[own] - self.end_s[before])
        since[self.replica[own] != self.replica[before]] = 0  # no span crosses replicas
        return pause

    def members(self, spans: Flags) -> tuple[Ints, Ints]:
        """Return how many of the chosen spans contain each row, and how many begin with it, `(n_rows,)` each."""
        begin, end = (large.zeros(len(self), np.int64) for _ in range(2))
        for piece in large.pieces(len(spans)):
            chosen = spans[piece] & self.has_steps[piece]
            for counts, rows in ((begin, self.span_first[piece][chosen]), (end, self.span_last[piece][chosen])):
                lowest = int(rows.min(initial=len(self)))
                added = np.bincount(rows - lowest)
                counts[lowest : lowest + len(added)] += added

        def changes(piece: slice) -> Ints:
            """Return how many spans begin with each row, less those that end with the one before."""
            change: Ints = begin[piece].copy()
            first = max(piece.start, 1)
            change[first - piece.start :] -= end[first - 1 : piece.stop - 1]
            return change

        return large.cumulated(len(self), changes), begin


def decode_rows(steps: Columns, spans: Columns) -> DecodeRows:
    """Find the decode rows and the spans in them. Raises InvariantError if the two tables contradict each other."""
    n_all = len(steps["decode_requests"])
    rows: Any = large.flatnonzero(n_all, lambda piece: steps["decode_requests"][piece] > 0)
    n = len(rows)
    if n == n_all:
        rows = slice(None)

    def part(piece: slice) -> Columns:
        at = piece if n == n_all else rows[piece]
        n_steps = steps["n_steps"][at].astype(np.int64, copy=False)
        first_ps = array_to_ps(steps["first_step_s"][at])
        grown_ps = array_to_ps(steps["last_step_s"][at]) - first_ps
        return {
            "replica": steps["replica"][at],
            "n_steps": n_steps,
            "start_s": steps["start_s"][at],
            "end_s": steps["end_s"][at],
            "first_ps": first_ps,
            # fast: whole numbers, so exact
            "growth_ps": np.rint(grown_ps / np.maximum(n_steps - 1, 1)).astype(np.int64),
            "accepted_tokens": steps["accepted_tokens"][at],
            "decode_step": steps["decode_step"][at],
        }

    columns: Columns = large.built_all(n, part)
    columns |= _places(columns.pop("decode_step"), columns["n_steps"], columns["replica"], spans)
    return DecodeRows(**columns, places=rows)


def _places(decode_step: Ints, n_steps: Ints, replica: Any, spans: Columns) -> dict[str, Ints]:
    """Return the rows in which spans begin and end."""
    # Number decode steps across replicas, so that rows have a single order.
    end = large.cumulated(len(n_steps), lambda piece: n_steps[piece])
    begin = large.built(len(n_steps), lambda piece: end[piece] - n_steps[piece])
    n_spans = len(spans["replica"])
    n_replicas = 1 + max((int(spans["replica"][piece].max()) for piece in large.pieces(n_spans)), default=-1)
    first_rows = large.bounds(replica, n_replicas)[:-1]
    offset = np.zeros(len(first_rows), np.int64)
    known = first_rows < len(begin)
    offset[known] = begin[first_rows[known]] - decode_step[first_rows[known]]

    def part(piece: slice) -> dict[str, Ints]:
        first_step = spans["first_step"][piece]
        first = first_step + offset[spans["replica"][piece]]
        stop = first + (spans["last_step"][piece] - first_step + 1)
        span_first = np.searchsorted(begin, first)
        span_last = np.searchsorted(end, stop)
        is_empty = stop == first
        span_last[is_empty] = span_first[is_empty] - 1
        _check(first[~is_empty], begin, span_first[~is_empty])
        _check(stop[~is_empty], end, span_last[~is_empty])
        return {"span_first": span_first, "span_last": span_last}

    return large.built_all(n_spans, part)


def _check(expected: Ints, edges: Ints, places: Ints) -> None:
    """Check that spans begin and end with rows, as all steps of a row have the same members."""
    n_outside = int(np.count_nonzero(places >= len(edges)))
    if n_outside:
        raise InvariantError("every span lies within the decode steps of its replica", n_outside, 0, 0.0)
    n_inside = int(np.count_nonzero(edges[places] != expected))
    if n_inside:
        raise InvariantError("every span begins and ends with a row of steps", n_inside, 0, 0.0)
