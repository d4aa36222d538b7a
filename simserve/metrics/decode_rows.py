"""DecodeRows: the rows of steps with decoding requests, and the rows in which each span begins and ends."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simserve.errors import InvariantError
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

    @property
    def last_ps(self) -> Ints:
        """Duration of the last step of each row."""
        return self.first_ps + self.growth_ps * (self.n_steps - 1)

    @property
    def has_steps(self) -> Flags:
        """Whether each span has a decode step."""
        return self.span_last >= self.span_first

    @cached_property
    def pause_ps(self) -> Ints:
        """Time from the end of the row before to the start of each row, `(n_rows,)`: prefill-only steps, or none."""
        pause = np.zeros(len(self), np.int64)
        pause[1:] = array_to_ps(self.start_s[1:] - self.end_s[:-1])
        pause[1:][self.replica[1:] != self.replica[:-1]] = 0  # no span crosses replicas
        return pause

    def members(self, spans: Flags) -> tuple[Ints, Ints]:
        """Return how many of the chosen spans contain each row, and how many begin with it, `(n_rows,)` each."""
        chosen = spans & self.has_steps
        begin = np.bincount(self.span_first[chosen], minlength=len(self))
        end = np.bincount(self.span_last[chosen], minlength=len(self))
        within = np.cumsum(begin)
        within[1:] -= np.cumsum(end)[:-1]
        return within, begin


def decode_rows(steps: Columns, spans: Columns) -> DecodeRows:
    """Find the decode rows and the spans in them. Raises InvariantError if the two tables contradict each other."""
    decodes = steps["decode_requests"] > 0
    rows: Any = slice(None) if decodes.all() else np.flatnonzero(decodes)
    n_steps = steps["n_steps"][rows].astype(np.int64, copy=False)
    first_ps = array_to_ps(steps["first_step_s"][rows])
    grown_ps = array_to_ps(steps["last_step_s"][rows]) - first_ps
    growth_ps = np.rint(grown_ps / np.maximum(n_steps - 1, 1)).astype(np.int64)  # fast: whole numbers, so exact
    replica = steps["replica"][rows]
    span_first, span_last = _places(steps["decode_step"][rows], n_steps, replica, spans)
    return DecodeRows(
        replica,
        n_steps,
        steps["start_s"][rows],
        steps["end_s"][rows],
        first_ps,
        growth_ps,
        span_first,
        span_last,
        steps["accepted_tokens"][rows],
        rows,
    )


def _places(decode_step: Ints, n_steps: Ints, replica: Any, spans: Columns) -> tuple[Ints, Ints]:
    """Return the rows in which spans begin and end."""
    # Number decode steps across replicas, so that rows have a single order.
    end = np.cumsum(n_steps)
    begin = end - n_steps
    first_rows = np.searchsorted(replica, np.arange(int(spans["replica"].max(initial=-1)) + 1))
    offset = np.zeros(len(first_rows), np.int64)
    known = first_rows < len(begin)
    offset[known] = begin[first_rows[known]] - decode_step[first_rows[known]]
    first = spans["first_step"] + offset[spans["replica"]]
    stop = first + (spans["last_step"] - spans["first_step"] + 1)
    span_first = np.searchsorted(begin, first)
    span_last = np.searchsorted(end, stop)
    is_empty = stop == first
    span_last[is_empty] = span_first[is_empty] - 1
    _check(first[~is_empty], begin, span_first[~is_empty])
    _check(stop[~is_empty], end, span_last[~is_empty])
    return span_first, span_last


def _check(expected: Ints, edges: Ints, places: Ints) -> None:
    """Check that spans begin and end with rows, as all steps of a row have the same members."""
    n_outside = int(np.count_nonzero(places >= len(edges)))
    if n_outside:
        raise InvariantError("every span lies within the decode steps of its replica", n_outside, 0, 0.0)
    n_inside = int(np.count_nonzero(edges[places] != expected))
    if n_inside:
        raise InvariantError("every span begins and ends with a row of steps", n_inside, 0, 0.0)
