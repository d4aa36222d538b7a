"""Reductions from a million rows to what a chart can show: curves, bands and bins; pure numpy, no drawing."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_CURVE_POINTS = 400
MAX_DOTS = 3000
MAX_BINS = 600
MAX_BANDS = 20
MIN_ROWS_PER_BAND = 20
"""Fewer requests than this say little about a p99, even a rough one."""


@dataclass(frozen=True)
class CdfCurve:
    """A cumulative distribution: `share[i]` of all requests took at most `value[i]`; `(n_points,)` each."""

    value: Floats
    share: Floats
    n_requests: int
    """All requests, those without a value included."""
    n_values: int
    """Requests with a value."""

    @property
    def is_exact(self) -> bool:
        """Return whether every request is a point of its own, so that the curve is a staircase."""
        return self.n_values <= MAX_CURVE_POINTS


@dataclass(frozen=True)
class Bands:
    """Quantiles of one quantity over bins of another, `(n_bins,)` each."""

    x: Floats
    p50: Floats
    p99: Floats


def curve(values: Floats, n_requests: int, *, through: float | None = None, n_at_once: int = 0) -> CdfCurve:
    """Return the cumulative distribution over `n_requests`; a NaN took forever, so the curve may end below 1.

    The curve holds the exact share at `through` (an SLO), if it lies within the values. `n_at_once` more requests
    have no value because they took no time: they lift the whole curve.
    """
    ordered = np.sort(values[~np.isnan(values)])
    n = len(ordered)
    points = ordered[_ranks(n)] if n else ordered
    if n and through is not None and ordered[0] < through < ordered[-1]:
        points = np.sort(np.append(points, through))
    share = (np.searchsorted(ordered, points, side="right") + n_at_once) / max(n_requests, 1)
    return CdfCurve(points, share, n_requests, n)


def _ranks(n: int) -> NDArray[np.int64]:
    """Return at most MAX_CURVE_POINTS places in n ordered values: even ones, and ever denser ones toward both ends."""
    if n <= MAX_CURVE_POINTS:
        return np.arange(n)
    tail = np.geomspace(1 / n, 0.1, MAX_CURVE_POINTS // 4)
    shares = np.concatenate([np.linspace(0, 1, MAX_CURVE_POINTS // 2), tail, 1 - tail])
    return np.unique(np.rint(shares * (n - 1)).astype(np.int64))


def quantile_bands(x: Floats, y: Floats, max_bins: int = MAX_BANDS) -> Bands:
    """Return p50 and p99 of y over bins of x that hold about equally many rows; rows with a NaN are left out."""
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    n_bins = min(max_bins, len(x) // MIN_ROWS_PER_BAND)
    if n_bins < 2:
        return Bands(*(np.empty(0) for _ in range(3)))
    edges = np.unique(np.quantile(x, np.linspace(0, 1, n_bins + 1))[1:-1])
    of_row = np.searchsorted(edges, x, side="right").astype(np.uint16)
    order = np.argsort(of_row, kind="stable")  # fast: a radix sort, since bins fit 16 bits
    cuts = np.flatnonzero(np.diff(of_row[order])) + 1
    bins = [rows for rows in np.split(order, cuts) if len(rows) >= MIN_ROWS_PER_BAND]
    return Bands(
        x=np.array([np.median(x[rows]) for rows in bins]),
        p50=np.array([np.quantile(y[rows], 0.5) for rows in bins]),
        p99=np.array([np.quantile(y[rows], 0.99) for rows in bins]),
    )


def even_rows(n: int, limit: int = MAX_DOTS) -> NDArray[np.int64]:
    """Return at most `limit` of n rows, evenly spaced."""
    return np.arange(n) if n <= limit else np.linspace(0, n - 1, limit).round().astype(np.int64)


def bin_width(end_s: float, at_most: int) -> float:
    """Return the smallest of 1, 2, 5 × 10^k seconds that covers [0, end_s) in at most that many bins."""
    least_s = max(end_s, 1e-9) / at_most
    decade = 10.0 ** np.floor(np.log10(least_s))
    return float(
        next(width for width in (decade, 2 * decade, 5 * decade, 10 * decade) if width >= least_s * (1 - 1e-9))
    )


def per_bin(at_s: Floats, width_s: float, n_bins: int) -> Floats:
    """Return events per second in each of n_bins bins from 0; the last bin takes what lies beyond."""
    places = np.minimum((at_s / width_s).astype(np.int64), n_bins - 1)
    return np.bincount(places, minlength=n_bins) / width_s


def coarser(grid: Floats, factor: int) -> tuple[Floats, Floats]:
    """Return mean and peak over rows and over every `factor` columns: `(n_rows, n_columns)` to `(n_columns / factor,)`.
    NaN is left out, and comes back where there is nothing else."""
    n_rows, n_columns = grid.shape
    n_bins = -(-n_columns // factor)
    padded = np.full((n_rows, n_bins * factor), np.nan)
    padded[:, :n_columns] = grid
    cells = padded.reshape(n_rows, n_bins, factor).transpose(1, 0, 2).reshape(n_bins, -1)
    n_known = np.count_nonzero(~np.isnan(cells), axis=1)
    mean = np.divide(np.nansum(cells, axis=1), n_known, out=np.full(n_bins, np.nan), where=n_known > 0)
    return mean, np.fmax.reduce(cells, axis=1)
