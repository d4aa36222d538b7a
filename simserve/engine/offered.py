"""Offered: the load to serve, as columns that the engine reads cell by cell, and the patience of its clients."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import Problem, ScenarioError
from simserve.state.id_runs import IdRuns
from simserve.state.request import Request
from simserve.tables.scratch import Scratch
from simserve.units import array_to_ps
from simserve.workload.trace import Prefixes, Trace, check_arrivals

MAX_CONSECUTIVE_REFUSALS = 10_000
"""A closed loop would never advance the clock if all its requests were refused; it fails after this many."""


TOKEN = 10**6
"""Parts of a token of a retry budget: counted whole, ten times a tenth is one."""


class RetryBudget:
    """A token bucket, full at first. Invariant: it holds 0 to `burst` tokens."""

    def __init__(self, frac: float, burst: int) -> None:
        self._added, self._most = round(frac * TOKEN), burst * TOKEN
        self._held = self._most

    def add(self) -> None:
        """Add the part of a token that a first attempt brings."""
        self._held = min(self._held + self._added, self._most)

    def take(self) -> bool:
        """Take the token of a retry, if there is one."""
        if self._held < TOKEN:
            return False
        self._held -= TOKEN
        return True


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff of clients that were refused or timed out."""

    max_attempts: int
    """Attempts in all, including the first."""
    first_ps: int
    multiplier: float
    longest_ps: int
    jitter: float = 0.0
    """Up to this fraction of a wait is cut at random, so that requests refused together do not retry together."""
    seed: int | str = 0
    budget_frac: float | None = None
    """Retries for each first attempt; None: no limit."""
    budget_burst: int = 1
    """Most tokens of the budget."""

    def budget(self) -> RetryBudget | None:
        """Return the full budget of a run; None: there is no limit."""
        return None if self.budget_frac is None else RetryBudget(self.budget_frac, self.budget_burst)

    def wait_ps(self, row: int, attempt: int) -> int:
        """Return the wait from the failure of an attempt of the load's request `row` until the next attempt.

        The jitter depends on these two alone, so runs with other policies share it.
        """
        wait_ps = min(self.first_ps * self.multiplier ** min(attempt - 1, 100), self.longest_ps)
        if self.jitter:
            wait_ps *= 1 - self.jitter * Random(f"retries/{self.seed}/{row}/{attempt}").random()
        return round(wait_ps)


@dataclass(frozen=True)
class Patience:
    """What clients do when an answer is late."""

    ttft_ps: int | None = None
    """Time-out for the first token; None: no limit."""
    e2e_ps: int | None = None
    """Time-out for the whole answer; None: no limit."""
    backoff: Backoff | None = None
    """Backoff of retries; None: no retries."""
    goes_on: bool = False
    """After the last attempt of a turn its session goes on with the next one; False: it ends."""

    @property
    def is_limited(self) -> bool:
        """Clients have a time-out."""
        return self.ttft_ps is not None or self.e2e_ps is not None


@dataclass(frozen=True)
class Offered:
    """The load to serve: a trace at its own times, or a closed loop of clients."""

    trace: Trace
    concurrency: int | None = None
    """Clients of a closed loop, each with one request in flight; None: an open load at the trace's times."""
    draw_more: Callable[[int], Trace] | None = None
    """Draws further rows, given the row count, for a closed loop that runs for a fixed time."""
    stop_sending_ps: int | None = None
    """End of sending in a closed loop."""
    patience: Patience | None = None
    """Timeouts and retries of clients; None: they wait forever."""
    n_timed: int = 0
    """Rows at the end of the trace that no client of a closed loop sends, but that have their own times."""

    def check_refusals(self, n_in_a_row: int, reason: str) -> None:
        """Raise ScenarioError if a closed loop that draws rows without end is only ever refused."""
        if self.draw_more is not None and n_in_a_row > MAX_CONSECUTIVE_REFUSALS:
            rule = f"every request of the closed loop is refused ({reason})"
            raise ScenarioError([Problem("workload", rule, None, "shorten them")])


def _chain(prefixes: Prefixes | None, row: int, size: int) -> Sequence[int]:
    """Return the ids of a request's whole blocks of a size."""
    if prefixes is None:
        return ()
    n_each, rest = divmod(prefixes.block_tokens, size)
    return prefixes.of(row, size) if rest else IdRuns(*prefixes.runs_of(row, n_each))


class OfferedRows:
    """Writable copies of a trace's columns; rows can be appended.

    fast: a memoryview of an int64 column reads and writes Python integers, in 8 bytes a cell.
    """

    def __init__(self, trace: Trace, longest_tokens: int, scratch: Scratch) -> None:
        self._scratch = scratch
        self._longest_tokens = longest_tokens
        empty = np.empty(0, np.int64)
        self.arrivals: NDArray[np.int64] = empty
        self.prompts: NDArray[np.int64] = empty
        self.outputs: NDArray[np.int64] = empty
        self.most: NDArray[np.int64] = empty
        self._traces: list[tuple[int, Trace]] = []
        """(first row, trace) of each appended trace."""
        self._n = 0
        self._original: dict[int, int] = {}
        """The load's row of each copied row."""
        self.append(trace)

    def append(self, trace: Trace) -> None:
        """Append the rows of a trace."""
        check_arrivals(trace.arrival_s)
        self._traces.append((self._n, trace))
        limits, longest = trace.max_tokens, self._longest_tokens
        cells = (
            lambda piece: array_to_ps(trace.arrival_s[piece]),
            lambda piece: trace.prompt_tokens[piece],
            lambda piece: trace.output_tokens[piece],
            lambda piece: longest if limits is None else limits[piece],
        )
        self._extend(len(trace), cells)
        self._n += len(trace)

    def _extend(self, n_rows: int, cells: Sequence[Callable[[slice], Any]]) -> None:
        """Append cells to all columns, piece by piece."""
        columns = []
        for old, part in zip((self.arrivals, self.prompts, self.outputs, self.most), cells, strict=True):
            new = self._scratch.empty(self._n + n_rows, np.int64)
            for piece in self._scratch.pieces(self._n):
                new[piece] = old[piece]
            for piece in self._scratch.pieces(n_rows):
                new[self._n + piece.start : self._n + piece.stop] = part(piece)
            columns.append(new)
        self.arrivals, self.prompts, self.outputs, self.most = columns
        self.arrival_ps = self.arrivals.data
        self.prompt_tokens = self.prompts.data
        self.output_tokens = self.outputs.data
        """True output length of each request; the engine cuts it at a limit."""
        self.max_tokens = self.most.data

    def copy_row(self, row: int) -> int:
        """Append a copy of a row, its answer not cut at a limit; return its index. Amortized O(1)."""
        new = self._n
        if new == self.capacity:
            self._extend(max(new, 1024), [lambda _: 0] * 4)
        for column in (self.arrival_ps, self.prompt_tokens, self.output_tokens, self.max_tokens):
            column[new] = column[row]
        trace, place = self._in_load(row)
        self.output_tokens[new] = int(trace.output_tokens[place])
        self._original[new] = self.original(row)
        self._n = new + 1
        return new

    def restore(self, rows: NDArray[np.int64]) -> None:
        """Give rows of the load back the answers that were cut at a limit."""
        self.outputs[rows] = self._traces[0][1].output_tokens[rows]

    def original(self, row: int) -> int:
        """Return the load's row that this row is, or is a copy of."""
        return self._original.get(row, row)

    def originals(self, rows: slice | NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Map rows to the load's rows."""
        if not self._original or isinstance(rows, slice):
            return rows
        row_of = np.arange(self._n)
        row_of[list(self._original)] = list(self._original.values())
        return row_of[rows]

    @property
    def capacity(self) -> int:
        """Cells of each column, including those reserved for rows to come."""
        return len(self.arrivals)

    @property
    def has_labels(self) -> bool:
        """The load has priorities or tenants."""
        return any(trace.priority is not None or trace.tenant is not None for _, trace in self._traces)

    def describe(self, request: Request, block_sizes: Iterable[int], needs_session: bool) -> None:
        """Set the ids of a request's leading blocks of each size, its labels, and if needed its session."""
        trace, place = self._in_load(request.row)
        if block_sizes:
            request.chains = {size: _chain(trace.prefixes, place, size) for size in block_sizes}
        if trace.priority is not None:
            request.priority = int(trace.priority[place])
        if trace.tenant is not None:
            request.tenant = str(trace.tenant[place])
        if needs_session:
            request.session = "" if trace.session_id is None else str(trace.session_id[place])

    def _in_load(self, row: int) -> tuple[Trace, int]:
        """Return the trace of a row, or of the row it copies, and its row there."""
        row = self._original.get(row, row)
        first_row, trace = self._traces[bisect_right(self._traces, row, key=itemgetter(0)) - 1]
        return trace, row - first_row

    def given(self, name: str, rows: slice | NDArray[np.int64]) -> NDArray[Any] | None:
        """Return a column of the load that the engine does not use, for some rows; None if the load lacks it."""
        columns = [(first_row, getattr(trace, name)) for first_row, trace in self._traces]
        if columns[0][1] is None:
            return None
        whole = np.empty(self._n, np.result_type(*(column for _, column in columns)))
        for first_row, column in columns:
            whole[first_row : first_row + len(column)] = column
        return whole[self.originals(rows)]

    def __len__(self) -> int:
        return self._n
