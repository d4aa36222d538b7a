"""Precision: replications of a run with other seeds, as many as given or as a precision takes."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from simserve.errors import SimserveError, did_you_mean
from simserve.metrics.answers.parts import OverJson, ReachedPrecisionJson, ReplicationsJson
from simserve.metrics.figures import Summary
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.outcomes import outcomes, whole_outcome
from simserve.metrics.reliability import too_short
from simserve.metrics.results import Results
from simserve.metrics.stats import PERCENTILES, level_name
from simserve.metrics.window import load_warning
from simserve.scenario import Scenario
from simserve.study.intervals import CONFIDENCE, Estimate, mean_of, percentile_of
from simserve.study.run_figures import ATTAINMENT, MEASURES, Measure
from simserve.study.run_seeds import MEASURED, Run, each_run
from simserve.study.slo_answer import MOST_SEEDS, at_nominal, slo_answer
from simserve.tables.columns import Columns
from simserve.tables.schema import REPLICATIONS

DEFAULT = "ttft_s.p99"
"""Default measure of a precision."""

FIRST_SEEDS = 10
"""Seeds at the start of a search for a precision. Stopping when an interval looks narrow favors samples that look so by
chance; from ten seeds on 95% intervals still contain the mean in 93–95.5% (docs/statistics.md), from five in 92%."""

MOST_AT_ONCE = 4.0
"""Largest factor by which the number of seeds grows at once."""

LEVELS = {level_name(level): level for level in PERCENTILES}
"""Percentile levels by their names in summaries."""

RECORDED = tuple(
    {measure.key: measure for measure in MEASURES}.get(field.name, Measure(field.name, field.name, "count", True))
    for field in REPLICATIONS
    if field.kind == "float"
)
"""Values kept of each run: every measure, and more of its summary."""


@dataclass(frozen=True)
class Precision:
    """Target width of the interval of a measure."""

    key: str
    """Measure, such as `ttft_s.p99`."""
    half_frac: float
    """Half-width of the interval, as a share of the mean."""


Wanted = int | Precision
"""Number of runs, or a precision."""


def wanted_runs(replications: int | None, precision: float | None, of: str | None) -> Wanted:
    """Parse the options of the command line. Raises SimserveError for a wrong combination or value."""
    if replications is not None and precision is not None:
        raise SimserveError("--precision: must stand alone, got --replications too; give one of the two")
    if precision is None and of is not None:
        raise SimserveError(f"--of: must stand beside --precision, got {of!r} alone; give --precision 0.05")
    if precision is not None:
        if not 0 < precision < 1:
            raise SimserveError(f"--precision: must be a share between 0 and 1, got {precision}; 0.05 is 5%")
        return Precision(_measure(of or DEFAULT).key, precision)
    if replications is None or not 2 <= replications <= MOST_SEEDS:
        raise SimserveError(f"--replications: must be from 2 to {MOST_SEEDS}, got {replications}; 10 are a start")
    return replications


def add_replications(scenario: Scenario, results: Results, wanted: Wanted) -> None:
    """Run the scenario with the seeds after that of `results`, and put `replications` into its summary and tables.

    wanted: the number of runs, the first included, or a precision, which takes FIRST_SEEDS to MOST_SEEDS. The files of
    `results` stay those of the first run. The seeds decide about the SLO, with draws of costs if the run had replays.
    Raises SimserveError as `simulate` does, and for a measure that the run lacks.
    """
    n = wanted if isinstance(wanted, int) else FIRST_SEEDS
    runs, samples = [results.figures], [results.sample]
    if isinstance(wanted, Precision) and math.isnan(_measure(wanted.key).of(runs[0])):
        rule = "must name a measure that the run has"
        raise SimserveError(f"--of: {rule}, got {wanted.key!r}, which is null in its summary; name another")
    while True:
        seeds = range(scenario.seed + len(runs), scenario.seed + n)
        for summary, sample in each_run(partial(Run.of, keys=MEASURED), [scenario], seeds)[0] if seeds else []:
            runs.append(summary)
            samples.append(sample)
        if isinstance(wanted, int) or len(runs) >= MOST_SEEDS:
            break
        width = half_frac(wanted.key, runs) / wanted.half_frac
        if width <= 1:
            break
        more = width**2 if math.isfinite(width) else MOST_AT_ONCE
        n = min(MOST_SEEDS, max(n + 1, math.ceil(n * min(more, MOST_AT_ONCE))))
    seeds_of: Columns = {"seed": np.arange(scenario.seed, scenario.seed + len(runs), dtype=np.int64)}
    figures = {measure.key: np.array([measure.of(run) for run in runs]) for measure in RECORDED}
    results.columns["replications"] = seeds_of | figures
    answer = slo_answer([outcomes(run) for run in runs], GOAL_FRAC)
    results.put(replications=_facts(scenario.seed, runs, wanted), answer=answer)
    if results.basis is not None:
        further = results.basis.runs[len(samples) :]  # where replays had more seeds
        results.decide(replace(results.basis, runs=[*samples, *further]))
    own, trust = results.figures, results.figures.trust
    one_run = (too_short(own.requests.arrived, trust.n_effective or 1.0, trust.steady), *load_warning(own.load))
    results.put(warnings=[text for text in own.warnings if text not in one_run])


def estimate(measure: Measure, runs: Sequence[Summary]) -> Estimate:
    """Return the mean over independent runs; that of the attainment is given at the nominal load. A high end that is
    open is infinite; a measure that a run lacks has no mean."""
    values = [measure.of(run) for run in runs]
    n_effective = sum(run.trust.n_effective or 0.0 for run in runs)
    if measure is ATTAINMENT:
        known = [each for each in map(whole_outcome, runs) if each is not None]
        return at_nominal(known) if len(known) == len(runs) else mean_of(values)
    level = measure.key.partition(".")[2]
    if level in LEVELS:
        return percentile_of(values, 1 - LEVELS[level] / 100, n_effective / len(runs))
    return mean_of(values)


def half_frac(key: str, runs: Sequence[Summary]) -> float:
    """Return the half-width of Student's interval as a share of the mean, even of a measure without an upper bound."""
    result = mean_of([_measure(key).of(run) for run in runs])
    half = (result.high - result.low) / 2
    return half / abs(result.value) if result.value else 0.0 if half == 0 else math.inf


def _measure(key: str) -> Measure:
    known = {measure.key: measure for measure in RECORDED}
    if key not in known:
        raise SimserveError(f"--of: must name a measure, got {key!r}; {did_you_mean(key, known)}")
    return known[key]


def _facts(first_seed: int, runs: Sequence[Summary], wanted: int | Precision) -> ReplicationsJson:
    """Return `replications` of summary.json; null where an interval is open, or a run lacks the measure."""
    result = {measure.key: estimate(measure, runs) for measure in RECORDED}
    reached = None
    if isinstance(wanted, Precision):
        half = half_frac(wanted.key, runs)
        reached = ReachedPrecisionJson(
            of=wanted.key, asked_frac=wanted.half_frac, reached_frac=half, is_reached=half <= wanted.half_frac
        )
    return ReplicationsJson(
        n=len(runs),
        seeds=range(first_seed, first_seed + len(runs)),
        confidence=CONFIDENCE,
        n_requests=sum(run.requests.arrived for run in runs),
        states=Counter(run.trust.steady or "undetermined" for run in runs),
        measures={key: OverJson(mean=each.value, low=each.low, high=each.high) for key, each in result.items()},
        precision=reached,
    )
