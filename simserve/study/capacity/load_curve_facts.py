"""Surroundings facts: what lies around a capacity, as plain data: SLOs and classes alone, the curve, its knees."""

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
    """What a load is told in."""

    key: str
    of: Callable[[Boundary | LoadPoint], float]
    more: float = 1.0
    """What the seeds of the answer offered, over what the first of them did: a curve of these lies where it belongs."""


CLIENTS = Unit("concurrency", lambda result: result.scale if isinstance(result, LoadPoint) else result.load.value)


def requests_per_s(capacity: Capacity) -> Unit:
    """Rates as the answer's seeds have them."""
    more = capacity.below.offered_per_s / capacity.below.first(FIRST_SEEDS).offered_per_s
    return Unit("offered_per_s", _offered_per_s, more)


def _offered_per_s(result: Boundary | LoadPoint) -> float:
    return result.offered_per_s if isinstance(result, LoadPoint) else result.offered_per_s.value


def load_curve_facts(result: LoadCurve, capacity: Estimate, unit: Unit, goal_frac: float) -> dict[str, Any]:
    """`alone`, the highest load for each SLO and class; `curve`, latency by load; `knees`, where it turns."""
    return {
        "alone": [_alone(each, capacity, unit) for each in result.alone],
        "curve": [{**point_facts(point, goal_frac), unit.key: unit.of(point) * unit.more} for point in result.curve],
        "knees": {
            key: {unit.key: turned.load, "light_s": turned.light_s, "rise": RISE, "level": LEVEL}
            for key in CURVES
            if (turned := knee([(unit.of(each) * unit.more, each.latency_s(key, LEVEL)) for each in result.curve]))
        },
    }


def _alone(each: SingleCriterion, capacity: Estimate, unit: Unit) -> dict[str, Any]:
    """The load and its interval, and the room beyond the capacity; a state as of the whole."""
    result, what = each.result, each.criterion
    room_frac = unit.of(result) / unit.of(each.whole) - 1
    by = capacity.value * (1 + room_frac)
    common = {"slo": what.slo, "slo_class": what.slo_class, "room_frac": room_frac}
    if isinstance(result, LoadPoint):
        state = "every load" if each.is_met else "no load"
        more = {"attained_frac": result.share_of(what), "ends_with": _end(result)}
        return {**common, "state": state, unit.key: {"value": by, "low": None, "high": None}, **more}
    ends = {key: value / result.load.value * by for key, value in vars(result.load).items()}
    return {**common, "state": "found", unit.key: ends, "attained_frac": None, "ends_with": _end(result.above)}


def _end(above: LoadPoint) -> str:
    """What fails beyond: the queue only grows, or the SLO is missed."""
    return "queue" if above.is_saturated else "slo"
