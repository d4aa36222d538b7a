"""Phases: the time of preempted requests from their first step to their last token, by activity. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Flags, Ints
from simserve.tables.pieces import rows_where
from simserve.units import array_to_ps

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
    preempted_ps: Ints
    recompute_ps: Ints
    """Running time after a preemption, until the next token or preemption."""
    swapped_spans: Ints
    """Spans that continue a swapped one; their first token came from the step before; `(n_spans,)`."""


def phases(pauses: Columns, spans: Columns, lives: Columns) -> Phases:
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
    return Phases(request, total_ps(SCHEDULED), was_cut, total_ps(LEFT), total_ps(BACK), own_spans[returned - n])
