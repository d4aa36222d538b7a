"""SLO answer of several runs, each with a load of its own: the attainment at the nominal load, and the decision."""

import math
from collections.abc import Sequence

import numpy as np

from simserve.metrics.answer import AnswerJson, Outcome, Outcomes, alone_answer, answer, pooled_frac, worst_class
from simserve.metrics.answers.parts import NominalLoad
from simserve.metrics.decision import Decision
from simserve.metrics.goal import wilson
from simserve.metrics.student import cdf, quantile
from simserve.metrics.tails import Sample, from_groups
from simserve.study.intervals import CONFIDENCE, FEW_MISSES, Z_95, Estimate, share_of
from simserve.tables.columns import Floats

FEWEST = 4
"""Runs for a regression on the drawn load."""

LEAST_SPREAD = 1e-3
"""Standard deviation of the drawn load, as a share; loads that differ less are not drawn, but rounded."""

LEAST_LOAD = 0.1
"""Share of the nominal load; a window that drew less counts as if it had drawn this much."""

FULL = ("growing", "critical")
"""States of a queue at or above capacity."""

MOST_SEEDS = 128
"""Seeds of a load, at most."""


def at_nominal(runs: Sequence[Outcome]) -> Estimate:
    """Return the attainment at the nominal load, with a 95% interval; without a regression it is `share_of`.

    Misses and arrivals are summed over the runs. Arrivals beyond the expected number have a mean of zero, so they are
    a control variate: the share of misses is corrected by its regression on them, with a slope never below zero. The
    interval is Student's for the logarithm of the share of misses, which varies from window to window by factors. Its
    standard error keeps the whole variance between windows, and adds that of the slope.
    """
    n_effective = sum(each.n_effective for each in runs)
    deviations = _deviations(runs)
    if deviations is None:
        return share_of([each.attained_frac for each in runs], n_effective)
    off, missed = deviations
    missed_frac, n = 1 - pooled_frac(runs), len(runs)
    if missed_frac == 0:
        return Estimate(1.0, wilson(1.0, n_effective, Z_95)[0], 1.0)
    slope, slope_error = _slope(off, missed)
    error = math.hypot(float(missed.std(ddof=1)) / math.sqrt(n), float(off.mean()) * slope_error)
    value = missed_frac * math.exp(-slope * float(off.mean()) / missed_frac)
    spread = math.exp(min(quantile((1 + CONFIDENCE) / 2, n - 1) * error / missed_frac, 700.0))
    low, high = max(0.0, 1 - value * spread), 1 - value / spread
    frac = max(0.0, 1 - value)
    if n_effective * min(frac, 1 - frac) < FEW_MISSES:
        of_all = wilson(frac, n_effective, Z_95)
        low, high = min(low, of_all[0]), max(high, of_all[1])
    return Estimate(frac, low, min(max(high, frac), 1.0))


def met_probability(runs: Sequence[Outcome], goal_frac: float) -> float | None:
    """Return the probability that one more window at the nominal rate meets the goal; None where runs are alike.

    Student's t of the logarithm of misses per allowed miss, half an allowed miss added, around its regression on the
    drawn load. It keeps the whole variance between windows, for the next one draws a load of its own too.
    """
    if len(runs) < FEWEST or all(each.attained_frac == 1 for each in runs):
        return None
    logs = np.log([(1 - each.attained_frac) / (1 - goal_frac) + 0.5 for each in runs])
    deviations = _deviations(runs)
    mean, n, spread = float(logs.mean()), len(runs), float(logs.std(ddof=1))
    if deviations is not None:
        off, _ = deviations
        mean -= _slope(off, logs - mean)[0] * float(off.mean())
    if spread == 0:
        return None
    return cdf((math.log(1.5) - mean) / (spread * math.sqrt(1 + 1 / n)), n - 2)


def answer_over(runs: Sequence[Outcomes], goal_frac: float) -> AnswerJson | None:
    """Return the answer of several runs of one scenario; None without an SLO or requests."""
    name = worst_class(runs)
    mine = [run[name] for run in runs if name in run]
    if not mine:
        return None
    result = at_nominal(mine)
    attained = (result.value, result.low, result.high)
    return answer(mine, goal_frac, attained, "replications", slo_class=name, load_off_frac=_off_frac(mine))


def _off_frac(runs: Sequence[Outcome]) -> float | None:
    """Return how far the answer's load is off: 0 where it is corrected, and drawn loads lie on both sides."""
    known = [each.off_frac for each in runs if each.off_frac is not None]
    if not known:
        return None
    if _deviations(runs) is None:
        return sum(known) / len(known)
    return 0.0 if min(known) <= 0 <= max(known) else min(known, key=abs)


def slo_answer(runs: Sequence[Outcomes], goal_frac: float) -> AnswerJson | None:
    """Return the answer of runs with seeds of their own, of one or more; None without an SLO or requests. It is decided
    by the margin, or by the interval of the share where only shares are known."""
    result = alone_answer(runs[0], goal_frac) if len(runs) == 1 else answer_over(runs, goal_frac)
    decision = _by_margin(runs, goal_frac)
    return result if result is None or decision is None else result.model_copy(update={"decision": decision.old_word})


def _by_margin(runs: Sequence[Outcomes], goal_frac: float) -> Decision | None:
    """Return the decision by the margin; None where only shares are known, or all requests must meet the SLO."""
    if goal_frac >= 1 or not all(outcome.r for run in runs for outcome in run.values()) or not any(runs):
        return None
    samples = []
    for run in filter(None, runs):
        tails = {name: from_groups(outcome.counts, outcome.r) for name, outcome in run.items()}
        first, n_effective = next(iter(run.values())), sum(outcome.n_effective for outcome in run.values())
        samples.append(Sample(tails, n_effective, first.queue, first.off_frac, False))
    return Decision(samples, goal_frac)


def mean_load(loads: Sequence[NominalLoad]) -> NominalLoad:
    """Return nominal and drawn load over runs of one load; no nominal rate where a run has none."""
    if not loads or not all(load.nominal_per_s for load in loads):
        return NominalLoad(kind="requests", nominal_per_s=None, drawn_per_s=None, off_frac=None)
    nominal, drawn = (sum(load.at(key) for load in loads) / len(loads) for key in ("nominal_per_s", "drawn_per_s"))
    return NominalLoad(kind=loads[0].kind, nominal_per_s=nominal, drawn_per_s=drawn, off_frac=drawn / nominal - 1)


def _deviations(runs: Sequence[Outcome]) -> tuple[Floats, Floats] | None:
    """Return arrivals beyond the expected, and misses beyond the pooled share, each per mean arrivals, `(n_runs,)`.
    None where there are too few runs, or nothing is drawn."""
    off_fracs = [each.off_frac for each in runs if each.off_frac is not None]
    if len(off_fracs) < max(len(runs), FEWEST):
        return None
    weight = np.array([each.n_arrived for each in runs]) / np.mean([each.n_arrived for each in runs])
    off_frac = np.array(off_fracs)
    off = weight * off_frac / np.maximum(1 + off_frac, LEAST_LOAD)
    if off.std() < LEAST_SPREAD:
        return None
    missed_frac = 1 - np.array([each.attained_frac for each in runs])
    return off, weight * (missed_frac - (1 - pooled_frac(runs)))


def _slope(off: Floats, y: Floats) -> tuple[float, float]:
    """Return the slope of y over the load, at least 0, and its standard error."""
    centered = off - off.mean()
    square = float(centered @ centered)
    slope = max(0.0, float(y @ centered) / square)
    left = y - y.mean() - slope * centered
    return slope, math.sqrt(float(left @ left) / (len(off) - 2) / square)
