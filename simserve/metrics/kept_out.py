"""Kept out: waiting time at a replica by the cause that blocked the head of its queue. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Ints, bounds
from simserve.tables.pieces import column, computed, cumulated, cut, full, pieces, rows_where
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
class _Timeline:
    """The time of one replica in disjoint parts, in order; between them it is idle and blocks no request."""

    start_ps: Ints
    lasts_ps: Ints
    reason: Ints
    """Index into REASONS, or its length for none."""


def kept_out_ps(steps: Columns, start_ps: Ints, stalls: Columns, waits: Waits) -> list[Ints]:
    """Return how long each of REASONS blocked the head of the queue during each wait, `(n_waits,)` each.

    start_ps: of each row of steps. A row has one cause for all its time, and so does a stalled replica until its next
    row.
    """
    table = vars(waits)
    result = [full(len(waits.replica), 0, table) for _ in REASONS]
    chosen = rows_where(lambda part: part["until_ps"] != part["from_ps"], table)
    replica = column(lambda part: waits.replica[part["chosen"]], {"chosen": chosen})
    order = np.argsort(replica, kind="stable")
    chosen, replica = chosen[order], replica[order]
    n_replicas = int(replica[-1]) + 1 if len(replica) else 0
    edges = [bounds(of, n_replicas) for of in (replica, steps["replica"], stalls["replica"])]
    blocked = {name: steps[name] for name in ("blocked_by", "end_s")} | {"start_ps": start_ps}
    for each in range(n_replicas):
        mine, rows, idle = (slice(*of[each : each + 2].tolist()) for of in edges)
        timeline = _timeline(cut(blocked, rows), cut(stalls, idle))
        for place, kept_ps in enumerate(result):
            _add_kept_out(kept_ps, chosen[mine], timeline, place, waits)
    return result


def _timeline(steps: Columns, stalls: Columns) -> _Timeline:
    """Return the timeline of one replica, from its own rows of steps and stalls."""
    own = computed(
        lambda part: {"reason": _reasons(part), "lasts_ps": array_to_ps(part["end_s"]) - part["start_ps"]}, steps
    )
    timeline = _Timeline(steps["start_ps"], **own)
    if not len(stalls["at_s"]):
        return timeline
    return _with_stalls(timeline, array_to_ps(stalls["at_s"]), _reasons(stalls))


def _reasons(table: Columns) -> Ints:
    """Return the index into REASONS of each row's cause, or its length for none."""
    causes = table["blocked_by"]
    none = len(REASONS)
    of_code = [REASONS.index(name) if name in REASONS else none for name in causes.categories]
    result: Ints = np.array([*of_code, none], np.int64)[causes.codes]  # code -1 takes the last
    return result


def _with_stalls(timeline: _Timeline, at_ps: Ints, reasons: Ints) -> _Timeline:
    """Add the stalls of the replica, each until the next piece begins; after the last row nothing waits."""
    start_ps = np.concatenate([timeline.start_ps, at_ps])
    order = np.argsort(start_ps, kind="stable")
    lasts_ps = np.concatenate([timeline.lasts_ps, np.zeros(len(at_ps), np.int64)])[order]
    is_stall = order >= len(timeline.start_ps)
    start_ps = start_ps[order]
    until_next_ps = np.diff(start_ps, append=start_ps[-1:])
    lasts_ps[is_stall] = until_next_ps[is_stall]
    return _Timeline(start_ps, lasts_ps, np.concatenate([timeline.reason, reasons])[order])


def _add_kept_out(kept_ps: Ints, wait: Ints, blocked: _Timeline, place: int, waits: Waits) -> None:
    """Add how long one cause, by its index, blocked the queue during some waits."""
    table = vars(blocked)
    if not any((part["reason"] == place).any() for part in pieces(table)):
        return
    sums_ps = cumulated(lambda part: np.where(part["reason"] == place, part["lasts_ps"], 0), table)

    def upto_ps(at_ps: Ints) -> Ints:
        """Return how long it had blocked the queue by each instant."""
        piece = np.searchsorted(blocked.start_ps, at_ps, side="right") - 1
        is_it = blocked.reason[piece] == place
        left_ps = np.maximum(blocked.lasts_ps[piece] - (at_ps - blocked.start_ps[piece]), 0)
        return np.where(piece >= 0, sums_ps[piece] - np.where(is_it, left_ps, 0), 0)

    for part in pieces({"wait": wait}, run=table):
        own = part["wait"]
        kept_ps[own] = upto_ps(waits.until_ps[own]) - upto_ps(waits.from_ps[own])
