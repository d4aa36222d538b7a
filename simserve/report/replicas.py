"""ReplicaRow: what one replica did, a line of the page's table."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.report.chart_data import Floats
from simserve.report.formats import count, rate, seconds, share
from simserve.report.page_data import Evidence

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
    """One replica: requests of the window that it computed or answered, and its use over the whole run."""

    replica: int
    pool: str
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
        """The row as text, in the order of COLUMNS."""
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


def replica_rows(evidence: Evidence) -> list[ReplicaRow]:
    """One row for each replica that ran, in their order."""
    computed = np.where(evidence.prefill_replica >= 0, evidence.prefill_replica, evidence.replica)
    n_replicas = len(evidence.replica_pool)
    both = zip(_by(evidence, computed, n_replicas), _by(evidence, evidence.replica, n_replicas), strict=True)
    return [_row(evidence, replica, *rows) for replica, rows in enumerate(both)]


def _by(evidence: Evidence, replica: NDArray[np.int32], n_replicas: int) -> list[NDArray[np.int64]]:
    """The window's requests of each replica, by a column that names one."""
    rows = np.flatnonzero(evidence.is_in_window & (replica >= 0))
    order = np.argsort(replica[rows].astype(np.uint16), kind="stable")  # fast: 16 bits make it a radix sort
    rows = rows[order]
    return np.split(rows, np.searchsorted(replica[rows], np.arange(1, n_replicas)))


def _row(evidence: Evidence, replica: int, computed: NDArray[np.int64], answered: NDArray[np.int64]) -> ReplicaRow:
    """From the requests whose prompts it computed and those that it answered: the same ones, unless it hands over."""
    return ReplicaRow(
        replica=replica,
        pool=evidence.replica_pool[replica],
        n_requests=max(len(computed), len(answered)),
        ttft_p99_s=_p99(evidence.ttft_s[computed]),
        tpot_p99_s=_p99(evidence.tpot_s[answered]),
        output_tokens_per_s=_mean(evidence.series["output_tokens_per_s"][replica]),
        busy_frac=_mean(evidence.series["busy_frac"][replica]),
        mean_batch=_mean(evidence.series["running"][replica]),
        peak_queue=_highest(evidence.series["queue_len"][replica]),
        kv_peak_frac=evidence.kv_peak_frac[replica],
        n_preemptions=int(evidence.n_preemptions[answered].sum()),
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
