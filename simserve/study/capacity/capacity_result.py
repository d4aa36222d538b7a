"""Capacity result: the answer of a capacity study, and every load that it ran, one row per load and seed."""

from dataclasses import dataclass
from typing import Any

from simserve.metrics.answers.capacity import CapacityAnswer
from simserve.metrics.answers.capacity_loads import LATENCIES
from simserve.metrics.figures import Summary
from simserve.study.capacity.point import LoadPoint
from simserve.tables.columns import TableRows, typed_columns
from simserve.tables.fields import Field

LEVELS = ("mean", "p50", "p90", "p95", "p99", "p99.9")
COUNTS = (("offered_per_s", "requests/s"), ("served_per_s", "requests/s"), ("output_tokens_per_s", "tokens/s"))

ROWS = (
    Field("asked", "text"),
    Field("load", "float"),
    Field("split", "text"),
    Field("seed", "int64"),
    *(Field(name, "float", unit) for name, unit in COUNTS),
    Field("n_arrived", "int64", "requests"),
    Field("n_met", "int64", "requests"),
    Field("attained_frac", "float", "share 0..1"),
    *(Field(f"{key.removesuffix('_s')}_met_frac", "float", "share 0..1") for key in LATENCIES),
    Field("saturated", "flag"),
    *(Field(f"{key.removesuffix('_s')}_{level}_s", "float", "s") for key in LATENCIES for level in LEVELS),
)
"""One row per load and seed.

asked: The question: `rate`, `concurrency`, `replicas` or `ratio`.
load: Multiple of the scenario's rates (rate, ratio), number of clients (concurrency), or of replicas.
split: With `--ratio`: prefill : decode replicas, or `together`; null without.
seed: Seed of the run.
offered_per_s: Arrivals in the window.
served_per_s: Requests that finished within the window.
output_tokens_per_s: Output tokens of the requests that arrived in the window and finished.
n_arrived: Requests that arrived in the window.
n_met: Requests of these that met every limit.
attained_frac: `n_met` over `n_arrived`.
*_met_frac: Requests that met the limit on this latency; null without that limit.
saturated: Whether the queue only grew.
ttft_*_s, tpot_*_s, itl_*_s, e2e_*_s: Mean and percentiles of the latency.
"""


@dataclass(frozen=True)
class CapacityResult:
    """The answer, and the loads behind it."""

    answer: CapacityAnswer
    probed: tuple[tuple[str | None, LoadPoint], ...]
    """Each load that was run, with its split in a study of splits."""

    @property
    def rows(self) -> TableRows:
        """`capacity.parquet`."""
        rows = [_row(self.answer.question, split, point, run) for split, point in self.probed for run in point.runs]
        return TableRows("capacity.parquet", ROWS, typed_columns(ROWS, rows))


def _row(kind: str, split: str | None, point: LoadPoint, run: Summary) -> dict[str, Any]:
    attained = run.attained
    row = {
        "asked": kind,
        "load": point.scale,
        "split": split,
        "seed": run.seed,
        **{name: getattr(run, name) for name, _ in COUNTS},
        "n_arrived": attained.n_arrived,
        "n_met": attained.n_met,
        "attained_frac": attained.frac,
        "saturated": run.trust.saturated,
    }
    for key in LATENCIES:
        name = key.removesuffix("_s")
        row[f"{name}_met_frac"] = attained.by_slo.get(key)
        row |= {f"{name}_{level}_s": run.at(f"{key}.{level}") for level in LEVELS}
    return row
