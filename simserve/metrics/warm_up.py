"""Warm-up: the initial transient of a run, detected by MSER-5."""

import numpy as np

from simserve.metrics.backlog import n_in_system
from simserve.tables.columns import Columns, Floats, Ints

BATCH = 5
FEWEST_BATCHES = 40
"""Fewest batches for a decision."""


def warm_up_requests(requests: Columns) -> int | None:
    """Return how many requests to leave out; None where the run does not settle, or is too short to tell.

    The series are the number in system at each arrival and, as that is constant in a closed loop, the time to first
    token; the later of the two cuts counts. Rows are in order of arrival.
    """
    is_served = ~requests["status"].is_("rejected")
    waited = is_served & ~np.isnan(requests["ttft_s"])
    cuts = [
        _row_of(np.flatnonzero(is_served), settled_after(n_in_system(requests)[is_served])),
        _row_of(np.flatnonzero(waited), settled_after(requests["ttft_s"][waited])),
    ]
    return None if None in cuts else max(row for row in cuts if row is not None)


def settled_after(series: Floats) -> int | None:
    """Return how many of a series' first values to leave out; None where the best cut is in its second half.

    The cut minimizes the standard error of the mean of the rest, in batches of five (White, Cobb and Spratt,
    "A comparison of five steady-state truncation heuristics for simulation", WSC 2000).
    """
    n = len(series) // BATCH
    if n < FEWEST_BATCHES:
        return None
    means = series[: n * BATCH].reshape(n, BATCH).mean(axis=1)
    means = means - means.mean()  # avoids cancellation
    left = np.arange(n, 0, -1)
    sums, squares = (np.cumsum(each[::-1])[::-1] for each in (means, means**2))
    errors = (squares - sums**2 / left) / left**2
    best = int(np.argmin(errors[: n - BATCH]))  # the last few values may be similar by chance
    return best * BATCH if best <= n // 2 else None


def _row_of(rows: Ints, place: int | None) -> int | None:
    return None if place is None else int(rows[place])
