"""Backlog: the requests in the system when each request comes."""

import numpy as np

from simserve.tables.columns import Columns, Floats


def n_in_system(requests: Columns) -> Floats:
    """Return the number of unfinished requests that each arrival finds, `(n_requests,)`, in order of arrival."""
    stays = ~requests["status"].is_("rejected")
    leave_s = np.fmin(requests["finish_s"], requests["gave_up_s"])[stays]
    came_before = np.cumsum(stays) - stays
    left_before = np.searchsorted(np.sort(leave_s[~np.isnan(leave_s)]), requests["arrival_s"], side="right")
    result: Floats = (came_before - left_before).astype(np.float64)
    return result
