"""Tracks of a trace: the phases of a request as slices that touch; the steps and counters of a replica."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.report.slowest import PARTS
from simserve.report.trace.events import Events, TraceTrack

ColumnsByName = dict[str, Any]
"""Columns of a table of a run, by name."""

Ints = NDArray[np.int64]

REQUESTS = 1
"""The process of the requests; those of replicas follow."""

STEPS = 1
"""The thread of a replica's steps."""

LEAST_S = 1e-9
"""Anything shorter is rounding."""


@dataclass(frozen=True)
class Span:
    """A completed prefill and the decode steps after it."""

    replica: int
    join_s: float
    end_s: float
    n_steps: int
    first_s: float | None
    """When the first of these began; None if there are none."""


@dataclass(frozen=True)
class Piece:
    """A phase of a request, with its start and end."""

    name: str
    start_s: float
    end_s: float
    args: Mapping[str, Any]


Queue = Callable[[float, float], list[tuple[str, float, float]]]
"""Maps a time in the queue to the reasons that blocked its head, each with start and end."""


@dataclass(frozen=True)
class Life:
    """A request as the tables have it: its row, plain numbers and text, and its spans in order of time."""

    row: Mapping[str, Any]
    spans: Sequence[Span]
    queue: Queue
    respond_s: float
    is_pushed: bool
    """The decode side gives room before the prefill."""

    @property
    def ends_s(self) -> tuple[float, float]:
        """Return its arrival and the last instant known of it."""
        known = [self.row[name] for name in ("arrival_s", "scheduled_s", "finish_s", "gave_up_s")]
        return self.row["arrival_s"], max(each for each in (*known, *(s.end_s for s in self.spans)) if not isnan(each))


def pieces(life: Life) -> list[Piece]:
    """Return slices that touch, in order; those of an unfinished request end where it did."""
    row = life.row
    result = _before_prefill(life)
    at_s, transfer_s, n_moves = row["scheduled_s"], row["transfer_s"], row["n_migrations"]
    for number, span in enumerate(life.spans):
        result += _evicted(row, at_s, span.join_s) if number else _prefill(row, span.join_s)
        start_s = span.join_s
        if not number and transfer_s > 0 and not n_moves:  # the table has the sum of all transfers
            room_s = span.join_s + (0.0 if life.is_pushed else row["transfer_wait_s"])
            start_s = span.join_s + transfer_s
            result += [_piece("transfer_wait_s", span.join_s, room_s), _piece("link_s", room_s, start_s)]
        args = {"decode_steps": span.n_steps, "replica": span.replica}
        result.append(_piece("decode_s", start_s, span.end_s, **args, **_parts(row, "decode_s", "interference_s")))
        at_s = span.end_s
    if not isnan(row["finish_s"]) and life.spans:
        sent_s = row["finish_s"] - life.respond_s
        result += [_piece("batch_wait_s", at_s, sent_s), _piece("front_end_s", sent_s, row["finish_s"])]
    return _touching([piece for piece in result if piece.end_s - piece.start_s > LEAST_S])


def _touching(result: list[Piece]) -> list[Piece]:
    """Make slices closer than rounding touch to the last bit, so that no two overlap."""
    for place, (before, piece) in enumerate(pairwise(result), start=1):
        if abs(piece.start_s - before.end_s) <= LEAST_S:
            result[place] = replace(piece, start_s=before.end_s)
    return result


def _before_prefill(life: Life) -> list[Piece]:
    """Return the time in the front end, where there is one, and in the queue."""
    row = life.row
    at_s, until_s = row["arrival_s"], row["scheduled_s"]
    if isnan(until_s):
        return []
    if isnan(row["front_end_s"]):
        return [Piece("Queue", at_s, until_s, {})]
    through_s = at_s + row["front_end_s"] - life.respond_s
    result = [_piece("front_end_s", at_s, through_s)]
    if life.is_pushed and row["transfer_wait_s"] > 0:
        room_s = through_s + row["transfer_wait_s"]
        result.append(_piece("transfer_wait_s", through_s, room_s))
        through_s = room_s
    return result + [_piece(f"queue_{reason}_s", *ends) for reason, *ends in life.queue(through_s, until_s)]


def _prefill(row: Mapping[str, Any], join_s: float) -> list[Piece]:
    """Return the time up to the first token, including an eviction before it."""
    args = {name: row[name] for name in ("prompt_tokens", "cached_tokens")}
    begin_s = row["scheduled_s"]
    cut_s = begin_s + row["prefill_s"] + row["prefill_wait_s"]
    if isnan(cut_s) or join_s - cut_s <= LEAST_S:
        return [_piece("prefill_s", begin_s, join_s, **args, **_parts(row, "prefill_s", "prefill_wait_s"))]
    return [_piece("prefill_s", begin_s, cut_s, **args), *_evicted(row, cut_s, join_s)]


def _evicted(row: Mapping[str, Any], from_s: float, join_s: float) -> list[Piece]:
    """Return the time from its last token, or the last computed part of its prompt, to the next token. The tables hold
    the sums of all evictions; a single one with recomputation can be split exactly."""
    n_moves, recompute_s = row["n_migrations"], row["recompute_s"]
    if row["n_preemptions"] + n_moves != 1 or row["n_swaps"] or isnan(recompute_s):
        title = "Evicted or moved" if n_moves else "Evicted"
        return [Piece(title, from_s, join_s, _parts(row, "preempted_s", "recompute_s"))]
    back_s = join_s - recompute_s
    left_s = back_s - row["preempted_s"]
    return [
        _piece("interference_s", from_s, left_s),
        _piece("preempted_s", left_s, back_s),
        _piece("recompute_s", back_s, join_s, tokens=row["n_recomputed_tokens"]),
    ]


def _piece(part: str, start_s: float, end_s: float, **args: Any) -> Piece:
    return Piece(PARTS[part].title, start_s, end_s, args)


def _parts(row: Mapping[str, Any], *names: str) -> dict[str, float]:
    return {name: round(row[name], 9) for name in names if not isnan(row[name])}


def add_replica(events: Events, steps: ColumnsByName, rows: Ints, name: str) -> None:
    """Add a replica's steps of these rows, and its counters."""
    replica = int(steps["replica"][rows[0]])
    track = track_of(replica)
    events.name_process(track.process, name)
    events.name_thread(track, "Steps")
    text = ("n_steps", "prefill_tokens", "decode_requests", "kv_tokens", "kv_blocks_used", "queue_len")
    columns = {each: steps[each][rows].tolist() for each in (*text, "start_s", "end_s", "kv_blocks_reserved")}
    reasons = words(steps["blocked_by"], rows)
    before: dict[str, Any] = {}
    for place, reason in enumerate(reasons):
        args = {each: columns[each][place] for each in text} | {"blocked_by": reason or None}
        start_s = columns["start_s"][place]
        events.slice(track, _kind(args), (start_s, columns["end_s"][place]), args)
        blocks = {"used": args["kv_blocks_used"], "reserved": columns["kv_blocks_reserved"][place]}
        counters = {"Waiting": {"requests": args["queue_len"]}, "KV blocks": blocks}
        counters["Decoding"] = {"requests": args["decode_requests"]}
        for counter, values in counters.items():
            if before.get(counter) != values:
                events.count(track.process, counter, start_s, values)
        before = counters


def _kind(args: Mapping[str, Any]) -> str:
    if not args["decode_requests"]:
        return "Prefill"
    if args["prefill_tokens"]:
        return "Prefill and decode"
    return "Decode" if args["n_steps"] == 1 else f"Decode, {args['n_steps']} steps"


def track_of(replica: int) -> TraceTrack:
    """Return the track of a replica's steps."""
    return TraceTrack(REQUESTS + 1 + replica, STEPS)


def overlapping(steps: ColumnsByName, replica: int, ends_s: tuple[float, float]) -> Ints:
    """Return the rows of a replica that overlap that time."""
    first, stop = np.searchsorted(steps["replica"], [replica, replica + 1]).tolist()
    begin = int(np.searchsorted(steps["end_s"][first:stop], ends_s[0], side="right"))
    end = int(np.searchsorted(steps["start_s"][first:stop], ends_s[1], side="left"))
    return np.arange(first + begin, first + max(end, begin))


def words(column: Any, rows: Any = slice(None)) -> list[str]:
    """Return the words of a column's rows; "" for null."""
    return [*np.array([*column.categories, ""])[column.codes[rows]].tolist()]
