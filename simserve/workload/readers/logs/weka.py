"""Weka/AgentX traces: sessions of coding agents, a JSON object each, with the requests of subagents inside.

Sources: ai-dynamo/aiperf, docs/tutorials/agentx-mvp.md and docs/benchmark-modes/semianalysis-agentx-faq.md @01a4d17,
docs/tutorials/weka-trace.md @6f77973, src/aiperf/dataset/loader/weka_trace.py @af3e538 (when a parent waits);
pull request 1396 (subagents' times count from their start in raw files, from the session's in published ones).

A request follows the one of its agent that ended last before it began, so that parallel ones stay parallel; a
subagent's first follows its parent's last. The parent's first request after a subagent's end waits for it; a subagent
that ends after all of them runs in the background. Lost: texts, tools, and which requests on the top level are of
agents that are not told apart there (AIPerf guesses it from their ids).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.tables.columns import Ints, by_appearance
from simserve.workload.readers.agents import DECIMALS, REMEDY, AgentRequest, Session, Subagent, as_kind
from simserve.workload.readers.base import MS, Cells, Place, checked, names_shown, refuse_rows, shown
from simserve.workload.readers.cells import CellKind, texts
from simserve.workload.readers.json_rows import read_objects
from simserve.workload.readers.logs.base import Log
from simserve.workload.readers.prefix_ids import CHAINED, chained, first_other_predecessor
from simserve.workload.readers.text_lines import most_rows
from simserve.workload.trace import Dependencies, Prefixes, Trace

READ = {"type", "t", "in", "out", "hash_ids", "api_time", "model"}
"""Keys of requests that are read."""

COLUMNS = ("session", "turn", "is_branch", "start_s", "took_s", "prompt", "output", "n_runs", "n_awaited")

MOST_NAMED = 8
"""Keys or models that a note names."""

MOST_CALLS = 100_000
"""Limit on the requests of a session, each of which is an object while the session is read."""


def read(path: Path) -> Log:
    """Read the requests as a log, each at its own time. Raises TraceError."""
    log = _read(path)
    return replace(log, trace=replace(log.trace, dependencies=None, is_branch=None))


def read_recording(path: Path) -> Trace:
    """Read the sessions, and which answers each request waited for. Raises TraceError."""
    log = _read(path)
    failed = [f"{log.n_failed} requests without an answer were left out"] if log.n_failed else []
    return replace(log.trace, notes=(*log.assumed[1:], *failed))


def _read(path: Path) -> Log:
    sessions = _Sessions(path)
    for line, about in read_objects(path, {"requests": CellKind("value", sessions.items)}):
        sessions.add(line, about)
    return sessions.log()


@dataclass(slots=True, eq=False)
class Call:
    """A request at a time of its session, and the calls that it waited for."""

    request: AgentRequest
    start_s: float
    rank: float
    """Order of calls that start together; those of a subagent come right behind the one that they follow."""
    awaited: "list[Call]" = field(default_factory=list)
    row: int = -1

    @property
    def end_s(self) -> float:
        """When it was answered; at once where the file does not say."""
        return round(self.start_s + (self.request.api_time or 0.0), DECIMALS)


@dataclass
class _Sessions:
    """Sessions as they are read."""

    path: Path
    lines: list[int] = field(default_factory=list)
    names: list[Any] = field(default_factory=list)
    block_tokens: list[int] = field(default_factory=list)
    cells: "array[float]" = field(default_factory=lambda: array("d"))
    """One of each of COLUMNS a request."""
    awaited: "array[int]" = field(default_factory=lambda: array("q"))
    runs: "array[int]" = field(default_factory=lambda: array("q"))
    """First id and number of ids of each run (`Prefixes`)."""
    n_ids: int = 0
    """Different ids so far; an id means something else in another session."""
    models: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    n_unanswered: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of what notes tell."""

    def items(self, place: Place, _: str, cells: Cells) -> NDArray[np.object_]:
        """Return the requests and subagents of a part of a session. Raises TraceError."""
        result = np.empty(len(cells), object)
        for at, cell in enumerate(cells):
            is_subagent = type(cell) is dict and cell.get("type") == "subagent"
            kind = Subagent if is_subagent else AgentRequest
            result[at] = as_kind(f"{place.path}: request {place.numbers[at]}", kind, cell)
            self.keys.update(*(cell["requests"] if is_subagent else [cell]))
        if place.numbers.max(initial=0) > MOST_CALLS:
            raise TraceError(f"{place.path}: a session must have at most {MOST_CALLS:,} requests, got more; cut it")
        return result

    def add(self, line: int, about: Mapping[str, Any]) -> None:
        """Add a session. Raises TraceError."""
        session = as_kind(f"{self.path}:{line}", Session, about)
        if type(session.requests) is not np.ndarray:
            raise TraceError(f"{self.path}:{line}: requests must be a list, got {shown(session.requests)}; {REMEDY}")
        calls, first = self._linked(session.requests.tolist()), len(self.cells) // len(COLUMNS)
        for row, (call, n_runs) in enumerate(zip(calls, self._shared(calls, session.block_size), strict=True)):
            request, call.row = call.request, first + row
            took_s = np.nan if request.api_time is None else request.api_time
            self.cells.extend((len(self.lines), row + 1, call.rank % 1 > 0, call.start_s, took_s))
            self.cells.extend((request.prompt_tokens, request.output_tokens, n_runs, len(call.awaited)))
            self.awaited.extend(each.row for each in call.awaited)
            self.models |= {request.model} if request.model else set()
        self.lines.append(line)
        self.names.append(session.id)
        self.block_tokens.append(session.block_size)
        if len(self.cells) > most_rows():
            raise TraceError(f"{self.path}: must have at most {most_rows() // len(COLUMNS):,} requests; cut it")

    def _shared(self, calls: Sequence[Call], block_tokens: int) -> Ints:
        """Add the ids of whole blocks of a session's prompts; return the number of runs of each."""
        lists = [call.request.hash_ids[: call.request.prompt_tokens // block_tokens] for call in calls]
        ids, ends = np.concatenate([np.empty(0, np.int64), *map(np.asarray, lists)]), _ends(map(len, lists))
        if first_other_predecessor(ids, ends) is not None:
            ids = chained(ids, ends)
            self.counts[CHAINED] += 1
        prefixes = Prefixes.from_ids(block_tokens, self.n_ids + by_appearance(ids), ends)
        self.runs.frombytes(np.stack([prefixes.first_ids, prefixes.n_ids], axis=1).tobytes())
        self.n_ids += len(np.unique(ids))
        return np.diff(prefixes.starts)

    def _linked(self, items: Sequence[Any]) -> list[Call]:
        """Return the answered requests of a session in order, each after those that it waited for."""
        branches = [each for each in items if each.type == "subagent"]
        main = self._calls([each for each in items if each.type != "subagent"], 0.0, count())
        _follow(main, ())
        starts, calls = [call.start_s for call in main], [*main]
        is_relative = any(request.t < each.t for each in branches for request in each.requests)
        self.counts["sessions with times that count from the start of each subagent"] += is_relative
        for each in branches:
            n_before = bisect_right(starts, each.t)
            inner = self._calls(each.requests, each.t if is_relative else 0.0, repeat(n_before - 0.5))
            if not n_before:
                self.counts["requests left out, of subagents before their parent's first request"] += len(inner)
            elif inner:
                last = _follow(inner, main[n_before - 1 : n_before])
                took_s = None if each.duration_ms is None else each.duration_ms * MS
                end_s = max(call.end_s for call in inner) if took_s is None else round(each.t + took_s, DECIMALS)
                joins = max(n_before, bisect_left(starts, max(end_s, inner[-1].start_s)))
                for parent in main[joins : joins + 1]:
                    parent.awaited += last
                calls += inner
        return sorted(calls, key=lambda call: (call.start_s, call.rank))

    def _calls(self, requests: Sequence[AgentRequest], since_s: float, ranks: Iterator[float]) -> list[Call]:
        """Return the answered requests of an agent in order of their times, which count from an instant."""
        answered = sorted((each for each in requests if each.output_tokens), key=lambda each: each.t)
        self.n_unanswered += len(requests) - len(answered)
        return [Call(each, round(since_s + each.t, DECIMALS), next(ranks)) for each in answered]

    def log(self) -> Log:
        """Return the requests in order of their times, with the answers that they waited for. Raises TraceError."""
        place, sizes = Place(self.path, np.array(self.lines, np.int64)), np.array(self.block_tokens)
        names = texts(place, "id", self.names)
        _, at, n_same = np.unique(names, return_inverse=True, return_counts=True)
        refuse_rows(place, n_same[at] > 1, "id must be unique", names.tolist())
        refuse_rows(place, sizes != sizes[:1], "block_size must be the same in all sessions", self.block_tokens)
        columns = dict(zip(COLUMNS, np.array(self.cells).reshape(-1, len(COLUMNS)).T, strict=True))
        start_s, took_s = columns.pop("start_s"), columns.pop("took_s")
        whole = [each.astype(np.int64) for each in columns.values()]
        session, turn, is_branch, prompts, outputs, n_runs, n_awaited = whole
        links = Dependencies(np.array(self.awaited, np.int64), _ends(n_awaited), np.zeros(len(session)))
        first_ids, n_ids = np.array(self.runs, np.int64).reshape(-1, 2).T
        self.counts["requests without api_time, which count as answered at once"] += int(np.isnan(took_s).sum())
        given: dict[str, Any] = {"turn": turn, "e2e_s": took_s, "dependencies": links, "session_id": names[session]}
        given |= {"is_branch": is_branch > 0} if is_branch.any() else {}
        given |= {"prefixes": Prefixes(self.block_tokens[0], first_ids, n_ids, _ends(n_runs))} if self.n_ids else {}
        order = np.argsort(start_s, kind="stable")
        of_rows = place.take(session[order])
        trace = checked(of_rows, Trace(start_s, prompts, outputs, outputs, **given).take(order))
        measured = {} if np.isnan(took_s).all() else {"e2e_s": took_s[order]}
        model = self.models.pop() if len(self.models) == 1 else None
        assumed = ("requests are sent at the times of the log", *self._notes())
        return Log(of_rows, trace, measured, model=model, n_failed=self.n_unanswered, assumed=assumed)

    def _notes(self) -> Iterator[str]:
        """Yield what is assumed, and what is lost."""
        n = len(self.lines)
        yield f"all {n} sessions begin at 0 s, as the file has no common clock, unless arrivals or a client begin them"
        if len(self.models) > 1:
            yield f"models, which are served as one: {names_shown(sorted(self.models)[:MOST_NAMED])}"
        if self.keys - READ:
            yield f"keys not read: {names_shown(sorted(self.keys - READ)[:MOST_NAMED])}"
        yield from (text if text == CHAINED else f"{text}: {n}" for text, n in self.counts.items() if n)


def _follow(calls: Sequence[Call], before: Sequence[Call]) -> list[Call]:
    """Let each call of an agent wait for the one that ended last before it, else for those before all of them, else for
    the agent's first. Return the calls that none of the others waits for."""
    running: list[tuple[float, int]] = []
    last, followed = None, set[int]()
    for at, call in enumerate(calls):
        while running and running[0][0] <= call.start_s:
            last = heappop(running)[1]
        if last is None and (before or not at):
            call.awaited += before
        else:
            followed.add(last or 0)
            call.awaited.append(calls[last or 0])
        heappush(running, (call.end_s, at))
    return [call for at, call in enumerate(calls) if at not in followed]


def _ends(counts: Iterable[int]) -> Ints:
    return np.cumsum([0, *counts])
