"""ReplicaRow: what one replica did, a line of the page's table."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.report.chart_data import Floats
from simserve.report.formats import count, rate, seconds, share
from simserve.report.page_data import PageData

COLUMNS = (
    "Requests",
    "TTFT p99",
    "TPOT p99",
    "Output tokens/s",
    "Busy",
    "Mean batch",
    "Peak queue",
    "KV peak",
    "Preemptions",
)


@dataclass(frozen=True)
class ReplicaRow:
    """One replica: window requests that it prefilled or decoded, and its utilization over the whole run."""

    replica: int
    pool: str
    life: str
    """When it joined and left; "" where it was there all the time."""
    n_requests: int
    ttft_p99_s: float
    tpot_p99_s: float
    output_tokens_per_s: float
    busy_frac: float
    mean_batch: float
    peak_queue: float
    kv_peak_frac: float
    n_preemptions: int

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of COLUMNS."""
        return (
            count(self.n_requests),
            seconds(self.ttft_p99_s),
            seconds(self.tpot_p99_s),
            rate(self.output_tokens_per_s),
            share(self.busy_frac),
            rate(self.mean_batch),
            count(self.peak_queue),
            share(self.kv_peak_frac),
            count(self.n_preemptions),
        )


def replica_rows(page_data: PageData) -> list[ReplicaRow]:
    """Return a row for each replica that ran, in their order."""
    computed = np.where(page_data.prefill_replica >= 0, page_data.prefill_replica, page_data.replica)
    n_replicas = len(page_data.replica_pool)
    both = zip(_by(page_data, computed, n_replicas), _by(page_data, page_data.replica, n_replicas), strict=True)
    return [_row(page_data, replica, *rows) for replica, rows in enumerate(both)]


def _by(page_data: PageData, replica: NDArray[np.int32], n_replicas: int) -> list[NDArray[np.int64]]:
    """Return the window's requests of each replica, by a column that names one."""
    rows = np.flatnonzero(page_data.is_in_window & (replica >= 0))
    order = np.argsort(replica[rows].astype(np.uint16), kind="stable")  # fast: 16 bits make it a radix sort
    rows = rows[order]
    return np.split(rows, np.searchsorted(replica[rows], np.arange(1, n_replicas)))


def _row(page_data: PageData, replica: int, computed: NDArray[np.int64], answered: NDArray[np.int64]) -> ReplicaRow:
    """Return a row from the requests it prefilled and those it decoded: the same ones, unless it hands them off."""
    return ReplicaRow(
        replica=replica,
        pool=page_data.replica_pool[replica],
        life=page_data.lives[replica],
        n_requests=max(len(computed), len(answered)),
        ttft_p99_s=_p99(page_data.ttft_s[computed]),
        tpot_p99_s=_p99(page_data.tpot_s[answered]),
        output_tokens_per_s=_mean(page_data.series["output_tokens_per_s"][replica]),
        busy_frac=_mean(page_data.series["busy_frac"][replica]),
        mean_batch=_mean(page_data.series["running"][replica]),
        peak_queue=_highest(page_data.series["queue_len"][replica]),
        kv_peak_frac=page_data.kv_peak_frac[replica],
        n_preemptions=int(page_data.n_preemptions[answered].sum()),
    )


def _p99(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.quantile(known, 0.99)) if len(known) else math.nan


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _highest(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else math.nan
