"""Figures of a run: the measures that decide; latencies and outcomes, as simulated or with latencies off by factors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Literal

import numpy as np

from simserve.metrics.answer import FAR_FRAC, Outcome, Outcomes
from simserve.metrics.answers.measures import Measures
from simserve.metrics.answers.struct import Form, column_of
from simserve.metrics.classes import of_class
from simserve.metrics.figures import Summary
from simserve.metrics.goodput import met_by_goal
from simserve.metrics.intervals import T_95
from simserve.metrics.outcomes import OUTCOME_KEYS, outcomes
from simserve.metrics.results import Results
from simserve.metrics.stats import LatencyJson
from simserve.study.cost_draws import NO_RESIDUAL
from simserve.tables.columns import Flags

Unit = Literal["s", "frac", "per_s", "count"]


@dataclass(frozen=True)
class Measure:
    """One number of `summary.json`."""

    key: str
    """Its dotted key: `ttft_s.p99`."""
    label: str
    unit: Unit
    is_cost: bool
    """Whether less is better."""

    def of(self, summary: Summary) -> float:
        """Return its value; NaN where the run has none."""
        return summary.at(self.key)


UNITS: Mapping[Form, Unit] = {"share": "frac", "seconds": "s"}
"""Units by form; others are rates."""

MEASURES = tuple(
    Measure(field.alias or name, field.title, UNITS.get(column.form, "per_s"), is_cost=column.form == "seconds")
    for name, field in Measures.model_fields.items()
    if field.title is not None and (column := column_of(Measures, name)) is not None
)
"""The measures in reporting order."""

ATTAINMENT, GOODPUT = MEASURES[:2]

LEVELS = ("mean", "p50", "p90", "p95", "p99", "p99.9")

Levels = Mapping[str, Mapping[str, float]]
"""Figures by latency and level."""


@dataclass(frozen=True)
class RunFigures:
    """Latencies and outcomes of one run, or of a replay."""

    latencies: Levels
    """Seconds, by latency and level."""
    outcomes: Outcomes
    n_arrived: int
    """Requests of its measured window."""
    log_errors: Levels = field(default_factory=dict)
    """Standard errors of the logarithms of latencies, where the run itself tells them."""

    @classmethod
    def of(cls, results: Results, residual: Mapping[str, float] = NO_RESIDUAL) -> "RunFigures":
        """Return the figures of a run when its latencies, those of `residual`, are off by these factors."""
        summary = results.part((*OUTCOME_KEYS, *results.facts.slo, *residual))
        latencies = {
            key: {level: summary.at(f"{key}.{level}") * factor for level in LEVELS}
            for key, factor in residual.items()
            if summary.at(f"{key}.n")
        }
        of_run = outcomes(summary)
        if any(factor != 1.0 for factor in residual.values()):
            of_run = _with_residual(results, of_run, residual)
        errors = {
            key: {level: log_error(getattr(summary, key), level) for level in levels}
            for key, levels in latencies.items()
        }
        return cls(latencies, of_run, summary.requests.arrived, errors)


def log_error(latency: LatencyJson, level: str) -> float:
    """Return the standard error of a latency's logarithm by its interval in the summary; 0 where it has none."""
    low, high = latency.intervals.get(level) or (0.0, None)
    if low is None or not low > 0:
        return 0.0
    return log(latency.at(level) / low if high is None else high / low) / (1 if high is None else 2) / T_95[max(T_95)]


def _with_residual(results: Results, known: Outcomes, residual: Mapping[str, float]) -> dict[str | None, Outcome]:
    """Return the outcomes of a run when its latencies are off by the residual factors."""
    met, is_far = _met(results, residual), _met(results, residual, FAR_FRAC)
    requests, result = results.recorded, {}
    for name, outcome in known.items():
        mine = requests["in_window"] if name is None else requests["in_window"] & of_class(requests, name)
        changes = {
            "attained_frac": float(np.logical_and.reduce(list(met.values()))[mine].mean()),
            "by_slo": {goal: float(met[goal][mine].mean()) for goal in outcome.by_slo},
            "is_far_below": bool(np.logical_and.reduce(list(is_far.values()))[mine].all()),
        }
        result[name] = outcome.model_copy(update=changes | {"interval": None})
    return result


def _met(results: Results, residual: Mapping[str, float], frac: float = 1.0) -> dict[str, Flags]:
    """Return which requests meet that share of the limit of each goal, `(n_requests,)`."""

    def nearer(targets: Mapping[str, float]) -> dict[str, float]:
        return {goal: frac * limit / residual[goal] for goal, limit in targets.items()}

    of_classes = {name: nearer(targets) for name, targets in results.facts.slo_classes.items()}
    return met_by_goal(results.recorded, nearer(results.facts.slo), of_classes)
