"""Trace events: slices, counters and arrows in the format that Perfetto and chrome://tracing open.

The format: a JSON object with `traceEvents`, each of which has a phase `ph`, whole microseconds `ts`, and the process
and thread that it is drawn in. X is a slice and has a `dur`; two of one thread are disjoint, or one is inside the
other. C is a counter of its process, s and f are the ends of an arrow between the slices that hold them, M names a
track.
Source: "Trace Event Format", the Chromium project's document of that name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

US_PER_S = 1e6

_RANK = {"M": 0, "X": 1, "C": 2, "s": 3, "f": 4}
"""Order at one instant: a track's name, its slices, then everything that refers to them."""


@dataclass(frozen=True)
class TraceTrack:
    """A thread of a process: where slices are drawn."""

    process: int
    thread: int


@dataclass
class Events:
    """The events of a trace, in any order until they are written."""

    events: list[Event] = field(default_factory=list)
    _n_arrows: int = 0

    def name_process(self, process: int, name: str) -> None:
        """Name a process; processes are drawn in the order of their numbers."""
        base = {"ph": "M", "ts": 0, "pid": process, "tid": 0}
        self.events.append(base | {"name": "process_name", "args": {"name": name}})
        self.events.append(base | {"name": "process_sort_index", "args": {"sort_index": process}})

    def name_thread(self, track: TraceTrack, name: str) -> None:
        """Name a thread; threads are drawn in the order of their numbers."""
        base = {"ph": "M", "ts": 0, "pid": track.process, "tid": track.thread}
        self.events.append(base | {"name": "thread_name", "args": {"name": name}})
        self.events.append(base | {"name": "thread_sort_index", "args": {"sort_index": track.thread}})

    def slice(self, track: TraceTrack, name: str, ends_s: tuple[float, float], args: Mapping[str, Any]) -> None:
        """Add a slice between two instants, unless it is shorter than half a microsecond."""
        start_us, end_us = (to_us(end_s) for end_s in ends_s)
        if end_us > start_us:
            where = {"ph": "X", "ts": start_us, "dur": end_us - start_us, "pid": track.process, "tid": track.thread}
            self.events.append(where | {"name": name, "cat": "simserve", "args": dict(args)})

    def count(self, process: int, name: str, at_s: float, values: Mapping[str, float]) -> None:
        """Set counters of a process from that instant on."""
        where = {"ph": "C", "ts": to_us(at_s), "pid": process, "tid": 0}
        self.events.append(where | {"name": name, "args": dict(values)})

    def arrow(self, name: str, at_s: float, tail: TraceTrack, head: TraceTrack) -> None:
        """Add an arrow between the slices of two threads at an instant."""
        self._n_arrows += 1
        base = {"ts": to_us(at_s), "name": name, "cat": "simserve", "id": self._n_arrows}
        self.events.append(base | {"ph": "s", "pid": tail.process, "tid": tail.thread})
        self.events.append(base | {"ph": "f", "bp": "e", "pid": head.process, "tid": head.thread})

    def as_json(self, text: Mapping[str, Any]) -> str:
        """Return the whole trace, sorted by time, slices before those inside them; `text` goes beside the events."""
        events = ",\n".join(_compact(event) for event in sorted(self.events, key=_order))
        return f'{{"displayTimeUnit":"ms","otherData":{_compact(text)},"traceEvents":[\n{events}\n]}}\n'


def to_us(seconds: float) -> int:
    """Return whole microseconds, so that slices that touch in time touch in the trace."""
    return round(seconds * US_PER_S)


def _order(event: Event) -> tuple[int, int, int]:
    return event["ts"], _RANK[event["ph"]], -event.get("dur", 0)


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
