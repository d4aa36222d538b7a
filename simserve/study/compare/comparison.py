"""Comparison: which of two servers carries more load, and each measure with the interval of its difference."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.metrics.answers.comparison import ComparisonAnswer, DrawnLoads, MeasureDifference
from simserve.metrics.answers.parts import Verdict
from simserve.metrics.figures import Summary
from simserve.metrics.results import Results
from simserve.study.check.load_facts import drawn_load
from simserve.study.compare.carried_load import NO_SCENARIOS
from simserve.study.intervals import CONFIDENCE, Estimate, around, blocks_of, leave_one_out, mean_of, standard_error
from simserve.study.run_figures import ATTAINMENT, GOODPUT, MEASURES, Measure
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.schema import MOST
from simserve.version import __version__

BENCH_RATES = {
    "request_goodput": "goodput",
    "request_throughput": "requests served",
    "output_throughput": "output tokens",
}
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


def compare_replications(names: tuple[str, str], a: Sequence[Summary], b: Sequence[Summary]) -> ComparisonAnswer:
    """Compare summaries of both sides, `(n_seeds,)` each, the same seeds in the same order."""
    result = []
    for measure in MEASURES:
        of_a, of_b = (np.array([measure.of(summary) for summary in side]) for side in (a, b))
        if not np.isnan(of_a + of_b).any():
            gap = mean_of((of_b - of_a).tolist())
            result.append(_difference(measure, float(of_a.mean()), float(of_b.mean()), gap))
    how = f"{len(a)} pairs of runs, the same seed in each pair" if len(a) > 1 else "one run each"
    return _answer(names, how, result, DrawnLoads(a=drawn_load(a), b=drawn_load(b)))


def compare_results(names: tuple[str, str], a: Results, b: Results) -> ComparisonAnswer:
    """Compare one run of each side, request by request where both served the same requests."""
    sides = [_Side.of(results) for results in (a, b)]
    is_paired = sides[0].is_like(sides[1])
    result = []
    for measure in MEASURES:
        of_a, of_b = (measure.of(results.figures) for results in (a, b))
        if not math.isnan(of_a + of_b):
            result.append(_difference(measure, of_a, of_b, _gap(of_b - of_a, sides, measure, is_paired)))
    how = "the same requests on both sides" if is_paired else "different requests on each side"
    loads = DrawnLoads(a=drawn_load([a.figures]), b=drawn_load([b.figures]))
    return _answer(names, f"one run each, {how}; jackknife over blocks of requests", result, loads)


def compare_benchmarks(names: tuple[str, str], a: Mapping[str, Any], b: Mapping[str, Any]) -> ComparisonAnswer:
    """Compare results of `vllm bench serve`, measured or predicted, by the keys that both have; without intervals."""
    result = []
    for key in a:
        if key.startswith("median_") and key.replace("median_", "p50_") in a:
            continue
        measure = _bench_measure(key)
        if measure is not None and all(_is_number(side.get(key)) for side in (a, b)):
            scale = 1e-3 if measure.unit == "s" else 1.0
            of_a, of_b = a[key] * scale, b[key] * scale
            result.append(_difference(measure, of_a, of_b, Estimate(of_b - of_a, math.nan, math.nan)))
    return _answer(names, "one benchmark result each", result, DrawnLoads())


def _answer(names: tuple[str, str], how: str, measures: list[MeasureDifference], load: DrawnLoads) -> ComparisonAnswer:
    """Return the answer of measures alone, without warnings."""
    return ComparisonAnswer(
        version=__version__,
        a=names[0],
        b=names[1],
        confidence=CONFIDENCE,
        how=how,
        decision=NO_SCENARIOS,
        load=load,
        measures=measures,
    )


def _difference(measure: Measure, a: float, b: float, gap: Estimate) -> MeasureDifference:
    """Return a measure of both sides, with the interval of b - a; what files cannot hold is not known."""
    numbers = (a, b, gap.value, gap.low, gap.high, gap.value / a if a else math.nan)
    of_a, of_b, difference, low, high, frac = (each if abs(each) <= MOST else math.nan for each in numbers)
    return MeasureDifference(
        key=measure.key,
        label=measure.label,
        unit=measure.unit,
        a=of_a,
        b=of_b,
        difference=difference,
        low=low,
        high=high,
        change_frac=frac,
        outcome=_outcome(gap, measure),
    )


def _outcome(gap: Estimate, measure: Measure) -> Verdict:
    """Return what B is: `better` or `worse` beyond chance, `same` in every run, `unclear` if statistically tied."""
    if gap.value == 0 and not gap.low < gap.high:
        return "same"
    if not gap.is_sure:
        return "unclear"
    return "better" if (gap.value < 0) == measure.is_cost else "worse"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not abs(value) > MOST  # NaN stays, as unknown


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
    blocks: Ints | None

    @classmethod
    def of(cls, results: Results) -> "_Side":
        columns = results.columns["requests"]
        counts = columns["in_window"]
        names = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s", "slo_met")
        requests = {name: None if columns[name] is None else columns[name][counts] for name in names}
        n = int(counts.sum())
        return cls(requests, 1 / results.figures.window.at("duration_s"), blocks_of(n))

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

        def figure(counts: Flags) -> float:
            some = values[counts & known]
            return float(some.mean() if of == "mean" else np.percentile(some, PERCENTILES[of]))

        return leave_one_out(figure, self.blocks)


def _gap(value: float, sides: Sequence[_Side], measure: Measure, is_paired: bool) -> Estimate:
    """Return b - a with its interval, if the two runs have one."""
    a, b = (side.without_blocks(measure) for side in sides)
    if a is None or b is None:
        return Estimate(value, math.nan, math.nan)
    if is_paired:
        return around(value, standard_error(b - a), len(a) - 1)
    error = math.hypot(standard_error(a), standard_error(b))
    return around(value, error, len(a) - 1)
