"""Load facts: what runs at one load came to, as means: who met the SLO, and where a request's time and memory went."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simserve.study.measures import Measure
from simserve.study.run_seeds import Summary


@dataclass(frozen=True)
class TimeOrMemory:
    """One thing that a request's time, or the memory, went into."""

    key: str
    label: str
    unit: Literal["s", "frac"]
    of: Callable[[Summary], float]
    """NaN where a run has none."""


def _at(key: str) -> Callable[[Summary], float]:
    return Measure(key, key, "s", is_cost=True).of


def _prefill_s(summary: Summary) -> float:
    return _at("ttft_s.mean")(summary) - _at("queue_s.mean")(summary)


def _unanswered_frac(summary: Summary) -> float:
    """Refused, given up or never finished: misses whatever the latencies of the others are."""
    n_arrived = summary["requests"]["arrived"]
    return 1 - summary["requests"]["finished"] / n_arrived if n_arrived else math.nan


def _split(*names: str) -> Callable[[Summary], float]:
    """The sum of some parts into which each request's time is split exactly; NaN where it is not."""

    def of(summary: Summary) -> float:
        means = (summary.get("time_split") or {}).get("mean")
        return math.nan if means is None else float(sum(means[name] for name in names))

    return of


PARTS = (
    TimeOrMemory("queue_s", "queueing", "s", _at("queue_s.mean")),
    TimeOrMemory("queue_seats_s", "waiting for a seat", "s", _split("queue_seats_s")),
    TimeOrMemory("queue_blocks_s", "waiting for KV blocks", "s", _split("queue_blocks_s")),
    TimeOrMemory("queue_budget_s", "waiting for the token budget", "s", _split("queue_budget_s")),
    TimeOrMemory("prefill_s", "prefill", "s", _prefill_s),
    TimeOrMemory("transfer_s", "handing keys and values over", "s", _at("transfer.mean")),
    TimeOrMemory("tpot_s", "decoding a token", "s", _at("tpot_s.mean")),
    TimeOrMemory("interference_s", "decoding held up by prompts of others", "s", _split("interference_s")),
    TimeOrMemory("evicted_s", "time lost to evictions", "s", _split("preempted_s", "recompute_s", "copy_s")),
    TimeOrMemory("unanswered_frac", "requests without a full answer", "frac", _unanswered_frac),
    TimeOrMemory("preempted_frac", "requests that lost their KV blocks", "frac", _at("preemptions.requests_frac")),
    TimeOrMemory("kv_peak_frac", "peak of KV blocks", "frac", _at("kv.peak_frac")),
)
"""In the order of a request's life."""


def load_facts(scale: float, runs: Sequence[Summary]) -> dict[str, Any]:
    """As plain data with five figures, as a baseline's file keeps it; null for what there is not."""
    result = [run["slo_attainment"] for run in runs]
    n_met, n_arrived = (sum(each[key] for each in result) for key in ("n_met", "n_arrived"))
    return {
        "scale": scale,
        "n_runs": len(runs),
        "offered_per_s": short(_mean([run["offered_per_s"] for run in runs])),
        "attained_frac": short(n_met / n_arrived) if n_arrived else None,
        "by_slo": {key: short(_mean([each["by_slo"][key] for each in result])) for key in result[0]["by_slo"]},
        "saturated_frac": short(_mean([float(run["trust"]["saturated"]) for run in runs])),
        "parts": {part.key: short(_mean([part.of(run) for run in runs])) for part in PARTS},
    }


def binding(facts: Mapping[str, Any]) -> str | None:
    """The SLO that the most requests missed; None where all were met."""
    key, frac = min(facts["by_slo"].items(), key=lambda item: float(item[1] if item[1] is not None else 1.0))
    return None if frac == 1 else str(key)


def short(value: float) -> float | None:
    """With five figures; None for what there is not."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean([math.nan if value is None else value for value in values]))
