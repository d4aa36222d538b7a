"""Replay: a recorded trace as the offered load, spread, scaled and cut as the scenario says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import NoArrivals
from simserve.workload.info import stamp_s
from simserve.workload.next_turn import after_answers
from simserve.workload.readers import read_trace
from simserve.workload.streams import Stream
from simserve.workload.trace import Trace


def replay(spec: Any, base_dir: Path, stream: Stream, workload: Any) -> Trace:
    """Return the trace of a scenario's `workload.trace`. Raises TraceError."""
    path = Path(spec.path) if Path(spec.path).is_absolute() else base_dir / spec.path
    trace = read_trace(path, spec.format)
    if spec.next_turn == "after_answer":
        trace = after_answers(trace, path)
    if spec.spread == "uniform":
        trace = spread(trace, stream)
    elif coarse_s := stamp_s(trace):
        note = f"stamps come in steps of {coarse_s:g} s, so requests come in clumps; workload.trace.spread: uniform"
        trace = replace(trace, notes=(*trace.notes, note + " spreads them"))
    trace = replace(trace, arrival_s=trace.arrival_s / spec.rate_scale)
    n = len(trace) if workload.n_requests is None else min(workload.n_requests, len(trace))
    if workload.duration_s is not None and trace.dependencies is None:
        n = min(n, int(np.searchsorted(trace.arrival_s, workload.duration_s)))
    if not n:
        rule = f"a request must arrive within workload.duration_s, {workload.duration_s:g} s"
        raise NoArrivals(f"{path}: {rule}, got none; lengthen it")
    return trace.take(slice(n))


def spread(trace: Trace, stream: Stream) -> Trace:
    """Spread requests with equal coarse stamps at random, uniformly up to the next stamp."""
    step_s = stamp_s(trace)
    if step_s is None:
        return trace
    arrival_s = np.sort(trace.arrival_s + step_s * stream("arrivals/spread").random(len(trace)))
    return replace(trace, arrival_s=arrival_s)
