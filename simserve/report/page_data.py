"""Data of the charts as plain arrays; the one place that knows the tables' columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.timeseries import interval_numbers, interval_s
from simserve.report.chart_data import Floats
from simserve.report.formats import seconds

if TYPE_CHECKING:
    from simserve.metrics.results import Results

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
