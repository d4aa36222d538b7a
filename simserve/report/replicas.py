"""ReplicaRow: what one replica did, a line of the page's table."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.report.evidence import Evidence
from simserve.report.formats import count, rate, seconds, share
from simserve.report.reductions import Floats

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
    """One replica: requests of the window that it answered, and its use over the whole run."""

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
    rows_of = _rows_by_replica(evidence)
    nobody = np.empty(0, np.int64)
    return [_row(evidence, replica, rows_of.get(replica, nobody)) for replica in range(len(evidence.replica_pool))]


def _rows_by_replica(evidence: Evidence) -> dict[int, NDArray[np.int64]]:
    """The window's requests that each replica answered."""
    rows = np.flatnonzero(evidence.is_in_window & (evidence.replica >= 0))
    order = np.argsort(evidence.replica[rows].astype(np.uint16), kind="stable")  # fast: 16 bits make it a radix sort
    rows = rows[order]
    replicas, starts = np.unique(evidence.replica[rows], return_index=True)
    return dict(zip(replicas.tolist(), np.split(rows, starts[1:]), strict=False))


def _row(evidence: Evidence, replica: int, rows: NDArray[np.int64]) -> ReplicaRow:
    return ReplicaRow(
        replica=replica,
        pool=evidence.replica_pool[replica],
        n_requests=len(rows),
        ttft_p99_s=_p99(evidence.ttft_s[rows]),
        tpot_p99_s=_p99(evidence.tpot_s[rows]),
        output_tokens_per_s=_mean(evidence.series["output_tokens_per_s"][replica]),
        busy_frac=_mean(evidence.series["busy_frac"][replica]),
        mean_batch=_mean(evidence.series["running"][replica]),
        peak_queue=_highest(evidence.series["queue_len"][replica]),
        kv_peak_frac=evidence.kv_peak_frac[replica],
        n_preemptions=int(evidence.n_preemptions[rows].sum()),
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
