"""Check facts: the answer of the gate as plain data, for JSON, summaries and test reports."""

import math
from collections.abc import Mapping
from typing import Any

from simserve.metrics.decision import LOAD_TOLERANCE_FRAC
from simserve.metrics.reservation import reservation_warnings
from simserve.scenario.cost_warnings import warnings
from simserve.study.check.check import Check
from simserve.study.check.gate import FALSE_ALARMS, LOOKS, AttainmentCurve, significance
from simserve.study.check.load_facts import PARTS, DrawnLoad, binding, drawn_load, load_facts
from simserve.study.intervals import CONFIDENCE
from simserve.version import __version__


def check_facts(result: Check) -> dict[str, Any]:
    """Return what `simserve check --json` prints."""
    scenario, baseline = result.candidate.scenario, result.baseline
    curve = result.curve if isinstance(result.curve, AttainmentCurve) else None
    now = _facts_now(result)
    runs = result.candidate.runs(baseline.grid.below, min(result.n_seeds, LOOKS[0]))
    load = drawn_load(runs)
    return {
        "passes": result.passes,
        "state": _state(result),
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "goal_frac": result.candidate.goal_frac,
        "slo": {key: limit for key, limit in scenario.slo.default if limit is not None},
        "slo_classes": list(scenario.slo.classes),
        "tolerance_frac": result.tolerance_frac,
        "false_alarms_frac": FALSE_ALARMS,
        "n_seeds": result.n_seeds,
        "loss": _loss(result),
        "baseline": {
            "name": result.against,
            "simserve": baseline.simserve,
            "goodput_per_s": baseline.goodput_per_s.value,
            "goodput_low_per_s": baseline.goodput_per_s.low,
            "goodput_high_per_s": baseline.goodput_per_s.high,
            "n_seeds": baseline.n_seeds,
            "first_seed": baseline.first_seed,
            "fails_first": binding(baseline.loads[1].facts),
        },
        "candidate": {
            "simserve": __version__,
            "goodput_per_s": result.loss and baseline.goodput_per_s.value * (1 - result.loss.frac),
            "fails_first": binding(_facts_at(result, curve.scales[1])) if curve else binding(now),
            "holds_every_load": None if isinstance(result.curve, AttainmentCurve) else result.curve.is_met,
        },
        "at": {"baseline": baseline.facts, "candidate": now},
        "parts": [_part(part.key, part.label, part.unit, baseline.facts, now) for part in PARTS],
        "changes": [vars(each) for each in result.changes],
        "load": load and load.as_data(),
        "warnings": [*_warnings(load), *warnings(scenario.setups), *reservation_warnings(runs)],
    }


def _warnings(load: DrawnLoad | None) -> list[str]:
    if load is None or abs(load.off_frac) <= LOAD_TOLERANCE_FRAC:
        return []
    drawn = f"the seeds drew {load.drawn_per_s:.3g} req/s of a nominal {load.nominal_per_s:.3g} ({load.off_frac:+.1%})"
    return [f"{drawn}: p99 goodput is in drawn req/s; make the runs longer to come nearer"]


def _state(result: Check) -> str:
    """Return unchanged | better | same | within tolerance | unclear | lost."""
    if result.loss is None:
        return "lost" if result.answer == "fail" else "better"
    if result.answer == "fail":
        return "lost"
    if result.answer == "open":
        return "unclear"
    if result.loss.log == result.loss.error == 0:
        return "unchanged"
    low, high = result.loss.interval()
    return "better" if high < 0 else "within tolerance" if low > 0 else "same"


def _loss(result: Check) -> dict[str, Any] | None:
    if result.loss is None:
        return None
    low, high = result.loss.interval()
    doubt = significance(len(LOOKS))
    return {
        "frac": result.loss.frac,
        "low_frac": low,
        "high_frac": high,
        "confidence": CONFIDENCE,
        "surely_at_least_frac": result.loss.at_least(doubt),
        "surely_at_most_frac": result.loss.at_most(doubt),
        "surely": 1 - doubt,
        "is_paired": result.loss.is_paired,
        "smallest_found_frac": result.loss.smallest_found(result.tolerance_frac, doubt),
    }


def _facts_now(result: Check) -> dict[str, Any]:
    """Return the candidate's facts at the load and with the seeds of the baseline's."""
    return _facts_at(result, result.baseline.grid.below)


def _facts_at(result: Check, scale: float) -> dict[str, Any]:
    n_seeds = min(result.n_seeds, LOOKS[0])
    return load_facts(scale, result.candidate.runs(scale, n_seeds))


def _part(key: str, label: str, unit: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    a, b = (side["parts"].get(key) for side in (before, now))
    known = a is not None and b is not None
    return {
        "key": key,
        "label": label,
        "unit": unit,
        "baseline": a,
        "candidate": b,
        "change_frac": b / a - 1 if known and a else (0.0 if known and not b else math.nan),
    }
