"""Check facts: what the gate found, as plain data, for JSON, summaries and test reports."""

import math
from collections.abc import Mapping
from typing import Any

from simserve import __version__
from simserve.study.check.check import Check
from simserve.study.check.gate import FALSE_ALARMS, LOOKS, Curve, doubt_of
from simserve.study.check.load_facts import PARTS, binding, load_facts
from simserve.study.intervals import CONFIDENCE


def check_facts(found: Check) -> dict[str, Any]:
    """What `simserve check --json` prints."""
    scenario, baseline = found.candidate.scenario, found.baseline
    curve = found.curve if isinstance(found.curve, Curve) else None
    now = _facts_now(found)
    return {
        "passes": found.passes,
        "state": _state(found),
        "scenario": {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed},
        "goal_frac": found.candidate.goal_frac,
        "slo": {key: limit for key, limit in scenario.slo.default if limit is not None},
        "slo_classes": list(scenario.slo.classes),
        "tolerance_frac": found.tolerance_frac,
        "false_alarms_frac": FALSE_ALARMS,
        "n_seeds": found.n_seeds,
        "loss": _loss(found),
        "baseline": {
            "name": found.against,
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
            "goodput_per_s": found.loss and baseline.goodput_per_s.value * (1 - found.loss.frac),
            "fails_first": binding(_facts_at(found, curve.scales[1])) if curve else binding(now),
            "holds_every_load": None if isinstance(found.curve, Curve) else found.curve.is_met,
        },
        "at": {"baseline": baseline.facts, "candidate": now},
        "parts": [_part(part.key, part.label, part.unit, baseline.facts, now) for part in PARTS],
        "changes": [vars(each) for each in found.changes],
    }


def _state(found: Check) -> str:
    """In a word: unchanged | better | same | within tolerance | unclear | lost."""
    if found.loss is None:
        return "lost" if found.answer == "fail" else "better"
    if found.answer == "fail":
        return "lost"
    if found.answer == "open":
        return "unclear"
    if found.loss.log == found.loss.error == 0:
        return "unchanged"
    low, high = found.loss.interval()
    return "better" if high < 0 else "within tolerance" if low > 0 else "same"


def _loss(found: Check) -> dict[str, Any] | None:
    if found.loss is None:
        return None
    low, high = found.loss.interval()
    doubt = doubt_of(len(LOOKS))
    return {
        "frac": found.loss.frac,
        "low_frac": low,
        "high_frac": high,
        "confidence": CONFIDENCE,
        "surely_at_least_frac": found.loss.at_least(doubt),
        "surely_at_most_frac": found.loss.at_most(doubt),
        "surely": 1 - doubt,
        "is_paired": found.loss.is_paired,
        "smallest_found_frac": found.loss.smallest_found(found.tolerance_frac, doubt),
    }


def _facts_now(found: Check) -> dict[str, Any]:
    """Of the candidate, at the load and with the seeds of the baseline's facts."""
    return _facts_at(found, found.baseline.grid.below)


def _facts_at(found: Check, scale: float) -> dict[str, Any]:
    n_seeds = min(found.n_seeds, LOOKS[0])
    return load_facts(scale, found.candidate.runs(scale, n_seeds))


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
