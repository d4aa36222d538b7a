"""SLO answer: the decision from the outcomes of runs of one load, and how many more seeds an edge takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simserve.metrics.answer import Outcome, outcomes
from simserve.study.intervals import Estimate
from simserve.study.nominal import slo_answer as slo_answer

MOST_SEEDS = 128
"""Seeds of a load on the edge of its goal, at most."""

Answer = Mapping[str, Any]
"""As a summary holds it: decision, attained_frac, low_frac, high_frac, n_runs and more."""


def attained_of(answer: Answer) -> Estimate:
    """Return the attainment with its interval."""
    return Estimate(*(answer[key] for key in ("attained_frac", "low_frac", "high_frac")))


def mean_load(loads: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return nominal and drawn load over runs of one load; no nominal rate where a run has none."""
    known = [load for load in loads if load and load["nominal_per_s"]]
    if not known or len(known) < len(loads):
        return {"kind": "requests", "nominal_per_s": None, "drawn_per_s": None, "off_frac": None}
    nominal, drawn = (sum(load[key] for load in known) / len(known) for key in ("nominal_per_s", "drawn_per_s"))
    return {"kind": known[0]["kind"], "nominal_per_s": nominal, "drawn_per_s": drawn, "off_frac": drawn / nominal - 1}


def more_seeds(answer: Answer, n_seeds: int, most: int = MOST_SEEDS) -> int:
    """Return how many seeds may decide an edge: two to four times as many as it had, as far as there are more."""
    attained, goal_frac = attained_of(answer), answer["goal_frac"]
    gap = abs(attained.value - goal_frac)
    half = attained.high - attained.value if attained.value < goal_frac else attained.value - attained.low
    factor = (half / gap) ** 2 if gap > 0 and not math.isnan(half) else math.inf
    return max(n_seeds, min(most, math.ceil(n_seeds * min(max(factor, 2.0), 4.0))))


def outcome_facts(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the outcomes of a run as plain data."""
    return [{"slo_class": name, **asdict(each)} for name, each in outcomes(summary).items()]


def outcomes_from(facts: Sequence[Mapping[str, Any]]) -> dict[str | None, Outcome]:
    """Read the outcomes of a run from `outcome_facts`."""
    return {each["slo_class"]: _outcome(each) for each in facts}


def _outcome(facts: Mapping[str, Any]) -> Outcome:
    ends = facts["interval"]
    known = {key: value for key, value in facts.items() if key not in ("slo_class", "interval")}
    return Outcome(**known, interval=None if ends is None else (ends[0], ends[1]))
