"""Evidence: what the charts are drawn from, as plain arrays; the one place that knows the tables' columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.report.reductions import Floats

SERIES = ("queue_len", "running", "kv_frac", "prefill_tokens_per_s", "output_tokens_per_s", "busy_frac")
"""Columns of the time series that the page uses."""


@dataclass(frozen=True)
class Evidence:
    """Requests, `(n_requests,)` each, and the time series, `(n_replicas, n_intervals)` each.

    Invariant: an instant or duration that never came is NaN; replica is -1 for nowhere.
    """

    arrival_s: Floats
    prompt_tokens: Floats
    ttft_s: Floats
    tpot_s: Floats
    has_one_token: NDArray[np.bool_]
    """Finished with a single token: no TPOT, which counts as 0 against an SLO, as in `vllm bench serve`."""
    replica: NDArray[np.int64]
    n_preemptions: NDArray[np.int64]
    is_in_window: NDArray[np.bool_]
    has_missed_slo: NDArray[np.bool_] | None
    """None without an SLO."""
    series: Mapping[str, Floats]
    interval_s: float
    replica_pool: tuple[str, ...]
    """The name of each replica's pool."""

    @property
    def n_intervals(self) -> int:
        """Columns of the time series."""
        return max((grid.shape[1] for grid in self.series.values()), default=0)

    @property
    def end_s(self) -> float:
        """The end of the time series, or the last arrival."""
        return max(self.n_intervals * self.interval_s, float(np.max(self.arrival_s, initial=0.0)), 1e-6)


def gather(results: Any) -> Evidence:
    """The evidence behind a run's results."""
    requests, series = results.requests, results.timeseries
    slo = results.summary.get("slo") or {}
    pools = results.summary.get("pools") or []
    replica_pool = tuple(str(pool["name"]) for pool in pools for _ in range(int(pool["n_replicas"])))
    return Evidence(
        arrival_s=_floats(requests, "arrival_s"),
        prompt_tokens=_floats(requests, "prompt_tokens"),
        ttft_s=_floats(requests, "ttft_s"),
        tpot_s=_floats(requests, "tpot_s"),
        has_one_token=~np.isnan(_floats(requests, "e2e_s")) & np.isnan(_floats(requests, "tpot_s")),
        replica=_whole(requests, "replica"),
        n_preemptions=_whole(requests, "n_preemptions"),
        is_in_window=_floats(requests, "in_window") > 0,
        has_missed_slo=_floats(requests, "slo_met") == 0 if slo else None,
        series=_grids(series, len(replica_pool)),
        interval_s=_interval_s(series),
        replica_pool=replica_pool,
    )


def _grids(series: Any, n_replicas: int) -> dict[str, Floats]:
    """Each column of the long table as `(n_replicas, n_intervals)`; an interval that a replica lacks is NaN."""
    replica = _whole(series, "replica")
    interval_s = _interval_s(series)
    at = np.rint(_floats(series, "start_s") / interval_s).astype(np.int64)
    shape = (n_replicas, int(at.max(initial=-1)) + 1)
    grids = {}
    for name in SERIES:
        grid = np.full(shape, np.nan)
        grid[replica, at] = _floats(series, name)
        grids[name] = grid
    return grids


def _interval_s(series: Any) -> float:
    """The width of the intervals, 1 s where there are none."""
    widths_s = _floats(series, "end_s") - _floats(series, "start_s")
    return float(widths_s.max(initial=0.0)) or 1.0


def _whole(table: Any, name: str) -> NDArray[np.int64]:
    """A column of whole numbers; -1 where it is null."""
    return np.nan_to_num(_floats(table, name), nan=-1).astype(np.int64)


def _floats(table: Any, name: str) -> Floats:
    """A column as floats; NaN where it is null."""
    column = table[name]
    if hasattr(column, "to_numpy"):
        column = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(column, np.float64)
