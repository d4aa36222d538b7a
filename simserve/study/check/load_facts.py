"""Load facts: means of runs at one load: the attainment of each SLO, and where a request's time and memory went."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.metrics.answers.baseline import LoadFacts
from simserve.metrics.answers.parts import DrawnLoad
from simserve.metrics.figures import Summary
from simserve.study.run_figures import Measure
from simserve.study.run_seeds import STUDIED
from simserve.tables.schema import MOST


@dataclass(frozen=True)
class TimeOrMemory:
    """A part of a request's time, or of the memory."""

    key: str
    label: str
    unit: Literal["s", "frac"]
    of: Callable[[Summary], float]
    """Reads it from a summary; NaN where a run has none."""


def _at(key: str) -> Callable[[Summary], float]:
    return Measure(key, key, "s", is_cost=True).of


def _unanswered_frac(summary: Summary) -> float:
    """Return the share that was rejected, timed out or never finished: misses that no latency shows."""
    n_arrived = summary.requests.arrived
    return 1 - summary.requests.finished / n_arrived if n_arrived else math.nan


def _split(*names: str) -> Callable[[Summary], float]:
    """Return a reader of the sum of some parts of each request's time; NaN where the time is not split."""

    def of(summary: Summary) -> float:
        return sum(summary.time_split.mean.at(name) for name in names) if summary.time_split else math.nan

    return of


PARTS = (
    TimeOrMemory("queue_s", "queueing", "s", _at("queue_s.mean")),
    TimeOrMemory("queue_seats_s", "waiting for a slot", "s", _split("queue_seats_s")),
    TimeOrMemory("queue_blocks_s", "waiting for KV blocks", "s", _split("queue_blocks_s")),
    TimeOrMemory("queue_budget_s", "waiting for the token budget", "s", _split("queue_budget_s")),
    TimeOrMemory("prefill_s", "prefill", "s", lambda run: _at("ttft_s.mean")(run) - _at("queue_s.mean")(run)),
    TimeOrMemory("transfer_s", "KV transfer", "s", _at("transfer.mean")),
    TimeOrMemory("tpot_s", "TPOT", "s", _at("tpot_s.mean")),
    TimeOrMemory("interference_s", "decode time lost to other requests' prefills", "s", _split("interference_s")),
    TimeOrMemory("evicted_s", "time lost to evictions", "s", _split("preempted_s", "recompute_s", "copy_s")),
    TimeOrMemory("unanswered_frac", "requests without a full answer", "frac", _unanswered_frac),
    TimeOrMemory("preempted_frac", "preempted requests", "frac", _at("preemptions.requests_frac")),
    TimeOrMemory("kv_peak_frac", "peak KV use", "frac", _at("kv.peak_frac")),
)
"""In the order of a request's life."""

READ = (*(key for key in STUDIED if key not in ("itl_s", "e2e_s")), "time_split", "transfer")
"""Figures that a gate reads of each run."""


def drawn_load(runs: Sequence[Summary]) -> DrawnLoad | None:
    """Return the drawn against the nominal load of the runs; None where no load is nominal."""
    if not all(run.load.nominal_per_s and run.load.drawn_per_s for run in runs):
        return None
    nominal, drawn = (_mean([run.load.at(key) for run in runs]) for key in ("nominal_per_s", "drawn_per_s"))
    return DrawnLoad(nominal_per_s=nominal, drawn_per_s=drawn, off_frac=min(drawn / nominal - 1, MOST))


def load_facts(scale: float, runs: Sequence[Summary]) -> LoadFacts:
    """Return means with five figures; missing values are None."""
    attained = [run.attained for run in runs]
    n_met, n_arrived = sum(each.n_met for each in attained), sum(each.n_arrived for each in attained)
    return LoadFacts(
        scale=scale,
        n_runs=len(runs),
        offered_per_s=short(_mean([run.at("offered_per_s") for run in runs])),
        attained_frac=short(n_met / n_arrived) if n_arrived else None,
        by_slo={key: short(_mean([each.by_slo[key] for each in attained])) for key in attained[0].by_slo},
        saturated_frac=short(_mean([float(run.trust.saturated) for run in runs])),
        parts={part.key: short(_mean([part.of(run) for run in runs])) for part in PARTS},
    )


def short(value: float) -> float | None:
    """Return five figures; None for NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([math.nan if value is None else value for value in values]))
