"""Load: the requests of a scenario's workload, drawn or read, and short segments of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import TypeAdapter

from simserve import plugins
from simserve.errors import NoArrivals
from simserve.tables.columns import Floats, Ints
from simserve.workload.amounts import Time, seconds
from simserve.workload.arrivals.base import Arrivals
from simserve.workload.draws import Prompts, draw_arrivals
from simserve.workload.mix import batch_jobs, labeled, merged
from simserve.workload.size import check_size, expected_requests
from simserve.workload.streams import Stream, streams
from simserve.workload.trace import Dependencies, Trace

if TYPE_CHECKING:
    from simserve.workload.replay import RecordedSessions

CLOSED_LOOP_ROWS = 4096
"""Initial rows of a closed loop of unknown length; it draws as many again when they are used up."""


@dataclass(frozen=True)
class DrawnArrivals:
    """Instants that an arrival process drew, without the later turns of sessions and without batch jobs."""

    process: Arrivals
    at_s: Floats
    """`(n_drawn,)`, never decreasing."""
    kind: Literal["requests", "sessions"] = "requests"
    """sessions: each instant is the start of one."""

    def rates_per_s(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return the drawn and the expected rate, up to the last instant; None where nothing is expected."""
        end_s = min(end_s, float(self.at_s[-1]))
        if not end_s > start_s:
            return None
        expected = self.process.expected(start_s, end_s)
        if expected is None or not expected > 0:
            return None
        first, last = np.searchsorted(self.at_s, start_s), np.searchsorted(self.at_s, end_s, side="right")
        return float(last - first) / (end_s - start_s), expected / (end_s - start_s)


@dataclass(frozen=True)
class Load:
    """The load offered to the cluster."""

    trace: Trace
    concurrency: int | None = None
    """Clients of a closed loop; None: an open load at the trace's times."""
    draw_more: Callable[[int], Trace] | None = None
    """Draws further rows, for a closed loop that ends at a time."""
    stop_sending_s: float | None = None
    """End of sending, for requests that are sent after answers."""
    drain_limit_s: float | None = None
    """Limit on the run after the last arrival; None: until all requests are done."""
    drawn: DrawnArrivals | None = None
    """What an arrival process drew; None of a trace or a closed loop."""
    n_timed: int = 0
    """Rows at the end of the trace that no client of a closed loop sends: those of batch jobs, at their own times."""


def offered_load(workload: Any, seed: int, base_dir: Path) -> Load:
    """Return the load of a resolved scenario's workload (`scenario.workload`). Raises TraceError, PolicyError, and
    TooManyArrivals where this machine cannot run so many requests."""
    check_size(expected_requests(workload), "workload")
    load = _offered(workload, seed, base_dir)
    is_answered = load.concurrency is not None or load.trace.dependencies is not None
    stop_s = workload.duration_s if is_answered else None
    return replace(load, stop_sending_s=stop_s, drain_limit_s=workload.drain_limit_s)


def _offered(workload: Any, seed: int, base_dir: Path) -> Load:
    stream = streams(seed)
    if workload.is_replayed:
        from simserve.workload.replay import replay

        return Load(_complete(replay(workload.trace, base_dir, stream, workload), workload, stream))
    prompts = _prompts(workload, base_dir)
    if workload.client is not None:
        return _closed_loop(workload, prompts, stream)
    arrivals: Arrivals = plugins.build("workload.arrivals", workload.arrivals)
    arrival_s = draw_arrivals(arrivals, workload.n_requests, workload.duration_s, stream)
    trace = prompts.draw(arrival_s, workload.duration_s, stream)
    if not len(trace):
        rule = f"a request must arrive within workload.duration_s, {workload.duration_s:g} s"
        raise NoArrivals(f"workload.arrivals: {rule}, got none; lengthen it or raise the rate")
    drawn = DrawnArrivals(arrivals, arrival_s)
    if trace.session_id is not None and trace.turn is not None:
        drawn = DrawnArrivals(arrivals, np.sort(trace.arrival_s[trace.turn == 1]), "sessions")
    return Load(_complete(trace, workload, stream), drawn=drawn)


def _prompts(workload: Any, base_dir: Path) -> "Prompts | RecordedSessions":
    """Return what draws the requests that arrive, or that clients send."""
    if workload.trace is not None:
        from simserve.workload.replay import RecordedSessions

        return RecordedSessions.of(workload, base_dir)
    lengths = workload.lengths or next(iter(workload.classes.values())).lengths  # all classes have their own
    return Prompts.of(lengths, workload.prefixes)


def _complete(trace: Trace, workload: Any, stream: Stream) -> Trace:
    """Add labels, batch traffic and limits of the scenario to a trace."""
    batch, trace = batch_jobs(workload, stream), labeled(trace, workload, stream)
    return _limited(trace if batch is None else merged(trace, batch), workload.max_tokens)


def _closed_loop(workload: Any, prompts: "Prompts | RecordedSessions", stream: Stream) -> Load:
    """Draw rows in the order in which clients send them, or users begin their sessions; batch jobs come last."""
    batch = batch_jobs(workload, stream)
    think_s = workload.client.get("think_s")
    time: Time = TypeAdapter(Time).validate_python(think_s or 0.0)

    def drawn(n: int) -> Trace:
        trace = labeled(prompts.draw(np.zeros(n), None, stream), workload, stream)
        if think_s is None and trace.dependencies is None:
            return trace
        # users think before they begin another session
        dependencies = trace.dependencies or Dependencies.none(len(trace))
        begins, all_s = dependencies.n_parents == 0, dependencies.think_s.copy()
        all_s[begins] = seconds(time, int(begins.sum()), stream("client/think"))
        return replace(trace, dependencies=replace(dependencies, think_s=all_s))

    def rows(start: int, end: int) -> Trace:
        trace = drawn(end)
        if trace.dependencies is None:
            return trace.take(slice(start, end))
        last = int(np.flatnonzero(trace.dependencies.n_parents == 0)[-1])  # its session may be cut short
        return rows(start, 2 * end) if last <= start else trace.take(slice(start, last))

    def with_jobs(trace: Trace, n_timed: int) -> Trace:
        """Return the trace followed by n_timed rows of batch jobs, with the same columns for every n_timed."""
        trace = trace if batch is None else merged(trace, batch.take(slice(n_timed)))
        return _limited(trace, workload.max_tokens)

    concurrency: int = workload.client["concurrency"]
    n_timed = 0 if batch is None else len(batch)
    if workload.n_requests is not None:
        return Load(with_jobs(drawn(workload.n_requests), n_timed), concurrency, n_timed=n_timed)
    first = max(CLOSED_LOOP_ROWS, concurrency)
    first_rows = with_jobs(rows(0, first), n_timed)
    return Load(first_rows, concurrency, lambda n_sent: with_jobs(rows(n_sent, 2 * n_sent), 0), n_timed=n_timed)


def _limited(trace: Trace, max_tokens: int | None) -> Trace:
    """Set max_tokens of a scenario on a trace without limits of its own."""
    if max_tokens is None or trace.max_tokens is not None:
        return trace
    return replace(trace, max_tokens=np.full(len(trace), max_tokens))


def segment(load: Load, first_frac: float, length_frac: float, end_s: float) -> Load:
    """Return a share of a load, as one that is served on its own.

    An open load: the requests, or whole sessions, from first_frac of the way on; they keep their times, and no turn is
    sent after the last session has begun. A closed loop, which is alike all the way: its first requests, or the first
    of the seconds that it sends for. end_s: the end of the load, for batch jobs beside a closed loop.
    """
    if load.concurrency is not None:
        return _beginning(load, length_frac, end_s)
    begins = _begins(load.trace)
    n = max(1, round(length_frac * len(begins)))
    first = min(round(first_frac * len(begins)), len(begins) - n)
    last = first + n
    if load.trace.dependencies is None:
        return replace(load, trace=load.trace.take(np.arange(first, last)))  # a copy, so that the rest can go
    is_inside = np.zeros(len(load.trace), np.bool_)
    is_inside[begins[first:last]] = True
    rows = np.flatnonzero(is_inside[load.trace.dependencies.first_rows()])
    stop_s = float(load.trace.arrival_s[begins[last]]) if last < len(begins) else load.stop_sending_s
    return replace(load, trace=load.trace.take(rows), stop_sending_s=stop_s)


def _beginning(load: Load, length_frac: float, end_s: float) -> Load:
    """Return the beginning of a closed loop."""
    n_clients = n_kept = len(load.trace) - load.n_timed
    if load.draw_more is None:
        begins = _begins(load.trace)
        begins = np.append(begins[begins < n_clients], n_clients)
        n_kept = int(begins[max(1, round(length_frac * (len(begins) - 1)))])
    stop_s = None if load.stop_sending_s is None else load.stop_sending_s * length_frac
    n_timed = int(np.searchsorted(load.trace.arrival_s[n_clients:], end_s * length_frac))
    rows = np.r_[:n_kept, n_clients : n_clients + n_timed]
    return replace(load, trace=load.trace.take(rows), stop_sending_s=stop_s, n_timed=n_timed)


def _begins(trace: Trace) -> Ints:
    """Return the rows that wait for no other."""
    if trace.dependencies is None:
        return np.arange(len(trace))
    return np.flatnonzero(trace.dependencies.n_parents == 0)
