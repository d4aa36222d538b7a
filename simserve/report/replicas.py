"""Replicas of a run: a table with a row each, the window's requests of each and its utilization over the whole run."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.report.chart_data import Floats
from simserve.report.document import Chapter, Paragraph, Row, Table
from simserve.report.formats import count, rate, seconds, share
from simserve.report.page_data import PageData

MANY_REPLICAS = 12
"""A longer table scrolls in its own frame on a screen."""


@dataclass(frozen=True)
class ReplicaRow:
    """What one replica did: its requests are the same ones, unless it hands them off."""

    page_data: PageData
    replica: int
    computed: NDArray[np.int64]
    """Rows of the window's requests that it prefilled."""
    answered: NDArray[np.int64]
    """Rows of those that it decoded."""

    def series(self, name: str) -> Floats:
        """Return what is known of a time series."""
        return _known(self.page_data.series[name][self.replica])


COLUMNS: dict[str, Callable[[ReplicaRow], str]] = {
    "Requests": lambda row: count(max(len(row.computed), len(row.answered))),
    "TTFT p99": lambda row: seconds(_p99(row.page_data.ttft_s[row.computed])),
    "TPOT p99": lambda row: seconds(_p99(row.page_data.tpot_s[row.answered])),
    "Output tokens/s": lambda row: rate(_mean(row.series("output_tokens_per_s"))),
    "Busy": lambda row: share(_mean(row.series("busy_frac"))),
    "Mean batch": lambda row: rate(_mean(row.series("running"))),
    "Peak queue": lambda row: count(max(row.series("queue_len").tolist(), default=math.nan)),
    "KV peak": lambda row: share(row.page_data.kv_peak_frac[row.replica]),
    "Preemptions": lambda row: count(int(row.page_data.n_preemptions[row.answered].sum())),
}


def replicas(page_data: PageData) -> Chapter:
    """Return the section of the page."""
    n_replicas = len(page_data.replica_pool)
    if not n_replicas:
        return Chapter("replicas", "Replicas", [Paragraph("No replica ran.", "empty")])
    computed = np.where(page_data.prefill_replica >= 0, page_data.prefill_replica, page_data.replica)
    both = zip(_by(page_data, computed, n_replicas), _by(page_data, page_data.replica, n_replicas), strict=True)
    rows = [
        Row(f"{replica}", [cell(ReplicaRow(page_data, replica, *of)) for cell in COLUMNS.values()], place)
        for replica, (of, place) in enumerate(zip(both, _places(page_data), strict=True))
    ]
    note = "Window requests by the replica that prefilled or decoded them; utilization is over the whole run."
    return Chapter("replicas", "Replicas", [Table(("Replica", *COLUMNS), rows, len(rows) > MANY_REPLICAS)], note)


def _places(page_data: PageData) -> list[str]:
    """Return the pool of each replica, and when it joined and left."""
    return [", ".join(filter(None, each)) for each in zip(page_data.replica_pool, page_data.lives, strict=True)]


def _by(page_data: PageData, replica: NDArray[np.int32], n_replicas: int) -> list[NDArray[np.int64]]:
    """Return the window's requests of each replica, by a column that names one."""
    rows = np.flatnonzero(page_data.is_in_window & (replica >= 0))
    order = np.argsort(replica[rows].astype(np.uint16), kind="stable")  # fast: 16 bits make it a radix sort
    rows = rows[order]
    return np.split(rows, np.searchsorted(replica[rows], np.arange(1, n_replicas)))


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _p99(values: Floats) -> float:
    known = _known(values)
    return float(np.quantile(known, 0.99)) if len(known) else math.nan


def _mean(known: Floats) -> float:
    return float(known.mean()) if len(known) else math.nan
