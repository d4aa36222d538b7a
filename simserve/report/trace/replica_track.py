"""The track of a replica: its steps as slices; its queue, batch and KV cache as counters."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.report.trace.events import Events, TraceTrack

Table = dict[str, Any]
"""Columns of a table of a run, by name."""

Ints = NDArray[np.int64]

REQUESTS = 1
"""The process of the requests; those of replicas follow."""

STEPS = 1
"""The thread of a replica's steps."""


def add_replica(events: Events, steps: Table, rows: Ints, name: str) -> None:
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


def overlapping(steps: Table, replica: int, ends_s: tuple[float, float]) -> Ints:
    """Return the rows of a replica that overlap that time."""
    first, stop = np.searchsorted(steps["replica"], [replica, replica + 1]).tolist()
    begin = int(np.searchsorted(steps["end_s"][first:stop], ends_s[0], side="right"))
    end = int(np.searchsorted(steps["start_s"][first:stop], ends_s[1], side="left"))
    return np.arange(first + begin, first + max(end, begin))


def words(column: Any, rows: Any = slice(None)) -> list[str]:
    """Return the words of a column's rows; "" for null."""
    return [*np.array([*column.categories, ""])[column.codes[rows]].tolist()]
