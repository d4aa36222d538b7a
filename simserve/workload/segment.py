"""Segment: a short load cut out of a long one."""

from dataclasses import replace

import numpy as np

from simserve.workload.load import Load
from simserve.workload.trace import Trace


def segment(load: Load, first_frac: float, length_frac: float, end_s: float) -> Load:
    """Return a share of a load, as one that is served on its own.

    An open load: the requests, or whole sessions, from first_frac of the way on; they keep their times, and no turn is
    sent after the last session has begun. A closed loop, which is alike all the way: its first requests, or the first
    of the seconds that it sends for. end_s: the end of the load, for batch jobs beside a closed loop.
    """
    if load.concurrency is not None:
        return _first(load, length_frac, end_s)
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


def _first(load: Load, length_frac: float, end_s: float) -> Load:
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


def _begins(trace: Trace) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the rows that wait for no other."""
    if trace.dependencies is None:
        return np.arange(len(trace))
    return np.flatnonzero(trace.dependencies.n_parents == 0)
