"""Saturation: did more come than was served, as long as requests came?"""

import math

import numpy as np

from simserve.metrics.integrals import presence
from simserve.metrics.window import Window
from simserve.tables.columns import Columns

LEAST_GROWTH_REQUESTS = 10
LEAST_GROWTH_FRAC = 0.02
"""Of the window's arrivals: less growth than this is noise, or will hardly matter."""

LEAST_RATIO = 1.5
"""A backlog that was there all along and grows by less than half is a busy cluster, not a losing one."""


def is_saturated(requests: Columns, window: Window) -> bool:
    """The backlog (arrived, neither answered nor refused nor given up) kept growing through the window.

    A simple test: its means over the three thirds of the window rise, by an amount that matters, and do not level
    off. Bursts that drain, a start-up that levels off, and a closed loop do not pass it; a window that ends inside a
    long burst can, which is then what happened.
    """
    if window.ends_with != "last arrival" or not window.duration_s > 0:
        return False
    early, middle, late = backlog_by_thirds(requests, window)
    growth = late - early
    matters = growth >= max(LEAST_GROWTH_REQUESTS, LEAST_GROWTH_FRAC * window.n_requests)
    goes_on = late - middle >= (middle - early) / 2 > 0
    return bool(matters and goes_on and late >= LEAST_RATIO * early)


def backlog_by_thirds(requests: Columns, window: Window) -> tuple[float, float, float]:
    """Mean number of requests in the system in each third of the window."""
    refused = requests["status"].is_("rejected")
    leave_s = np.fmin(requests["finish_s"], requests["gave_up_s"])[~refused]
    arrival_s = requests["arrival_s"][~refused]
    # Who is there when the window opens has arrived at its start, who left before was never there.
    arrival_s = np.where(leave_s < window.start_s, math.nan, np.maximum(arrival_s, window.start_s))
    leave_s = np.where((leave_s > window.end_s), math.nan, leave_s)
    arrival_s[arrival_s > window.end_s] = math.nan
    edges_s = np.linspace(window.start_s, window.end_s, 4)
    early, middle, late = presence(arrival_s, leave_s, np.zeros(len(leave_s), np.int64), 1, edges_s)[0].tolist()
    return early, middle, late
