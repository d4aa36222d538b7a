"""Window: the measured part of a run, where its warm-up ends, and its drawn against its nominal load. Requests count by
their arrival; rates divide by the window's length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.answers.struct import Figures
from simserve.metrics.goal import LOAD_TOLERANCE_FRAC
from simserve.metrics.summary_schema import Measured
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.pieces import Rows, column, joined, pieces


class WindowFactsJson(Figures):
    """When requests count."""

    start_s: Measured
    """[s] End of the warm-up."""
    end_s: Measured
    """[s] Last offered arrival."""
    duration_s: Measured
    """[s] Divisor of rates; null without requests."""
    ends_with: str = ""
    """`last arrival`, or `last finish` if all requests of the window were sent at one instant: rates then divide by the
    time until the last of them was answered."""
    settled: bool | None = None
    """Whether `warmup_s: auto` found the end of the warm-up; null if you set the warm-up."""


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

    def finished(self, requests: Columns) -> Flags:
        """Return which requests count and have finished, `(n_requests,)`."""
        result: Flags = requests["status"].is_("finished") & self.has
        return result

    def figures(self) -> WindowFactsJson:
        """Return the window as the summary holds it."""
        return WindowFactsJson(**{name: value for name, value in vars(self).items() if name != "has"})

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


def n_in_system(requests: Columns) -> Floats:
    """Return the number of unfinished requests that each arrival finds, `(n_requests,)`, in order of arrival."""
    left_s = joined(map(_leave_s, pieces(requests)), len(requests["arrival_s"]), requests, np.float64)
    left_s = np.sort(left_s[~np.isnan(left_s)])
    n_before = 0

    def counts(part: Rows) -> Floats:
        nonlocal n_before
        stays = ~part["status"].is_("rejected")
        came_before = n_before + np.cumsum(stays) - stays
        n_before += int(stays.sum())
        left_before = np.searchsorted(left_s, part["arrival_s"], side="right")
        result: Floats = (came_before - left_before).astype(np.float64)
        return result

    return column(counts, requests)


def _leave_s(requests: Rows) -> Floats:
    """Return when the requests that were not rejected were answered or given up, NaN for never."""
    stays = ~requests["status"].is_("rejected")
    leave_s: Floats = np.fmin(requests["finish_s"], requests["gave_up_s"])[stays]
    return leave_s


class ArrivalRates(Protocol):
    """Rates of what an arrival process drew and was expected to draw."""

    @property
    def kind(self) -> Literal["requests", "sessions"]:
        """Requests or sessions."""

    def rates_per_s(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return the drawn and the expected rate between two instants; None where nothing is expected."""


def drawn_load(window: Window, arrivals: ArrivalRates | None, offered_per_s: float) -> NominalLoad:
    """Return drawn and nominal rate over the window; nominal is None for traces, closed loops and some plug-ins."""
    rates = None
    if arrivals is not None and window.ends_with == "last arrival":
        rates = arrivals.rates_per_s(window.start_s, window.end_s)
    if arrivals is None or rates is None:
        return NominalLoad(kind="requests", nominal_per_s=None, drawn_per_s=offered_per_s, off_frac=None)
    drawn_per_s, nominal_per_s = rates
    off_frac = drawn_per_s / nominal_per_s - 1
    return NominalLoad(kind=arrivals.kind, nominal_per_s=nominal_per_s, drawn_per_s=drawn_per_s, off_frac=off_frac)


def load_warning(load: NominalLoad) -> list[str]:
    """Warn where the drawn load is too far from the nominal load for the run to stand for it."""
    off_frac = load.off_frac
    if off_frac is None or abs(off_frac) <= LOAD_TOLERANCE_FRAC:
        return []
    side = "below" if off_frac < 0 else "above"
    unit = "req/s" if load.kind == "requests" else "sessions/s"
    rates = f"{load.drawn_per_s:.3g} against {load.nominal_per_s:.3g} {unit}"
    return [f"the drawn load is {abs(off_frac):.0%} {side} nominal ({rates}); latencies are those of the drawn load"]
