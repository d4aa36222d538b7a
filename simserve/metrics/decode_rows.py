"""DecodeRows: the rows of steps with decoding requests, and the rows in which each span begins and ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.errors import InvariantError
from simserve.tables.columns import Columns, Flags, Floats, Ints, bounds
from simserve.tables.pieces import Derived, Rows, column, computed, cumulated, cut, full, pieces, rows_where
from simserve.units import array_to_ps

FROM_STEPS = ("replica", "n_steps", "start_s", "end_s", "first_step_s", "last_step_s", "accepted_tokens", "decode_step")
"""Columns of steps that rows are computed from."""


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
    pause_ps: Ints
    """Time from the end of the row before to the start of the row: prefill-only steps, or none."""
    accepted_tokens: Any
    """Accepted proposals of the steps of each row."""
    place: Ints
    """Index of each row in the table."""
    span_first: Ints
    """The row in which each span begins, `(n_spans,)`."""
    span_last: Ints

    def __len__(self) -> int:
        return len(self.n_steps)

    @property
    def by_row(self) -> Rows:
        """The columns of rows."""
        return Rows((name, values) for name, values in vars(self).items() if not name.startswith("span_"))

    def by_span(self, spans: Columns) -> Rows:
        """Return the columns of spans with the rows in which each begins and ends, `first` and `last`."""
        return Rows(spans | {"first": self.span_first, "last": self.span_last})

    def members(self, spans: Flags) -> tuple[Ints, Ints]:
        """Return how many of the chosen spans contain each row, and how many begin with it, `(n_rows,)` each."""
        begin, end = (full(len(self), 0, self.by_row) for _ in range(2))
        for part in pieces(self.by_span({"chosen": spans})):
            chosen = part["chosen"] & (part["last"] >= part["first"])
            for counts, rows in ((begin, part["first"][chosen]), (end, part["last"][chosen])):
                lowest = int(rows.min(initial=len(self)))
                added = np.bincount(rows - lowest)
                counts[lowest : lowest + len(added)] += added
        return cumulated(_changes, {"begin": begin, "end": end}, neighbor=-1), begin


def _changes(own: Rows, before: Rows) -> Ints:
    """Return how many spans begin with each row, less those that end with the one before."""
    change: Ints = own["begin"].copy()
    change[len(change) - len(before["end"]) :] -= before["end"]
    return change


def decode_rows(steps: Columns, spans: Columns) -> DecodeRows:
    """Find the decode rows and the spans in them. Raises InvariantError if the two tables contradict each other."""
    place = rows_where(lambda part: part["decode_requests"] > 0, {"decode_requests": steps["decode_requests"]})
    of_steps = {name: steps[name] for name in FROM_STEPS}
    if len(place) == len(steps["decode_requests"]):
        columns = computed(_rows, of_steps)
    else:
        columns = computed(lambda part: _rows(cut(of_steps, part["place"])), {"place": place})
    columns |= _places(columns.pop("decode_step"), columns["n_steps"], columns["replica"], spans)
    pause_ps = column(_pauses_ps, {name: columns[name] for name in ("replica", "start_s", "end_s")}, neighbor=-1)
    return DecodeRows(**columns, pause_ps=pause_ps, place=place)


def _rows(steps: Rows) -> Derived:
    """Return the columns of rows that are those of steps in other units, and decode_step."""
    n_steps = steps["n_steps"].astype(np.int64, copy=False)
    first_ps = array_to_ps(steps["first_step_s"])
    grown_ps = array_to_ps(steps["last_step_s"]) - first_ps
    kept = ("replica", "start_s", "end_s", "accepted_tokens", "decode_step")
    return {name: steps[name] for name in kept} | {
        "n_steps": n_steps,
        "first_ps": first_ps,
        # fast: whole numbers, so exact
        "growth_ps": np.rint(grown_ps / np.maximum(n_steps - 1, 1)).astype(np.int64),
    }


def _pauses_ps(own: Rows, before: Rows) -> Ints:
    """Return the time since the row before of the same replica; 0 where it is of another, as no span crosses them."""
    pause = np.zeros(len(own["replica"]), np.int64)
    first = len(pause) - len(before["replica"])  # 1 in the first piece
    since_ps = array_to_ps(own["start_s"][first:] - before["end_s"])
    pause[first:] = np.where(own["replica"][first:] == before["replica"], since_ps, 0)
    return pause


def _places(decode_step: Ints, n_steps: Ints, replica: Any, spans: Columns) -> Derived:
    """Return the rows in which spans begin and end."""
    # Number decode steps across replicas, so that rows have a single order.
    end = cumulated(lambda part: part["n_steps"], {"n_steps": n_steps})
    begin = column(lambda part: part["end"] - part["n_steps"], {"end": end, "n_steps": n_steps})
    of_spans = pieces({"replica": spans["replica"]})
    n_replicas = 1 + max((int(part["replica"].max()) for part in of_spans), default=-1)
    first_rows = bounds(replica, n_replicas)[:-1]
    offset = np.zeros(len(first_rows), np.int64)
    known = first_rows < len(begin)
    offset[known] = begin[first_rows[known]] - decode_step[first_rows[known]]

    def formula(part: Rows) -> Derived:
        first = part["first_step"] + offset[part["replica"]]
        stop = first + (part["last_step"] - part["first_step"] + 1)
        span_first = np.searchsorted(begin, first)
        span_last = np.searchsorted(end, stop)
        is_empty = stop == first
        span_last[is_empty] = span_first[is_empty] - 1
        _check(first[~is_empty], begin, span_first[~is_empty])
        _check(stop[~is_empty], end, span_last[~is_empty])
        return {"span_first": span_first, "span_last": span_last}

    return computed(formula, {name: spans[name] for name in ("replica", "first_step", "last_step")})


def _check(expected: Ints, edges: Ints, places: Ints) -> None:
    """Check that spans begin and end with rows, as all steps of a row have the same members."""
    n_outside = int(np.count_nonzero(places >= len(edges)))
    if n_outside:
        raise InvariantError("every span lies within the decode steps of its replica", n_outside, 0, 0.0)
    n_inside = int(np.count_nonzero(edges[places] != expected))
    if n_inside:
        raise InvariantError("every span begins and ends with a row of steps", n_inside, 0, 0.0)
