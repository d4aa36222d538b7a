"""Kept out: waiting time at a replica by the cause that blocked the head of its queue. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.tables import large
from simserve.tables.columns import Columns, Ints
from simserve.units import array_to_ps

REASONS = ("seats", "blocks", "budget")
"""Causes that a scheduler reports for a blocked head of the queue."""


@dataclass(frozen=True)
class Waits:
    """Waits at replicas, `(n_waits,)` each: replica, start and end."""

    replica: Ints
    from_ps: Ints
    until_ps: Ints


@dataclass(frozen=True)
class _Pieces:
    """Disjoint pieces of time at one replica, in order; between them it is idle and blocks no request."""

    start_ps: Ints
    lasts_ps: Ints
    reason: Ints
    """Index into REASONS, or its length for none."""


def kept_out_ps(steps: Columns, start_ps: Ints, stalls: Columns, waits: Waits) -> list[Ints]:
    """Return how long each of REASONS blocked the head of the queue during each wait, `(n_waits,)` each.

    start_ps: of each row of steps. A row has one cause for all its time, and so does a stalled replica until its next
    row.
    """
    result = [large.zeros(len(waits.replica), np.int64) for _ in REASONS]
    chosen = large.flatnonzero(len(waits.replica), lambda piece: waits.until_ps[piece] != waits.from_ps[piece])
    replica = large.built(len(chosen), lambda piece: waits.replica[chosen[piece]])
    order = np.argsort(replica, kind="stable")
    chosen, replica = chosen[order], replica[order]
    n_replicas = int(replica[-1]) + 1 if len(replica) else 0
    edges = [large.bounds(of, n_replicas) for of in (replica, steps["replica"])]
    still = large.bounds(stalls["replica"], n_replicas)
    for each in range(n_replicas):
        mine, rows, idle = (slice(*of[each : each + 2].tolist()) for of in (*edges, still))
        pieces = _pieces(steps, start_ps, stalls, rows, idle)
        for place, column in enumerate(result):
            _add_kept_out(column, chosen[mine], pieces, place, waits)
    return result


def _pieces(steps: Columns, start_ps: Ints, stalls: Columns, rows: slice, idle: slice) -> _Pieces:
    """Return the pieces of one replica, with its own rows of steps and stalls."""
    starts_ps = start_ps[rows]
    reason = large.built(len(starts_ps), lambda piece: _reasons(steps, _within(rows, piece)))
    lasts_ps = large.built(
        len(starts_ps), lambda piece: array_to_ps(steps["end_s"][_within(rows, piece)]) - starts_ps[piece]
    )
    pieces = _Pieces(starts_ps, lasts_ps, reason)
    if idle.start == idle.stop:
        return pieces
    return _with_stalls(pieces, array_to_ps(stalls["at_s"][idle]), _reasons(stalls, idle))


def _within(rows: slice, piece: slice) -> slice:
    """Return a piece of some rows, as rows of the table."""
    return slice(rows.start + piece.start, rows.start + piece.stop)


def _reasons(table: Columns, rows: slice) -> Ints:
    """Return the index into REASONS of each row's cause, or its length for none."""
    column = table["blocked_by"]
    none = len(REASONS)
    of_code = [REASONS.index(name) if name in REASONS else none for name in column.categories]
    result: Ints = np.array([*of_code, none], np.int64)[column.codes[rows]]  # code -1 takes the last
    return result


def _with_stalls(pieces: _Pieces, at_ps: Ints, reasons: Ints) -> _Pieces:
    """Add the stalls of the replica, each until the next piece begins; after the last row nothing waits."""
    start_ps = np.concatenate([pieces.start_ps, at_ps])
    order = np.argsort(start_ps, kind="stable")
    lasts_ps = np.concatenate([pieces.lasts_ps, np.zeros(len(at_ps), np.int64)])[order]
    is_stall = order >= len(pieces.start_ps)
    start_ps = start_ps[order]
    until_next_ps = np.diff(start_ps, append=start_ps[-1:])
    lasts_ps[is_stall] = until_next_ps[is_stall]
    return _Pieces(start_ps, lasts_ps, np.concatenate([pieces.reason, reasons])[order])


def _add_kept_out(kept_ps: Ints, wait: Ints, pieces: _Pieces, place: int, waits: Waits) -> None:
    """Add how long one cause, by its index, blocked the queue during some waits."""

    if not any((pieces.reason[piece] == place).any() for piece in large.pieces(len(pieces.reason))):
        return

    def own_ps(piece: slice) -> Ints:
        return np.where(pieces.reason[piece] == place, pieces.lasts_ps[piece], 0)

    sums_ps = large.cumulated(len(pieces.reason), own_ps)

    def upto_ps(at_ps: Ints) -> Ints:
        """Return how long it had blocked the queue by each instant."""
        piece = np.searchsorted(pieces.start_ps, at_ps, side="right") - 1
        is_it = pieces.reason[piece] == place
        left_ps = np.maximum(pieces.lasts_ps[piece] - (at_ps - pieces.start_ps[piece]), 0)
        return np.where(piece >= 0, sums_ps[piece] - np.where(is_it, left_ps, 0), 0)

    for part in large.pieces(len(wait)):
        own = wait[part]
        kept_ps[own] = upto_ps(waits.until_ps[own]) - upto_ps(waits.from_ps[own])
