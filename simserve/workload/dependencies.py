"""Dependencies: requests that are sent after others are answered: turns, tool calls and joins."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Floats, Ints


@dataclass(frozen=True)
class Dependencies:
    """Parents of each request: the earlier rows that must be answered first.

    A row with parents is sent think_s after its client has the last of their answers, whatever its arrival_s. A row
    without parents begins a session: at its arrival_s, or, with users, think_s after the user's last session. A session
    is such a row and its descendants.

    Invariant: starts rises from 0 to the number of parents; a parent is an earlier row of the same session.
    """

    parents: Ints
    """Parent rows, those of row 0 first, `(n_parents,)`."""
    starts: Ints
    """Parents [starts[i], starts[i + 1]) are those of row i, `(n_requests + 1,)`."""
    think_s: Floats
    """Time between the answers and the request, `(n_requests,)`: a user thinks, or a tool works. Rows that begin a
    session use it only in a closed loop of users, where the load's `client` sets it."""

    @classmethod
    def none(cls, n: int) -> "Dependencies":
        """Return n rows, each a session of its own."""
        return cls(np.empty(0, np.int64), np.zeros(n + 1, np.int64), np.zeros(n))

    @classmethod
    def from_pairs(cls, children: Ints, parents: Ints, think_s: Floats) -> "Dependencies":
        """Build from (child, parent) pairs in any order, `(n_pairs,)` each."""
        order = np.argsort(children, kind="stable")
        n_parents = np.bincount(children, minlength=len(think_s))
        return cls(parents[order], np.concatenate([[0], np.cumsum(n_parents)]), think_s)

    @classmethod
    def chains(cls, session: Ints, think_s: Floats) -> "Dependencies":
        """Make each row depend on the previous row of its session, `(n_requests,)` each."""
        order = np.argsort(session, kind="stable")
        goes_on = np.flatnonzero(np.diff(session[order]) == 0)
        return cls.from_pairs(order[goes_on + 1], order[goes_on], think_s)

    def __len__(self) -> int:
        return len(self.think_s)

    @property
    def n_parents(self) -> Ints:
        """Number of answers each row waits for, `(n_requests,)`."""
        return np.diff(self.starts)

    @property
    def children(self) -> Ints:
        """Row that waits for each of `parents`, `(n_parents,)`."""
        return np.repeat(np.arange(len(self)), self.n_parents)

    def first_rows(self) -> Ints:
        """Return the row that begins the session of each row, `(n_requests,)`."""
        first = np.arange(len(self))
        waits = self.n_parents > 0
        first[waits] = self.parents[self.starts[:-1][waits]]
        while not np.array_equal(further := first[first], first):
            first = further
        return first

    def take(self, rows: slice | Ints) -> "Dependencies":
        """Select rows, or reorder all; the parents of a row go with it."""
        taken = np.arange(len(self))[rows]
        place = np.full(len(self), -1)
        place[taken] = np.arange(len(taken))
        kept = place[self.children] >= 0
        parents = place[self.parents[kept]]
        if (parents < 0).any():
            raise ValueError("a row must not be taken without the rows that it waits for")
        return Dependencies.from_pairs(place[self.children[kept]], parents, self.think_s[taken])
