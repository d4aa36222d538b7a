"""Sessions: dependencies between rows, and the progress of each session."""

from array import array

import numpy as np
from numpy.typing import NDArray

from simserve.units import array_to_ps
from simserve.workload.dependencies import Dependencies


class Sessions:
    """Columns by row and by session; whole sessions can be appended.

    Invariant: the rows of a live session = n_unsent + n_unanswered + answered; n_due <= n_unsent.

    fast: an array reads and writes Python integers, in 8 bytes a cell.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.of_row = array("q")
        """The session of each row."""
        self.think_ps = array("q")
        """Think time between the last answer that each row waits for and its sending."""
        self.n_awaited = array("q")
        """Answers that each row still waits for."""
        self._children, self._child_starts = array("q"), array("q", [0])
        self.first_rows = array("q")
        """First row of each session."""
        self.n_rows = array("q")
        """Requests of each session."""
        self.n_unsent = array("q")
        """Requests of each session that may still be sent."""
        self.n_due = array("q")
        """Unsent requests of each session that wait only for their time."""
        self.n_unanswered = array("q")
        """Requests of each session that were sent and have not ended."""
        self.append(dependencies)

    def append(self, more: Dependencies) -> None:
        """Append the rows of whole sessions."""
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
        """Return the rows that wait for the answer to a row."""
        return self._children[self._child_starts[row] : self._child_starts[row + 1]]

    def n_rows_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of requests in the session of each row, `(n_rows,)`."""
        of_row, n_rows = np.array(self.of_row, np.int64), np.array(self.n_rows, np.int64)
        return n_rows[of_row[rows]]

    def __len__(self) -> int:
        return len(self.first_rows)
