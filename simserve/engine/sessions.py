"""Sessions: which rows wait for the answers of which, and what is left of each session."""

from array import array

import numpy as np
from numpy.typing import NDArray

from simserve.units import array_to_ps
from simserve.workload.dependencies import Dependencies


class Sessions:
    """Columns by row and by session; rows can be added at the end, by whole sessions.

    Invariant: of a session that goes on, its rows = n_unsent + n_unanswered + those answered; n_due <= n_unsent.

    fast: an array gives and takes Python integers, in 8 bytes a cell.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.of_row = array("q")
        """The session of each row."""
        self.think_ps = array("q")
        """Between the last answer that each row waits for and its being sent."""
        self.n_awaited = array("q")
        """Answers that each row still waits for."""
        self._children, self._child_starts = array("q"), array("q", [0])
        self.first_rows = array("q")
        """The row that each session begins with."""
        self.n_rows = array("q")
        """Requests of each session."""
        self.n_unsent = array("q")
        """Of these, those that may still be sent."""
        self.n_due = array("q")
        """Of these, those that wait for nothing but their time."""
        self.n_unanswered = array("q")
        """Requests of each session that were sent and have not ended."""
        self.append(dependencies)

    def append(self, more: Dependencies) -> None:
        """Add the rows of whole sessions."""
        first, n_before, n_children = len(self.of_row), len(self.first_rows), len(self._children)
        begins = np.flatnonzero(more.n_parents == 0)
        of_row = np.searchsorted(begins, more.first_rows())
        n_rows = np.bincount(of_row, minlength=len(begins))
        n_children_of = np.bincount(more.parents, minlength=len(more))
        children = more.children[np.argsort(more.parents, kind="stable")]
        for column, values in (
            (self.of_row, n_before + of_row),
            (self.think_ps, array_to_ps(more.think_s)),
            (self.n_awaited, more.n_parents),
            (self._children, first + children),
            (self._child_starts, n_children + np.cumsum(n_children_of)),
            (self.first_rows, first + begins),
            (self.n_rows, n_rows),
            (self.n_unsent, n_rows),
            (self.n_due, np.zeros(len(begins))),
            (self.n_unanswered, np.zeros(len(begins))),
        ):
            column.frombytes(np.ascontiguousarray(values, np.int64).tobytes())

    def children(self, row: int) -> "array[int]":
        """The rows that wait for its answer."""
        return self._children[self._child_starts[row] : self._child_starts[row + 1]]

    def n_rows_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many requests the session of each of some rows has, `(n_rows,)`."""
        of_row, n_rows = np.array(self.of_row, np.int64), np.array(self.n_rows, np.int64)
        return n_rows[of_row[rows]]

    def __len__(self) -> int:
        return len(self.first_rows)
