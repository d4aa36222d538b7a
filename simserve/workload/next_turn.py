"""Next turn: the turns of a recorded session follow their simulated answers after the recorded delay."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.workload.dependencies import Dependencies
from simserve.workload.trace import Trace

AT = "workload.trace.next_turn: after_answer"


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
