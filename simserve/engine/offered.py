"""Offered: the load to serve, as columns that the engine reads a cell at a time."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from simserve.engine.tags import Tags
from simserve.errors import TraceError
from simserve.units import MAX_PS, PS_PER_S, array_to_ps
from simserve.workload.trace import Prefixes, Trace


@dataclass(frozen=True)
class Offered:
    """The load to serve: a trace at its own times, or sent by a closed loop of clients."""

    trace: Trace
    concurrency: int | None = None
    """Clients of a closed loop, each with one request in flight; None: open, at the trace's times."""
    draw_more: Callable[[int], Trace] | None = None
    """The next rows, so many, for a closed loop that runs for a time rather than for a number of requests."""
    stop_sending_ps: int | None = None
    """A closed loop sends nothing from this instant on."""


class Rows:
    """Copies of a trace's columns that the engine may write to; rows can be added at the end.

    fast: a memoryview of an int64 column gives and takes Python integers, in 8 bytes a cell.
    """

    def __init__(self, trace: Trace, longest_tokens: int) -> None:
        self._longest_tokens = longest_tokens
        empty = np.empty(0, np.int64)
        self.arrivals: NDArray[np.int64] = empty
        self.prompts: NDArray[np.int64] = empty
        self.outputs: NDArray[np.int64] = empty
        self.most: NDArray[np.int64] = empty
        self._prefixes: list[tuple[int, Prefixes]] = []
        """(first row, prefixes) of each trace that was added."""
        self.tags = Tags(trace)
        self._add(trace)

    def append(self, trace: Trace) -> None:
        """Add the rows of a trace."""
        self.tags.append(trace)
        self._add(trace)

    def _add(self, trace: Trace) -> None:
        if len(trace) and trace.arrival_s.max() * PS_PER_S > MAX_PS / 2:
            last_s = trace.arrival_s.max()
            raise TraceError(f"trace: arrivals must lie within 53 days of its start, got {last_s:g} s; cut it")
        if trace.prefixes is not None:
            self._prefixes.append((len(self.arrivals), trace.prefixes))
        most = np.full(len(trace), self._longest_tokens) if trace.max_tokens is None else trace.max_tokens
        self.arrivals = np.concatenate([self.arrivals, array_to_ps(trace.arrival_s)])
        self.prompts = np.concatenate([self.prompts, trace.prompt_tokens])
        self.outputs = np.concatenate([self.outputs, trace.output_tokens])
        self.most = np.concatenate([self.most, most])
        self.arrival_ps = self.arrivals.data
        self.prompt_tokens = self.prompts.data
        self.output_tokens = self.outputs.data
        """Tokens each request will really produce; the engine shortens those that would run past a limit."""
        self.max_tokens = self.most.data

    def chain(self, row: int) -> list[int]:
        """The ids of a request's leading blocks; none without prefixes."""
        place = bisect_right(self._prefixes, row, key=itemgetter(0)) - 1
        if place < 0:
            return []
        first_row, prefixes = self._prefixes[place]
        return prefixes.of(row - first_row)

    def __len__(self) -> int:
        return len(self.arrivals)
