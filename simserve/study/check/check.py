"""Check: whether a change loses p99 goodput against a baseline, with more seeds until that is clear, and as data."""

import math
from dataclasses import dataclass

import numpy as np

from simserve.metrics.answers.baseline import LOOKS, Baseline, LoadFacts
from simserve.metrics.answers.check import (
    BaselineSide,
    CandidateSide,
    CheckAnswer,
    FactsOfSides,
    LossFacts,
    PartOfSides,
    State,
)
from simserve.metrics.answers.parts import ScenarioName
from simserve.metrics.kv_json import reservation_warnings
from simserve.scenario.cost_warnings import warnings
from simserve.study.check.against import Against
from simserve.study.check.baseline import curve_of, differences, grid_of, portable
from simserve.study.check.gate import FALSE_ALARMS, Answer, AttainmentCurve, Loss, answer, loss_between, significance
from simserve.study.check.load_facts import PARTS, TimeOrMemory, drawn_load, load_facts
from simserve.study.check.measured import covariate
from simserve.study.check.side import Boundless, GateSide
from simserve.study.intervals import CONFIDENCE
from simserve.version import __version__

OF_DRAWN = "p99 goodput is in drawn req/s; make the runs longer to come nearer"


@dataclass(frozen=True)
class Check:
    """The answer."""

    against: str
    baseline: Baseline
    candidate: GateSide
    curve: AttainmentCurve | Boundless
    """Curve of the candidate."""
    loss: Loss | None
    """None where the candidate has no p99 goodput, as it meets the goal at every load, or at none."""
    tolerance_frac: float
    n_seeds: int
    answer: Answer


def check(against: Against, candidate: GateSide, tolerance_frac: float) -> Check:
    """Run the candidate about where the baseline's p99 goodput lies. Raises SimserveError."""
    for n_seeds in against.looks:
        baseline = against.with_seeds(n_seeds)
        curve = candidate.curve(grid_of(baseline), n_seeds, like=curve_of(baseline, n_seeds))
        if isinstance(curve, Boundless):
            text: Answer = "pass" if curve.is_met else "fail"
            return Check(against.name, baseline, candidate, curve, None, tolerance_frac, n_seeds, text)
        loss = _loss_of(baseline, candidate, curve)
        text = answer(loss, tolerance_frac, significance(len(LOOKS)))
        if text != "open":
            break
    return Check(against.name, baseline, candidate, curve, loss, tolerance_frac, n_seeds, text)


def _loss_of(baseline: Baseline, candidate: GateSide, curve: AttainmentCurve) -> Loss:
    n_seeds = len(curve.seeds)
    known = curve_of(baseline, n_seeds)
    if known.seeds == curve.seeds:
        return loss_between(known, curve, candidate.goal_frac)
    scale = math.sqrt(known.scales[0] * known.scales[1])
    control_variate = covariate(candidate.scenario, scale, curve.seeds, baseline.crowd.above)
    return loss_between(known, curve, candidate.goal_frac, (np.array(baseline.crowd.frac[:n_seeds]), control_variate))


def check_facts(result: Check) -> CheckAnswer:
    """Return the answer as data."""
    scenario, baseline, curve = result.candidate.scenario, result.baseline, result.curve
    n_seeds, below = min(result.n_seeds, LOOKS[0]), baseline.loads[0].scale
    runs = result.candidate.runs(below, n_seeds)
    now, load = load_facts(below, runs), drawn_load(runs)
    beyond, holds_every_load = now, None
    if isinstance(curve, Boundless):
        holds_every_load = curve.is_met
    else:
        beyond = load_facts(curve.scales[1], result.candidate.runs(curve.scales[1], n_seeds))
    off = [] if load is None or load.off_text is None else [load.off_text]
    return CheckAnswer(
        passes=result.answer != "fail",
        state=_state(result),
        scenario=ScenarioName(name=scenario.name, digest=scenario.digest, seed=scenario.seed),
        goal_frac=result.candidate.goal_frac,
        slo=scenario.slo.default.given,
        slo_classes=list(scenario.slo.classes),
        tolerance_frac=result.tolerance_frac,
        false_alarms_frac=FALSE_ALARMS,
        n_seeds=result.n_seeds,
        loss=None if result.loss is None else _loss(result.loss, result.tolerance_frac),
        baseline=_baseline(result.against, baseline),
        candidate=CandidateSide(
            simserve=__version__,
            goodput_per_s=None if result.loss is None else baseline.goodput_per_s.value * (1 - result.loss.frac),
            fails_first=beyond.fails_first,
            holds_every_load=holds_every_load,
        ),
        at=FactsOfSides(baseline=baseline.lower_facts, candidate=now),
        parts=[_part(part, baseline.lower_facts, now) for part in PARTS],
        changes=differences(baseline.scenario, portable(scenario))[1],
        load=load,
        warnings=[
            *(f"{text}: {OF_DRAWN}" for text in off),
            *warnings(scenario.setups),
            *reservation_warnings(run.kv for run in runs),
        ],
    )


def _state(result: Check) -> State:
    if result.answer == "fail":
        return "lost"
    if result.loss is None:
        return "better"
    if result.answer == "open":
        return "unclear"
    if result.loss.log == result.loss.error == 0:
        return "unchanged"
    low, high = result.loss.interval()
    return "better" if high < 0 else "within tolerance" if low > 0 else "same"


def _loss(loss: Loss, tolerance_frac: float) -> LossFacts:
    low, high = loss.interval()
    doubt = significance(len(LOOKS))
    return LossFacts(
        frac=loss.frac,
        low_frac=low,
        high_frac=high,
        confidence=CONFIDENCE,
        surely_at_least_frac=loss.at_least(doubt),
        surely_at_most_frac=loss.at_most(doubt),
        surely=1 - doubt,
        is_paired=loss.is_paired,
        smallest_found_frac=loss.smallest_found(tolerance_frac, doubt),
    )


def _baseline(name: str, baseline: Baseline) -> BaselineSide:
    return BaselineSide(
        name=name,
        simserve=baseline.simserve,
        goodput_per_s=baseline.goodput_per_s.value,
        goodput_low_per_s=baseline.goodput_per_s.low,
        goodput_high_per_s=baseline.goodput_per_s.high,
        n_seeds=baseline.n_seeds,
        first_seed=baseline.first_seed,
        fails_first=baseline.loads[1].load_facts.fails_first,
    )


def _part(part: TimeOrMemory, before: LoadFacts, now: LoadFacts) -> PartOfSides:
    a, b = before.parts.get(part.key), now.parts.get(part.key)
    change = None
    if a is not None and b is not None and (a or not b):
        change = b / a - 1 if a else 0.0
    return PartOfSides(key=part.key, label=part.label, unit=part.unit, baseline=a, candidate=b, change_frac=change)
