"""Load curve facts: SLOs and classes alone, latency against load and its knees, as plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simserve.study.capacity.boundary import FIRST_SEEDS, Boundary
from simserve.study.capacity.facts import point_facts
from simserve.study.capacity.knee import LEVEL, RISE, knee
from simserve.study.capacity.load_curve import LoadCurve, SingleCriterion
from simserve.study.capacity.point import LoadPoint
from simserve.study.capacity.rate import Capacity
from simserve.study.intervals import Estimate

CURVES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


@dataclass(frozen=True)
class Unit:
    """Unit of a load."""

    key: str
    of: Callable[[Boundary | LoadPoint], float]
    seed_ratio: float = 1.0
    """Rate of all seeds of the answer over that of the first ones: puts the curve on the axis of the answer."""


CLIENTS = Unit("concurrency", lambda highest: highest.scale if isinstance(highest, LoadPoint) else highest.load.value)


def requests_per_s(capacity: Capacity) -> Unit:
    """Return the unit of rates, scaled to all seeds of the answer."""
    ratio = capacity.below.offered_per_s / capacity.below.first(FIRST_SEEDS).offered_per_s
    return Unit("offered_per_s", _offered_per_s, ratio)


def _offered_per_s(highest: Boundary | LoadPoint) -> float:
    return highest.offered_per_s if isinstance(highest, LoadPoint) else highest.offered_per_s.value


def load_curve_facts(loads: LoadCurve, capacity: Estimate, unit: Unit, goal_frac: float) -> dict[str, Any]:
    """Return `alone`, the highest load for each SLO and class; `curve`, latency by load; and its `knees`."""
    return {
        "alone": [_single(each, capacity, unit) for each in loads.single],
        "curve": [{**point_facts(each, goal_frac), unit.key: unit.of(each) * unit.seed_ratio} for each in loads.curve],
        "knees": {
            key: {unit.key: turn.load, "light_s": turn.light_s, "rise": RISE, "level": LEVEL}
            for key in CURVES
            if (turn := knee([(unit.of(each) * unit.seed_ratio, each.latency_s(key, LEVEL)) for each in loads.curve]))
        },
    }


def _single(each: SingleCriterion, capacity: Estimate, unit: Unit) -> dict[str, Any]:
    """Return the highest load for a criterion, its interval, its state, and the headroom beyond the capacity."""
    highest, criterion = each.highest, each.criterion
    room_frac = unit.of(highest) / unit.of(each.whole) - 1
    by = capacity.value * (1 + room_frac)
    common = {"slo": criterion.slo, "slo_class": criterion.slo_class, "room_frac": room_frac}
    if isinstance(highest, LoadPoint):
        state = "every load" if each.is_met else "no load"
        more = {"attained_frac": highest.share_of(criterion), "ends_with": _end(highest)}
        return {**common, "state": state, unit.key: {"value": by, "low": None, "high": None}, **more}
    ends = {key: value / highest.load.value * by for key, value in vars(highest.load).items()}
    return {**common, "state": "found", unit.key: ends, "attained_frac": None, "ends_with": _end(highest.above)}


def _end(above: LoadPoint) -> str:
    """Return what fails beyond: `queue` where it saturates, else `slo`."""
    return "queue" if above.is_saturated else "slo"
