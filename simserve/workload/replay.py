"""Replay: a recorded trace as the offered load, its turns sent, spread, scaled and cut as the scenario says.

The rules for sessions that an arrival process or users begin are those of AgentX: ai-dynamo/aiperf,
docs/tutorials/agentx-mvp.md and docs/benchmark-modes/semianalysis-agentx-faq.md @01a4d17. Of the requests before a
session's start position, AIPerf sends the last of each agent in a warm-up of its own.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import NoArrivals, TraceError
from simserve.tables.columns import Flags, Floats, Ints, counted_up
from simserve.workload.info import stamp_s
from simserve.workload.readers import read_recording, read_trace
from simserve.workload.streams import Stream
from simserve.workload.trace import MOST_TOKENS, Dependencies, Trace

AT = "workload.trace.next_turn: after_answer"


def replay(spec: Any, base_dir: Path, stream: Stream, workload: Any) -> Trace:
    """Return the trace of a scenario's `workload.trace`, at its own times. Raises TraceError."""
    path, is_waiting = base_dir / spec.path, spec.next_turn == "after_answer"
    trace = recorded(spec, base_dir) if is_waiting else read_trace(path, spec.format, spec.columns)
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


def recorded(spec: Any, base_dir: Path) -> Trace:
    """Return the trace of a scenario's `workload.trace` with its turns sent after answers. Raises TraceError."""
    path = base_dir / spec.path
    return after_answers(read_recording(path, spec.format, spec.columns), path, spec.max_gap_s)


def after_answers(trace: Trace, path: Path, max_gap_s: float | None = None) -> Trace:
    """Return the trace with each turn sent after the answers that it waited for, with the recorded delay in between; a
    trace that does not know these has one turn after the other.

    The delay is the gap to the request waited for minus the duration of its answer. It is zero for a turn that came
    before that answer, and a note says how often. Raises TraceError for a file that lacks these times.
    """
    sessions, took_s = trace.session_id, trace.e2e_s
    if sessions is None:
        raise TraceError(
            f"{path}: {AT} needs to know which requests are of one session, and it does not say; leave it out"
        )
    if took_s is None:
        rule = f"{AT} needs to know how long answers took ('Elapsed time' of BurstGPT, e2e_s of our own format)"
        raise TraceError(f"{path}: {rule}, and it does not say; add that column, or leave next_turn out")
    names, session = np.unique(sessions, return_inverse=True)
    alone = np.flatnonzero(names[session] == "")
    session[alone] = len(names) + np.arange(len(alone))  # no session, so one of its own
    if max_gap_s is not None:
        trace = _capped(trace, session, max_gap_s)
    links = trace.dependencies or Dependencies.chains(session, np.zeros(len(trace)))
    _refuse_turns_out_of_order(trace, links, path)
    answer_s = took_s[links.parents]
    unknown = links.parents[np.isnan(answer_s)]
    if len(unknown) and trace.dependencies is None:
        rule = f"{AT} needs to know how long the answer took that the next turn waits for"
        row = unknown[0]
        of = f"the request of session '{sessions[row]}' that came after {trace.arrival_s[row]:g} s"
        raise TraceError(f"{path}: {rule}, got nothing for {of}; {len(unknown)} in all: remove those sessions")
    gaps_s = trace.arrival_s[links.children] - trace.arrival_s[links.parents] - np.nan_to_num(answer_s)
    think_s = np.where(links.n_parents > 0, np.inf, 0.0)
    np.minimum.at(think_s, links.children, gaps_s)
    n_early, n_turns = int((think_s < 0).sum()), int((links.n_parents > 0).sum())
    text = f"{n_early} of {n_turns} turns came before the answer to the one before; they follow it at once"
    notes = (*trace.notes, text) if n_early else trace.notes
    trace = replace(trace, dependencies=replace(links, think_s=np.maximum(think_s, 0.0)), notes=notes)
    return trace if max_gap_s is None else trace.take(np.argsort(trace.arrival_s, kind="stable"))


def _capped(trace: Trace, session: Ints, max_gap_s: float) -> Trace:
    """Return the trace with no longer time between two requests of a session that follow each other."""
    order = np.lexsort((trace.arrival_s, session))
    begins = np.append(True, np.diff(session[order]) != 0)
    excess_s = np.where(begins, 0.0, np.maximum(np.diff(trace.arrival_s[order], prepend=0.0) - max_gap_s, 0.0))
    earlier_s = np.cumsum(excess_s)
    arrival_s = trace.arrival_s.copy()
    arrival_s[order] -= earlier_s - earlier_s[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    n = int((excess_s > 0).sum())
    text = f"{n} gaps between requests of a session were longer than max_gap_s, {max_gap_s:g} s, and were cut to it"
    return replace(trace, arrival_s=arrival_s, notes=(*trace.notes, text) if n else trace.notes)


@dataclass(frozen=True)
class RecordedSessions:
    """Sessions of a recording, begun by an arrival process or by users, in the order of the file, again and again. A
    session shares no prefix with others, nor with itself when it is played again."""

    trace: Trace
    """Rows session by session, at the times of the recording."""
    links: Dependencies
    """Answers that each row waits for."""
    n_users: int
    """Users, each with a first session under way at time zero; 0: sessions begin with their first request."""
    start_frac: tuple[float, float]
    """Bounds of where those are, as shares of the time from a session's first request to its last."""

    @classmethod
    def of(cls, workload: Any, base_dir: Path) -> "RecordedSessions":
        """Read the sessions of a resolved scenario's workload. Raises TraceError."""
        trace = recorded(workload.trace, base_dir)
        links, prefixes = trace.dependencies or Dependencies.none(len(trace)), trace.prefixes
        if prefixes is not None and prefixes.first_ids.max(initial=0) > MOST_TOKENS**2:
            prefixes = prefixes.numbered()  # an id that is played again must fit 64 bits
        order = np.argsort(links.first_rows(), kind="stable")
        trace = replace(trace, request_id=None, prefixes=prefixes, dependencies=None).take(order)
        n_users = 0 if workload.client is None else workload.client["concurrency"]
        return cls(trace, links.take(order), n_users, workload.trace.start_frac or (0.0, 0.0))

    @cached_property
    def _bounds(self) -> Ints:
        """First row of each session, and their end, `(n_sessions + 1,)`."""
        return np.append(np.flatnonzero(self.links.n_parents == 0), len(self.trace))

    def draw(self, arrival_s: Floats, duration_s: float | None, stream: Stream) -> Trace:
        """Return the first requests, session by session, one per instant; with duration_s, all requests of the sessions
        that begin at these instants."""
        n, links, bounds = len(arrival_s), self.links, self._bounds
        session = np.arange(n) % (len(bounds) - 1)
        size = np.diff(bounds)[session]
        if duration_s is None:
            least = np.where(np.arange(n) < self.n_users, 1, size)
            size = size[: int(np.searchsorted(np.cumsum(least), n)) + 1]
        play = np.repeat(np.arange(len(size)), size)
        begins = np.cumsum(size) - size
        source = counted_up(bounds[session[: len(size)]], size)
        is_kept = np.ones(len(source), np.bool_)
        low, high = self.start_frac
        for at, share in enumerate(stream("trace/start").random(min(self.n_users, len(size))).tolist()):
            kept = self._from(int(session[at]), low + (high - low) * share)
            is_kept[begins[at] : begins[at] + size[at]] = kept
        n_parents = links.n_parents[source]
        child = np.repeat(np.arange(len(source)), n_parents)
        parent = links.parents[counted_up(links.starts[source], n_parents)] + (np.arange(len(source)) - source)[child]
        both, place = is_kept[child] & is_kept[parent], np.cumsum(is_kept) - 1
        rows, play = source[is_kept], play[is_kept]
        pairs = Dependencies.from_pairs(place[child[both]], place[parent[both]], links.think_s[rows])
        trace = replace(self._played(rows, play // (len(bounds) - 1)), arrival_s=arrival_s[play], dependencies=pairs)
        return trace if duration_s is not None else trace.take(slice(n))

    def _from(self, session: int, share: float) -> Flags:
        """Return which requests of a session are sent when it is taken up at a share of its time: those that depend on
        the main agent's last request until then, and this one."""
        first, end = self._bounds[session : session + 2].tolist()
        trace, starts = self.trace, (self.links.starts[first : end + 1]).tolist()
        at_s = trace.arrival_s[first:end]
        leads = np.zeros(end - first, np.bool_)
        leads[self.links.parents[starts[0] : starts[-1]] - first] = True
        leads &= at_s <= at_s[0] + share * (at_s[-1] - at_s[0])
        if trace.is_branch is not None:
            leads &= ~trace.is_branch[first:end]
        kept = [False] * (end - first)
        kept[int(np.flatnonzero(leads)[-1]) if leads.any() else 0] = True
        parents = (self.links.parents[starts[0] : starts[-1]] - first).tolist()
        for row, (start, stop) in enumerate(pairwise(starts)):
            kept[row] |= any(kept[parent] for parent in parents[start - starts[0] : stop - starts[0]])
        return np.array(kept, np.bool_)

    def _played(self, rows: Ints, n_before: Ints) -> Trace:
        """Return requests of sessions that were played so many times before, `(n,)`."""
        trace = replace(self.trace, is_branch=None).take(rows)
        assert trace.session_id is not None, "after answers"
        again = np.array(["", *(f"/{n}" for n in range(2, int(n_before.max(initial=0)) + 2))], np.str_)[n_before]
        names = np.where(trace.session_id == "", "", np.char.add(trace.session_id, again))
        turn = rows - self._bounds[np.searchsorted(self._bounds, rows, side="right") - 1] + 1
        prefixes = trace.prefixes
        if prefixes is not None:
            n_ids = int((prefixes.first_ids + prefixes.n_ids).max(initial=0))
            shift = np.repeat(n_before, np.diff(prefixes.starts)) * n_ids
            prefixes = replace(prefixes, first_ids=prefixes.first_ids + shift)
        return replace(trace, session_id=names, turn=turn, prefixes=prefixes)


def _refuse_turns_out_of_order(trace: Trace, links: Dependencies, path: Path) -> None:
    if trace.turn is None or trace.session_id is None:
        return
    goes_back = links.children[trace.turn[links.children] <= trace.turn[links.parents]]
    if len(goes_back):
        row = goes_back[0]
        rule = f"{AT} needs turns that rise in the order of their arrival"
        got = f"turn {trace.turn[row]} of session '{trace.session_id[row]}' after a later one or its like"
        raise TraceError(f"{path}: {rule}, got {got}; correct turn or arrival_s, or leave next_turn out")
