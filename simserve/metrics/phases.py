"""Phases: what requests that were preempted were at, from their first step to their last token. Exact."""

from dataclasses import dataclass

import numpy as np

from simserve.tables.columns import Columns, Flags, Ints
from simserve.units import array_to_ps

SCHEDULED, JOINED, LEFT, BACK, SWAPPED_BACK, ENDED = range(6)
"""What happens to a request: until the next of these it computes its prompt, decodes, waits, recomputes, decodes."""


@dataclass(frozen=True)
class Phases:
    """Of some requests, `(n_found,)` each."""

    request: Ints
    """Their row numbers, in rising order."""
    prefill_ps: Ints
    """Until their first token, or until they first had to go."""
    was_cut: Flags
    """They had to go before their first token."""
    preempted_ps: Ints
    recompute_ps: Ints
    """With a seat, until they had a token again, or had to go again."""
    swapped_spans: Ints
    """Spans of those that came back as they had left: the step before gave their first token, too; `(n_spans,)`."""


def phases(pauses: Columns, spans: Columns, scheduled_ps: Ints, end_ps: Ints) -> Phases:
    """Of all that finished after a preemption. scheduled_ps, end_ps: `(n_requests,)`; an end below 0 never came."""
    had_to_go = pauses["request_id"]
    request = np.unique(had_to_go[end_ps[had_to_go] >= 0])
    own_spans, own_pauses = (np.flatnonzero(np.isin(of["request_id"], request)) for of in (spans, pauses))
    left, back = (array_to_ps(pauses[name][own_pauses]) for name in ("left_s", "back_s"))
    is_swapped = pauses["is_swapped"][own_pauses]
    n, n_spans, n_pauses = len(request), len(own_spans), len(own_pauses)
    number = 2 * np.arange(n_pauses)
    kind = np.concatenate([
        np.full(n, SCHEDULED), np.full(n_spans, JOINED), np.full(n_pauses, LEFT),
        np.where(is_swapped, SWAPPED_BACK, BACK), np.full(n, ENDED),
    ])  # fmt: skip
    who = np.concatenate([
        request, spans["request_id"][own_spans], had_to_go[own_pauses], had_to_go[own_pauses], request
    ])  # fmt: skip
    at_ps = np.concatenate([
        scheduled_ps[request], array_to_ps(spans["join_s"][own_spans]), left, back, end_ps[request]
    ])  # fmt: skip
    # at one instant a step ends first, and then somebody goes and may come back, even several times
    rank = np.concatenate([
        np.full(n, -2), np.full(n_spans, -1), number, number + 1, np.full(n, 2 * n_pauses)
    ])  # fmt: skip
    order = np.lexsort((rank, at_ps, who))
    kind, who, at_ps = kind[order], np.searchsorted(request, who[order]), at_ps[order]
    goes_on = who[1:] == who[:-1]
    lasts_ps = np.where(goes_on, at_ps[1:] - at_ps[:-1], 0)

    def total_ps(of: int) -> Ints:
        chosen = np.flatnonzero(kind[:-1] == of)
        sums = np.zeros(n, np.int64)
        np.add.at(sums, who[chosen], lasts_ps[chosen])
        return sums

    follows = np.flatnonzero(goes_on)
    was_cut = np.zeros(n, np.bool_)
    was_cut[who[follows[(kind[follows] == SCHEDULED) & (kind[follows + 1] == LEFT)]]] = True
    returned = order[follows[(kind[follows] == SWAPPED_BACK) & (kind[follows + 1] == JOINED)] + 1]
    return Phases(request, total_ps(SCHEDULED), was_cut, total_ps(LEFT), total_ps(BACK), own_spans[returned - n])
