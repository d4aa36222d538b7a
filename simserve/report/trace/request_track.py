"""The track of one request: its phases from arrival to last token, as slices that touch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan
from typing import Any

from simserve.report.slowest import PARTS

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
    at_s = row["scheduled_s"]
    for number, span in enumerate(life.spans):
        result += _evicted(row, at_s, span.join_s) if number else _prefill(row, span.join_s)
        start_s = span.join_s
        if not number and row["transfer_s"] > 0:
            room_s = span.join_s + (0.0 if life.is_pushed else row["transfer_wait_s"])
            start_s = span.join_s + row["transfer_s"]
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
    """Return the time from its last token, or the last computed part of its prompt, to the next token.

    The tables hold the sums of all evictions; a single one with recomputation can be split exactly.
    """
    if row["n_preemptions"] != 1 or row["n_swaps"] or isnan(row["recompute_s"]):
        return [Piece("Evicted", from_s, join_s, _parts(row, "preempted_s", "recompute_s"))]
    back_s = join_s - row["recompute_s"]
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
