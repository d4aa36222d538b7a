"""Backlog: the requests in the system when each request comes."""

import numpy as np

from simserve.tables.columns import Columns, Floats
from simserve.tables.pieces import column, joined, pieces


def n_in_system(requests: Columns) -> Floats:
    """Return the number of unfinished requests that each arrival finds, `(n_requests,)`, in order of arrival."""
    left_s = joined(map(_leave_s, pieces(requests)), len(requests["arrival_s"]), requests, np.float64)
    left_s = np.sort(left_s[~np.isnan(left_s)])
    n_before = 0

    def found(part: Columns) -> Floats:
        nonlocal n_before
        stays = ~part["status"].is_("rejected")
        came_before = n_before + np.cumsum(stays) - stays
        n_before += int(stays.sum())
        left_before = np.searchsorted(left_s, part["arrival_s"], side="right")
        result: Floats = (came_before - left_before).astype(np.float64)
        return result

    return column(found, requests)


def _leave_s(requests: Columns) -> Floats:
    """Return when the requests that were not rejected were answered or given up, NaN for never."""
    stays = ~requests["status"].is_("rejected")
    leave_s: Floats = np.fmin(requests["finish_s"], requests["gave_up_s"])[stays]
    return leave_s
