"""Replay: a recorded trace as the offered load, its turns sent, spread, scaled and cut as the scenario says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import NoArrivals, TraceError
from simserve.workload.info import stamp_s
from simserve.workload.readers import read_trace
from simserve.workload.streams import Stream
from simserve.workload.trace import Dependencies, Trace

AT = "workload.trace.next_turn: after_answer"


def replay(spec: Any, base_dir: Path, stream: Stream, workload: Any) -> Trace:
    """Return the trace of a scenario's `workload.trace`. Raises TraceError."""
    path = Path(spec.path) if Path(spec.path).is_absolute() else base_dir / spec.path
    trace = read_trace(path, spec.format, spec.columns)
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


def after_answers(trace: Trace, path: Path) -> Trace:
    """Return the trace with each turn sent after the previous answer, with the recorded delay in between.

    The delay is the gap between the two requests minus the duration of the first answer. It is zero for a turn that
    came before that answer, and a note says how often. Raises TraceError for a file that lacks these times.
    """
    if trace.session_id is None:
        raise TraceError(
            f"{path}: {AT} needs to know which requests are of one session, and it does not say; leave it out"
        )
    if trace.e2e_s is None:
        rule = f"{AT} needs to know how long answers took ('Elapsed time' of BurstGPT, e2e_s of our own format)"
        raise TraceError(f"{path}: {rule}, and it does not say; add that column, or leave next_turn out")
    names, session = np.unique(trace.session_id, return_inverse=True)
    alone = np.flatnonzero(names[session] == "")
    session[alone] = len(names) + np.arange(len(alone))  # no session, so one of its own
    links = Dependencies.chains(session, np.zeros(len(trace)))
    _refuse_turns_out_of_order(trace, links, path)
    answer_s = trace.e2e_s[links.parents]
    unknown = links.parents[np.isnan(answer_s)]
    if len(unknown):
        rule = f"{AT} needs to know how long the answer took that the next turn waits for"
        row = unknown[0]
        of = f"the request of session '{trace.session_id[row]}' that came after {trace.arrival_s[row]:g} s"
        raise TraceError(f"{path}: {rule}, got nothing for {of}; {len(unknown)} in all: remove those sessions")
    think_s = np.zeros(len(trace))
    think_s[links.children] = trace.arrival_s[links.children] - trace.arrival_s[links.parents] - answer_s
    n_early = int((think_s < 0).sum())
    text = f"{n_early} of {len(answer_s)} turns came before the answer to the one before; they follow it at once"
    notes = (*trace.notes, text) if n_early else trace.notes
    return replace(trace, dependencies=replace(links, think_s=np.maximum(think_s, 0.0)), notes=notes)


def _refuse_turns_out_of_order(trace: Trace, links: Dependencies, path: Path) -> None:
    if trace.turn is None or trace.session_id is None:
        return
    goes_back = links.children[trace.turn[links.children] <= trace.turn[links.parents]]
    if len(goes_back):
        row = goes_back[0]
        rule = f"{AT} needs turns that rise in the order of their arrival"
        got = f"turn {trace.turn[row]} of session '{trace.session_id[row]}' after a later one or its like"
        raise TraceError(f"{path}: {rule}, got {got}; correct turn or arrival_s, or leave next_turn out")
