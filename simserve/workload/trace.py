"""Trace: the offered load as equal-length columns; row i of each, also of Prefixes and Dependencies, is request i."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.tables.columns import Flags, Floats, Ints, counted_up
from simserve.units import LONGEST, LONGEST_S

MOST_TOKENS = 10_000_000
"""More than any model takes: a length above it is an error, and may not fit 64 bits."""

Rows = slice | Ints


@dataclass(frozen=True)
class Prefixes:
    """Shared beginnings of prompts: the ids of each request's leading blocks of block_tokens tokens.

    Ids are chained: an id stands for all tokens up to the end of its block, so requests with an equal id are equal up
    to there. Ids extend into the output if a later prompt contains it. Only whole blocks have ids, as engines share no
    others; tokens after a request's last id are its own.

    Ids are stored as runs of consecutive ids: a thousand shared tokens take one run per request instead of sixty ids.

    Invariant: starts rises from 0 to the number of runs; first_ids and n_ids are not negative.
    """

    block_tokens: int
    first_ids: Ints
    """First id of each run, `(n_runs,)`."""
    n_ids: Ints
    """Number of ids of each run, `(n_runs,)`."""
    starts: Ints
    """Runs [starts[i], starts[i + 1]) are those of request i, `(n_requests + 1,)`."""

    @classmethod
    def from_ids(cls, block_tokens: int, ids: Ints, offsets: Ints) -> "Prefixes":
        """Build from concatenated ids, of which [offsets[i], offsets[i + 1]) are those of request i."""
        begins = np.ones(len(ids) + 1, np.bool_)
        begins[1:-1] = np.diff(ids) != 1
        begins[offsets] = True
        first = np.flatnonzero(begins)
        return cls(block_tokens, ids[first[:-1]], np.diff(first), np.searchsorted(first, offsets))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def n_ids_of_rows(self) -> Ints:
        """Return the number of ids of each request, `(n_requests,)`."""
        ends = np.concatenate([[0], np.cumsum(self.n_ids)])
        return np.diff(ends[self.starts])

    def of(self, row: int, block_size: int | None = None) -> list[int]:
        """Return the ids of one request, first block first; of whole blocks of another size, if given.

        Such a block is shared by the requests that share the block of this trace in which it ends, as ids are chained:
        its id is made of that one's and of its place in there. Tokens after the last whole block have none.
        """
        tokens, size = self.block_tokens, block_size or self.block_tokens
        most = -(-tokens // size)  # blocks that may end in one of the trace
        scale = most if tokens % size == 0 else 1
        ids: list[int] = []
        for first, n in zip(*self.runs_of(row, scale), strict=True):
            ids += range(first, first + n)
        if tokens % size == 0:
            return ids
        ends_in = [(end - 1) // tokens for end in range(size, len(ids) * tokens + 1, size)]
        return [ids[at] * most + place - at * tokens // size for place, at in enumerate(ends_in)]

    def runs_of(self, row: int, scale: int = 1) -> tuple[list[int], list[int]]:
        """Return first ids and lengths of the runs of one request, of blocks of which each of the trace has `scale`."""
        runs = slice(*self.starts.data[row : row + 2].tolist())  # fast: numpy takes longer for a few numbers
        return [*map(scale.__mul__, self.first_ids.data[runs])], [*map(scale.__mul__, self.n_ids.data[runs])]

    def ids(self) -> tuple[Ints, Ints]:
        """Return all ids concatenated, and the bounds of each request: the arguments of `from_ids`."""
        ends = np.concatenate([[0], np.cumsum(self.n_ids)])
        return counted_up(self.first_ids, self.n_ids), ends[self.starts]

    def numbered(self) -> "Prefixes":
        """Return the same with ids that count from 0."""
        ids, offsets = self.ids()
        return Prefixes.from_ids(self.block_tokens, np.unique(ids, return_inverse=True)[1], offsets)

    def take(self, rows: Rows) -> "Prefixes":
        """Select requests, or reorder all."""
        first = self.starts[:-1][rows]
        n_runs = self.starts[1:][rows] - first
        runs = counted_up(first, n_runs)
        starts = np.concatenate([[0], np.cumsum(n_runs)])
        return Prefixes(self.block_tokens, self.first_ids[runs], self.n_ids[runs], starts)


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

    def take(self, rows: Rows) -> "Dependencies":
        """Select rows, or reorder all; the parents of a row go with it."""
        taken = np.arange(len(self))[rows]
        place = np.full(len(self), -1)
        place[taken] = np.arange(len(taken))
        kept = place[self.children] >= 0
        parents = place[self.parents[kept]]
        if (parents < 0).any():
            raise ValueError("a row must not be taken without the rows that it waits for")
        return Dependencies.from_pairs(place[self.children[kept]], parents, self.think_s[taken])


@dataclass(frozen=True)
class Trace:
    """Requests in the order of arrival, `(n_requests,)` each; a column without data is None.

    Invariant: arrival_s never decreases; prompt_tokens and output_tokens in [1, MOST_TOKENS].
    """

    arrival_s: Floats
    """Seconds from the start of the run; the first request need not be at 0. For a request sent after others are
    answered: its recorded time, or the start of its session."""
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints | None = None
    """MOST_TOKENS for a request without a limit."""
    request_id: NDArray[np.str_] | None = None
    session_id: NDArray[np.str_] | None = None
    """As all text, "" for a request without one."""
    turn: Ints | None = None
    priority: Ints | None = None
    slo_class: NDArray[np.str_] | None = None
    tenant: NDArray[np.str_] | None = None
    prefixes: Prefixes | None = None
    e2e_s: Floats | None = None
    """Recorded duration of each answer; NaN if unknown."""
    dependencies: Dependencies | None = None
    """Requests that are sent after others are answered; None: all at their arrival_s."""
    is_branch: Flags | None = None
    """Requests of a recording that a subagent sent beside its session's main agent; None: no request."""
    notes: tuple[str, ...] = ()
    """Notes of a reader or generator for the user: sorted rows, clipped shares, coarse stamps."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: Rows) -> "Trace":
        """Select requests, or reorder all."""
        given: dict[str, Any] = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        for name, value in given.items():
            if name != "notes":  # which are about the whole trace
                given[name] = value.take(rows) if isinstance(value, Prefixes | Dependencies) else value[rows]
        return Trace(**given)

    def anonymous(self) -> "Trace":
        """Return the requests under new names: sessions, classes, tenants and shared prefixes by number, no ids of
        requests."""
        names = {"session_id": self.session_id, "slo_class": self.slo_class, "tenant": self.tenant}
        numbered: dict[str, Any] = {name: _numbered(column, name[0]) for name, column in names.items()}
        prefixes = self.prefixes and self.prefixes.numbered()
        return replace(self, request_id=None, prefixes=prefixes, **numbered)


def _numbered(names: NDArray[np.str_] | None, letter: str) -> NDArray[np.str_] | None:
    """Return names as `s1`, `s2`, ... in the order of their first rows; "" stays."""
    if names is None:
        return None
    known, first, place = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(known), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(1, len(known) + 1)
    texts = np.array([f"{letter}{number}" for number in rank.tolist()], np.str_)
    return np.where(names == "", "", texts[place])


def check_arrivals(arrival_s: Floats) -> None:
    """Raise TraceError where a request would arrive after the longest run."""
    last_s = float(arrival_s.max(initial=0.0))
    if last_s > LONGEST_S:
        rule = f"all requests must arrive within {LONGEST}"
        raise TraceError(f"workload: {rule}, got one at {last_s:g} s; take fewer requests, or raise their rate")
