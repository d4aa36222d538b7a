"""Kept out: waiting time at a replica by the cause that blocked the head of its queue. Exact."""

from dataclasses import dataclass

import numpy as np

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
    """Index into REASONS; -1 for none."""


def kept_out_ps(steps: Columns, stalls: Columns, waits: Waits) -> Ints:
    """Return how long each of REASONS blocked the head of the queue during each wait, `(len(REASONS), n_waits)`.

    A row of steps has one cause for all its time, and so does a stalled replica until its next row.
    """
    result = np.zeros((len(REASONS), len(waits.replica)), np.int64)
    chosen = np.flatnonzero(waits.until_ps > waits.from_ps)
    chosen = chosen[np.argsort(waits.replica[chosen], kind="stable")]
    n_replicas = int(waits.replica.max(initial=-1)) + 1
    edges = [np.searchsorted(of, np.arange(n_replicas + 1)) for of in (waits.replica[chosen], steps["replica"])]
    still = np.searchsorted(stalls["replica"], np.arange(n_replicas + 1))
    reasons, stall_reasons = _reasons(steps), _reasons(stalls)
    for replica in range(n_replicas):
        mine, rows, idle = (slice(*of[replica : replica + 2]) for of in (*edges, still))
        if mine.start == mine.stop or not ((reasons[rows] >= 0).any() or idle.start < idle.stop):
            continue
        wait = chosen[mine]
        start_ps, end_ps = (array_to_ps(steps[name][rows]) for name in ("start_s", "end_s"))
        pieces = _Pieces(start_ps, end_ps - start_ps, reasons[rows])
        if idle.start < idle.stop:
            pieces = _with_stalls(pieces, array_to_ps(stalls["at_s"][idle]), stall_reasons[idle])
        result[:, wait] = _upto(pieces, waits.until_ps[wait]) - _upto(pieces, waits.from_ps[wait])
    return result


def _reasons(table: Columns) -> Ints:
    """Return the index into REASONS of each row's cause; -1 for none."""
    column = table["blocked_by"]
    of_code = [REASONS.index(name) if name in REASONS else -1 for name in column.categories]
    result: Ints = np.array([*of_code, -1], np.int64)[column.codes]  # code -1 takes the last
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


def _upto(pieces: _Pieces, at_ps: Ints) -> Ints:
    """Return how long each cause had blocked the queue by each instant, `(len(REASONS), n_instants)`."""
    piece = np.searchsorted(pieces.start_ps, at_ps, side="right") - 1
    known = piece >= 0
    of_it_ps = np.minimum(at_ps - pieces.start_ps[piece], pieces.lasts_ps[piece])
    sums = np.zeros((len(REASONS), len(at_ps)), np.int64)
    for place, total_ps in enumerate(sums):
        is_it = pieces.reason == place
        if is_it.any():
            own_ps = np.where(is_it, pieces.lasts_ps, 0)
            total_ps[:] = (np.cumsum(own_ps) - own_ps)[piece] + np.where(is_it[piece], of_it_ps, 0)
    return sums * known
