"""Backlog: the requests in the system when each request comes."""

import numpy as np

from simserve.tables import large
from simserve.tables.columns import Columns, Floats


def n_in_system(requests: Columns) -> Floats:
    """Return the number of unfinished requests that each arrival finds, `(n_requests,)`, in order of arrival."""
    stays = ~requests["status"].is_("rejected")
    left_s = large.joined(
        len(stays), (_leave_s(requests, piece)[stays[piece]] for piece in large.pieces(len(stays))), np.float64
    )
    left_s = np.sort(left_s[~np.isnan(left_s)])
    n_before = 0

    def part(piece: slice) -> Floats:
        nonlocal n_before
        own = stays[piece]
        came_before = n_before + np.cumsum(own) - own
        n_before += int(own.sum())
        left_before = np.searchsorted(left_s, requests["arrival_s"][piece], side="right")
        result: Floats = (came_before - left_before).astype(np.float64)
        return result

    return large.built(len(stays), part)


def _leave_s(requests: Columns, rows: slice) -> Floats:
    """Return when some requests were answered or given up, NaN for never."""
    leave_s: Floats = np.fmin(requests["finish_s"][rows], requests["gave_up_s"][rows])
    return leave_s
