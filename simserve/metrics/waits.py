"""Waits: the time of requests in a queue by the cause that blocked its head, and that of preempted requests from their
first step to their last token by activity. Exact.
"""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Flags, Ints, bounds
from simserve.tables.pieces import Rows, column, computed, cumulated, cut, full, pieces, rows_where
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


def _timeline(steps: Rows, stalls: Rows) -> _Timeline:
    """Return the timeline of one replica, from its own rows of steps and stalls."""
    own = computed(
        lambda part: {"reason": _reasons(part), "lasts_ps": array_to_ps(part["end_s"]) - part["start_ps"]}, steps
    )
    timeline = _Timeline(steps["start_ps"], **own)
    if not len(stalls["at_s"]):
        return timeline
    return _with_stalls(timeline, array_to_ps(stalls["at_s"]), _reasons(stalls))


def _reasons(table: Rows) -> Ints:
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


SCHEDULED, JOINED, LEFT, BACK, SWAPPED_BACK, ENDED = range(6)
"""Events of a request; between them it prefills, decodes, waits, recomputes and decodes."""


@dataclass(frozen=True)
class Phases:
    """The phases of preempted requests, `(n_found,)` each."""

    request: Ints
    """Their row numbers, ascending."""
    prefill_ps: Ints
    """Time until the first token, or until the first preemption."""
    was_cut: Flags
    """Whether the first preemption came before the first token."""
    recompute_ps: Ints
    """Running time after a preemption, until the next token or preemption."""
    swapped_spans: Ints
    """Spans that continue a swapped one; their first token came from the step before; `(n_spans,)`."""


def phases(pauses: Columns, spans: Columns, lives: Rows) -> Phases:
    """Return the phases of requests that finished after a preemption. lives: has_finished, scheduled_ps and end_ps,
    `(n_requests,)` each; instants of unfinished requests are not read."""
    has_finished, scheduled_ps, end_ps = (lives[name] for name in ("has_finished", "scheduled_ps", "end_ps"))
    had_to_go = pauses["request_id"]
    request = np.unique(had_to_go[has_finished[had_to_go]])
    is_one = np.zeros(len(has_finished), np.bool_)
    is_one[request] = True
    own_spans, own_pauses = (rows_where(lambda part: is_one[part["request_id"]], each) for each in (spans, pauses))
    left, back = (array_to_ps(pauses[name][own_pauses]) for name in ("left_s", "back_s"))
    is_swapped = pauses["is_swapped"][own_pauses]
    n, n_spans, n_pauses = len(request), len(own_spans), len(own_pauses)
    kind = np.concatenate([
        np.full(n, SCHEDULED), np.full(n_spans, JOINED), np.full(n_pauses, LEFT),
        np.where(is_swapped, SWAPPED_BACK, BACK), np.full(n, ENDED),
    ])  # fmt: skip
    owner = np.concatenate([
        request, spans["request_id"][own_spans], had_to_go[own_pauses], had_to_go[own_pauses], request
    ])  # fmt: skip
    at_ps = np.concatenate([
        scheduled_ps[request], array_to_ps(spans["join_s"][own_spans]), left, back, end_ps[request]
    ])  # fmt: skip
    # At one instant a step ends first, then requests leave and may return, even several times; the sort is stable.
    number = np.arange(n_pauses)
    rank = np.concatenate([np.zeros(n + n_spans, np.int64), number, number, np.full(n, n_pauses)])
    order = np.lexsort((rank, at_ps, owner))
    kind, owner, at_ps = kind[order], np.searchsorted(request, owner[order]), at_ps[order]
    goes_on = owner[1:] == owner[:-1]
    lasts_ps = np.where(goes_on, at_ps[1:] - at_ps[:-1], 0)

    def total_ps(of: int) -> Ints:
        chosen = np.flatnonzero(kind[:-1] == of)
        sums = np.zeros(n, np.int64)
        np.add.at(sums, owner[chosen], lasts_ps[chosen])
        return sums

    follows = np.flatnonzero(goes_on)
    was_cut = np.zeros(n, np.bool_)
    was_cut[owner[follows[(kind[follows] == SCHEDULED) & (kind[follows + 1] == LEFT)]]] = True
    returned = order[follows[(kind[follows] == SWAPPED_BACK) & (kind[follows + 1] == JOINED)] + 1]
    return Phases(request, total_ps(SCHEDULED), was_cut, total_ps(BACK), own_spans[returned - n])
