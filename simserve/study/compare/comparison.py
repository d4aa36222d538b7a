"""Comparison: which of two servers carries more load, and each measure with the interval of its difference."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.results import Results
from simserve.study.check.load_facts import DrawnLoad, drawn_load
from simserve.study.compare.carried_load import NO_SCENARIOS, CarriedLoad
from simserve.study.intervals import CONFIDENCE, Estimate, around, blocks_of, leave_one_out, mean_of, standard_error
from simserve.study.measures import ATTAINMENT, GOODPUT, MEASURES, Measure
from simserve.tables.columns import Columns, Floats
from simserve.version import __version__

BENCH_RATES = {
    "request_goodput": "goodput",
    "request_throughput": "requests served",
    "output_throughput": "output tokens",
}
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True)
class MeasureDifference:
    """One measure of both sides."""

    measure: Measure
    a: float
    b: float
    gap: Estimate
    """b - a, with its interval."""

    @property
    def frac(self) -> float:
        """Return the gap as a share of a."""
        return self.gap.value / self.a if self.a else math.nan

    @property
    def outcome(self) -> str:
        """Return what B is: `better` or `worse` beyond chance, `same` in every run, `unclear` if statistically tied."""
        if self.gap.value == 0 and not self.gap.low < self.gap.high:
            return "same"
        if not self.gap.is_sure:
            return "unclear"
        return "better" if (self.gap.value < 0) == self.measure.is_cost else "worse"


@dataclass(frozen=True)
class Comparison:
    """Two sides, measure by measure."""

    names: tuple[str, str]
    how: str
    """Origin of the intervals, in words."""
    differences: tuple[MeasureDifference, ...]
    warnings: tuple[str, ...] = ()
    """Sentences on what else differs, so that the measures are not about the same thing."""
    decision: CarriedLoad | str = NO_SCENARIOS
    """Which side carries more load, or why load does not decide."""
    loads: tuple[DrawnLoad | None, DrawnLoad | None] = (None, None)
    """Drawn against nominal load behind the measures of each side; None where no load is nominal."""

    def as_data(self) -> dict[str, Any]:
        """Return what `simserve compare --json` prints; NaN where there is no interval."""
        return {
            "version": __version__,
            "a": self.names[0],
            "b": self.names[1],
            "confidence": CONFIDENCE,
            "how": self.how,
            "warnings": list(self.warnings),
            "decision": {"verdict": None, "reason": self.decision}
            if isinstance(self.decision, str)
            else self.decision.as_data(),
            "load": {side: load and load.as_data() for side, load in zip("ab", self.loads, strict=True)},
            "measures": [
                {
                    "key": each.measure.key,
                    "label": each.measure.label,
                    "unit": each.measure.unit,
                    "a": each.a,
                    "b": each.b,
                    "difference": each.gap.value,
                    "low": each.gap.low,
                    "high": each.gap.high,
                    "change_frac": each.frac,
                    "verdict": each.outcome,
                }
                for each in self.differences
            ],
        }


def compare_replications(
    names: tuple[str, str], a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]
) -> Comparison:
    """Compare summaries of both sides, `(n_seeds,)` each, the same seeds in the same order."""
    result = []
    for measure in MEASURES:
        of_a, of_b = (np.array([measure.of(summary) for summary in side]) for side in (a, b))
        if not np.isnan(of_a + of_b).any():
            result.append(
                MeasureDifference(measure, float(of_a.mean()), float(of_b.mean()), mean_of((of_b - of_a).tolist()))
            )
    how = f"{len(a)} pairs of runs, the same seed in each pair" if len(a) > 1 else "one run each"
    return Comparison(names, how, tuple(result), loads=(drawn_load(a), drawn_load(b)))


def compare_results(names: tuple[str, str], a: Results, b: Results) -> Comparison:
    """Compare one run of each side, request by request where both served the same requests."""
    sides = [_Side.of(results) for results in (a, b)]
    is_paired = sides[0].is_like(sides[1])
    result = []
    for measure in MEASURES:
        of_a, of_b = (measure.of(results.summary) for results in (a, b))
        if not math.isnan(of_a + of_b):
            result.append(MeasureDifference(measure, of_a, of_b, _gap(of_b - of_a, sides, measure, is_paired)))
    how = "the same requests on both sides" if is_paired else "different requests on each side"
    loads = (drawn_load([a.summary]), drawn_load([b.summary]))
    return Comparison(names, f"one run each, {how}; jackknife over blocks of requests", tuple(result), loads=loads)


def compare_benchmarks(names: tuple[str, str], a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Compare results of `vllm bench serve`, measured or predicted, by the keys that both have; without intervals."""
    result = []
    for key in a:
        if key.startswith("median_") and key.replace("median_", "p50_") in a:
            continue
        measure = _bench_measure(key)
        if measure is not None and all(type(side.get(key)) in (int, float) for side in (a, b)):
            scale = 1e-3 if measure.unit == "s" else 1.0
            of_a, of_b = a[key] * scale, b[key] * scale
            result.append(MeasureDifference(measure, of_a, of_b, Estimate(of_b - of_a, math.nan, math.nan)))
    return Comparison(names, "one benchmark result each", tuple(result))


def _bench_measure(key: str) -> Measure | None:
    """Return what a key of a benchmark's result measures; None for counts and standard deviations."""
    if key in BENCH_RATES:
        return Measure(key, BENCH_RATES[key], "per_s", is_cost=False)
    parts = re.fullmatch(r"(mean|median|p[0-9.]+)_(ttft|tpot|itl|e2el)_ms", key)
    if parts is None:
        return None
    return Measure(
        key, f"{parts[1].replace('median', 'p50')} {parts[2].upper().replace('E2EL', 'E2E')}", "s", is_cost=True
    )


@dataclass(frozen=True)
class _Side:
    """The requests of one run that are in the window."""

    requests: Columns
    goodput_per_met: float
    """Goodput, requests per second, of one request that met every SLO."""
    blocks: NDArray[np.int64] | None

    @classmethod
    def of(cls, results: Results) -> "_Side":
        columns = results.columns["requests"]
        counts = columns["in_window"]
        names = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s", "slo_met")
        requests = {name: None if columns[name] is None else columns[name][counts] for name in names}
        n = int(counts.sum())
        return cls(requests, 1 / results.summary["window"]["duration_s"], blocks_of(n))

    def is_like(self, other: "_Side") -> bool:
        """Return whether the same requests came at the same instants."""
        names = ("arrival_s", "prompt_tokens", "output_tokens")
        return all(np.array_equal(self.requests[name], other.requests[name]) for name in names)

    def without_blocks(self, measure: Measure) -> Floats | None:
        """Return the measure without each block in turn, `(n_blocks,)`; None where requests do not give it."""
        if self.blocks is None:
            return None
        if measure in (ATTAINMENT, GOODPUT):
            met = self.requests["slo_met"]
            scale = 1.0 if measure is ATTAINMENT else self.goodput_per_met * len(met)
            return leave_one_out(lambda counts: float(met[counts].mean()) * scale, self.blocks)
        column, _, of = measure.key.partition(".")
        if column not in self.requests:
            return None
        values = self.requests[column]
        known = ~np.isnan(values)
        return leave_one_out(lambda counts: _figure(values[counts & known], of), self.blocks)


def _figure(values: Floats, of: str) -> float:
    """Return the mean or a percentile of a latency."""
    return float(values.mean() if of == "mean" else np.percentile(values, PERCENTILES[of]))


def _gap(value: float, sides: Sequence[_Side], measure: Measure, is_paired: bool) -> Estimate:
    """Return b - a with its interval, if the two runs have one."""
    a, b = (side.without_blocks(measure) for side in sides)
    if a is None or b is None:
        return Estimate(value, math.nan, math.nan)
    if is_paired:
        return around(value, standard_error(b - a), len(a) - 1)
    error = math.hypot(standard_error(a), standard_error(b))
    return around(value, error, len(a) - 1)
