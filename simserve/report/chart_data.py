"""Chart data: a run as plain arrays, and reductions from a million rows to what a chart can show; no drawing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.timeseries import interval_numbers, interval_s
from simserve.report.formats import seconds

if TYPE_CHECKING:
    from simserve.metrics.results import Results

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
    widths = decade * np.array([1, 2, 5, 10])
    return float(widths[widths >= least_s * (1 - 1e-9)][0])


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


SERIES = ("queue_len", "running", "kv_frac", "prefill_tokens_per_s", "output_tokens_per_s", "busy_frac")
"""Columns of the time series that the page uses."""


@dataclass(frozen=True)
class PageData:
    """Requests, `(n_requests,)` each, and the time series, `(n_replicas, n_intervals)` each.

    Invariant: an instant or duration that never came is NaN; replica is -1 for nowhere.
    """

    arrival_s: Floats
    prompt_tokens: Floats
    ttft_s: Floats
    """NaN for a request without a full answer: it has met no SLO."""
    tpot_s: Floats
    has_one_token: NDArray[np.bool_]
    """Finished with a single token: no TPOT, which counts as 0 against an SLO, as in `vllm bench serve`."""
    replica: NDArray[np.int32]
    prefill_replica: NDArray[np.int32]
    """Replica that computed the prompt, if it is another one; else -1."""
    n_preemptions: NDArray[np.int32]
    is_in_window: NDArray[np.bool_]
    has_missed_slo: NDArray[np.bool_] | None
    """None without an SLO."""
    series: Mapping[str, Floats]
    interval_s: float
    replica_pool: tuple[str, ...]
    """The name of each replica's pool."""
    kv_peak_frac: tuple[float, ...]
    """The highest share of its KV blocks that each replica ever held."""
    lives: tuple[str, ...]
    """When each replica joined and left: `ready at 60.0 s, gone at 120 s`; "" where it was there all the time."""

    @property
    def n_intervals(self) -> int:
        """Return the number of columns of the time series."""
        return max((grid.shape[1] for grid in self.series.values()), default=0)

    @property
    def end_s(self) -> float:
        """Return the end of the time series, or the last arrival."""
        return max(self.n_intervals * self.interval_s, float(np.max(self.arrival_s, initial=0.0)), 1e-6)


def gather(results: "Results") -> PageData:
    """Return the data of a run's page; it reads numpy columns only, so a page never imports pandas."""
    requests, series, facts = results.columns["requests"], results.columns["timeseries"], results.facts
    has_finished = ~np.isnan(requests["finish_s"])
    return PageData(
        arrival_s=requests["arrival_s"],
        prompt_tokens=requests["prompt_tokens"].astype(np.float64),
        ttft_s=np.where(has_finished, requests["ttft_s"], np.nan),
        tpot_s=requests["tpot_s"],
        has_one_token=has_finished & (requests["output_tokens"] == 1),
        replica=requests["replica"],
        prefill_replica=requests["prefill_replica"],
        n_preemptions=requests["n_preemptions"],
        is_in_window=requests["in_window"],
        has_missed_slo=~requests["slo_met"] if facts.slo or facts.slo_classes else None,
        series=_grids(series, len(facts.replica_pool)),
        interval_s=interval_s(series),
        replica_pool=tuple(facts.pools[pool].name for pool in facts.replica_pool),
        kv_peak_frac=tuple(
            peak / max(facts.pools[pool].n_blocks, 1)
            for pool, peak in zip(facts.replica_pool, facts.peak_kv_blocks, strict=True)
        ),
        lives=tuple(_life(each.ready_s, each.gone_s) for each in facts.members) or ("",) * len(facts.replica_pool),
    )


def _life(ready_s: float | None, gone_s: float | None) -> str:
    ready = "never ready" if ready_s is None else f"ready at {seconds(ready_s)}" if ready_s else ""
    return ", ".join(filter(None, [ready, "" if gone_s is None else f"gone at {seconds(gone_s)}"]))


def _grids(series: Mapping[str, Any], n_replicas: int) -> dict[str, Floats]:
    """Return each column of the long table as `(n_replicas, n_intervals)`; an interval that a replica lacks is NaN."""
    at = interval_numbers(series)
    shape = (n_replicas, int(at.max(initial=-1)) + 1)
    grids = {}
    for name in SERIES:
        grids[name] = np.full(shape, np.nan)
        grids[name][series["replica"], at] = series[name]
    return grids
