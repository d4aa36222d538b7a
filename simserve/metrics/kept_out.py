"""Kept out: how long requests waited before a replica, by what kept the head of its queue out meanwhile. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Ints
from simserve.units import array_to_ps

REASONS = ("seats", "blocks", "budget")
"""What a scheduler says keeps the head of its queue out."""


@dataclass(frozen=True)
class Waits:
    """Waits before replicas, `(n_waits,)` each: where, from when, until when."""

    replica: Ints
    from_ps: Ints
    until_ps: Ints


@dataclass(frozen=True)
class _Pieces:
    """Time at one replica in pieces that do not overlap, in order; in between nobody steps and nobody is kept out."""

    start_ps: Ints
    lasts_ps: Ints
    reason: Ints
    """The place among REASONS; -1 for none."""


def kept_out_ps(steps: Columns, stalls: Columns, waits: Waits) -> Ints:
    """Of each wait, how long each of REASONS kept the head of that queue out, `(len(REASONS), n_waits)`.

    A row of steps says so for all its time, and so does a replica that begins no step until its next row.
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
        who = chosen[mine]
        start_ps, end_ps = (array_to_ps(steps[name][rows]) for name in ("start_s", "end_s"))
        pieces = _Pieces(start_ps, end_ps - start_ps, reasons[rows])
        if idle.start < idle.stop:
            pieces = _with_stalls(pieces, array_to_ps(stalls["at_s"][idle]), stall_reasons[idle])
        result[:, who] = _upto(pieces, waits.until_ps[who]) - _upto(pieces, waits.from_ps[who])
    return result


def _reasons(table: Columns) -> Ints:
    """Of each row, the place among REASONS of what it was blocked by; -1 for none."""
    column = table["blocked_by"]
    of_code = [REASONS.index(name) if name in REASONS else -1 for name in column.categories]
    result: Ints = np.array([*of_code, -1], np.int64)[column.codes]  # code -1 takes the last
    return result


def _with_stalls(pieces: _Pieces, at_ps: Ints, reasons: Ints) -> _Pieces:
    """And those in which it stands still, each until the next piece begins; after the last row nothing waits."""
    start_ps = np.concatenate([pieces.start_ps, at_ps])
    order = np.argsort(start_ps, kind="stable")
    lasts_ps = np.concatenate([pieces.lasts_ps, np.zeros(len(at_ps), np.int64)])[order]
    is_stall = order >= len(pieces.start_ps)
    start_ps = start_ps[order]
    until_next_ps = np.diff(start_ps, append=start_ps[-1:])
    lasts_ps[is_stall] = until_next_ps[is_stall]
    return _Pieces(start_ps, lasts_ps, np.concatenate([pieces.reason, reasons])[order])


def _upto(pieces: _Pieces, at_ps: Ints) -> Ints:
    """How long each reason had kept somebody out by each instant, `(len(REASONS), n_instants)`."""
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
