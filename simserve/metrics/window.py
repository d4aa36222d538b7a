"""Window: the measured part of a run. Requests count by their arrival; rates divide by the window's length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.metrics.warm_up import warm_up_requests
from simserve.tables.columns import Columns, Flags


@dataclass(frozen=True)
class Window:
    """From the end of the warm-up to the last offered arrival, both included."""

    start_s: float
    end_s: float
    duration_s: float
    """Divisor of rates; NaN for an empty window without length."""
    ends_with: str
    """`last arrival`; `last finish` where all requests of the window were sent at one instant, so that it has no
    length and rates divide by the time until the last of them was answered instead."""
    has: Flags
    """Which requests count, `(n_requests,)`."""
    settled: bool | None = None
    """The end of the warm-up was found in the run itself; False: it has none, so all counts; None: it was given."""

    @property
    def span_s(self) -> tuple[float, float]:
        """Start and end of what rates divide by."""
        return self.start_s, self.start_s + self.duration_s

    @property
    def n_requests(self) -> int:
        """Requests that count."""
        return int(np.count_nonzero(self.has))


def measured_window(requests: Columns, measure: Mapping[str, Any], last_arrival_s: float, end_s: float) -> Window:
    """Return the window of `measure`: `{warmup_s: seconds, or auto}` or `{warmup_requests: n}`; {} is no warm-up.

    requests: rows in the order of arrival. end_s: when the whole run ended.
    """
    arrival_s = requests["arrival_s"]
    n_warmup, settled = int(measure.get("warmup_requests") or 0), None
    is_given = measure.get("warmup_s") != "auto"
    if not is_given:
        result = warm_up_requests(requests)
        n_warmup, settled = result or 0, result is not None
    start_s = float(measure.get("warmup_s") or 0.0) if is_given else 0.0
    if n_warmup:
        start_s = float(arrival_s[n_warmup]) if n_warmup < len(arrival_s) else math.inf
    has = (arrival_s >= start_s) & (arrival_s <= last_arrival_s)
    has[:n_warmup] = False  # by rank, for a closed loop sends many at one instant
    if not has.any():
        return Window(start_s, last_arrival_s, math.nan, "last arrival", has, settled)
    if last_arrival_s > start_s:
        return Window(start_s, last_arrival_s, last_arrival_s - start_s, "last arrival", has, settled)
    finish_s = requests["finish_s"][has]
    finished_s = float(np.nanmax(finish_s)) if not np.isnan(finish_s).all() else end_s
    duration_s = finished_s - start_s if finished_s > start_s else math.nan
    return Window(start_s, last_arrival_s, duration_s, "last finish", has, settled)
