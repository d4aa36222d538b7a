"""Load curve text: the highest load for each SLO and class alone, and the knees of latency."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.metrics.answers.capacity import CapacityStudy, ConcurrencyCapacity, RateCapacity
from simserve.metrics.answers.capacity_loads import CriterionLoad
from simserve.metrics.answers.parts import Bounded
from simserve.report.document import Table
from simserve.report.formats import NONE, SHORT, goal, listed, rate, seconds, share

Searched = RateCapacity | ConcurrencyCapacity
"""An answer to the question for the highest load."""


@dataclass(frozen=True)
class LoadUnit:
    """Unit of a load, and its format."""

    of: Callable[[Any], Any]
    """Returns the load of a point, or the highest for a criterion, or that of a knee."""
    name: str
    title: str
    """Title of an axis."""
    bare: Callable[[float], str]
    """Formats the number without the unit."""

    def format(self, value: float) -> str:
        """Return `13.4 req/s`."""
        return f"{self.bare(value)} {self.name}"

    def span(self, ends: Sequence[float | None]) -> str:
        """Return `13.2–13.6`."""
        return f"{self.bare(ends[0] or 0.0)}–{self.bare(ends[1] or 0.0)}"

    def interval(self, ends: Bounded) -> str:
        """Return `13.2–13.6`; a dash where it is unknown."""
        return NONE if ends.low is None or ends.high is None else f"{self.bare(ends.low)}–{self.bare(ends.high)}"


def _whole(value: float) -> str:
    return f"{math.floor(value + 1e-9):,}"


REQUESTS_PER_S = LoadUnit(lambda load: load.offered_per_s, "req/s", "Offered load, req/s", rate)
CLIENTS = LoadUnit(lambda load: load.concurrency, "clients at once", "Clients at once", _whole)
REPLICAS = LoadUnit(lambda load: load.replicas, "replicas", "Replicas", _whole)
UNITS = {"rate": REQUESTS_PER_S, "concurrency": CLIENTS}
"""Unit of the load of a curve, by kind of question."""

LITTLE = 0.005
"""Headroom that is shown as none."""

KNEES = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies with a knee in the text where the scenario has no SLO."""


def sentences(result: Searched, unit: LoadUnit) -> list[str]:
    """Return which SLO binds, and the knees."""
    return [each for each in (_binding(result, unit), _knee(result, unit)) if each]


def _binding(result: Searched, unit: LoadUnit) -> str:
    """Return the SLO or class that binds, and the highest loads of the others."""
    parts = sorted(result.alone, key=lambda each: each.room_frac)
    if not parts:
        return ""
    if all(each.ends_with == "queue" and each.state == "found" for each in parts) and parts[-1].room_frac < LITTLE:
        return "No SLO binds before the queue begins to grow."
    others = [f"{named(each)} alone {_limit_of(each, unit)}" for each in parts[1:]]
    first = named(parts[0])
    return f"{first[0].upper()}{first[1:]} binds: alone it {_limit_of(parts[0], unit)}; {listed(others)}."


def named(each: CriterionLoad) -> str:
    """Return `TTFT`, or `class batch`."""
    return SHORT[each.slo] if each.slo else f"class {each.slo_class}"


def _limit_of(each: CriterionLoad, unit: LoadUnit) -> str:
    at = unit.format(unit.of(each).value)
    if each.state == "no load":
        return f"fails even at {at}"
    if each.state == "every load":
        return f"is still met at {at}"
    cause = ", where the queue begins to grow" if each.ends_with == "queue" else ""
    return f"is met up to {at} ({room(each)}{cause})"


def room(each: CriterionLoad) -> str:
    """Return the headroom beyond the capacity: `+6.3%`."""
    frac = each.room_frac
    if abs(frac) < LITTLE:
        return "no headroom"
    return f"{frac * 100:+.2g}%" if frac < 1 else f"{1 + frac:.2g} times the capacity"


def limited(result: CapacityStudy) -> set[str]:
    """Return the latencies with an SLO, of all requests or of a class."""
    return {*result.slo, *(key for targets in result.slo_classes.values() for key in targets)}


def knee_latencies(result: Searched) -> list[str]:
    """Return the latencies with a knee to show: those with an SLO."""
    given = limited(result)
    return [key for key in result.knees if key in given or (not given and key in KNEES)]


def _knee(result: Searched, unit: LoadUnit) -> str:
    sentences = []
    for name in knee_latencies(result):
        knee = result.knees[name]
        light, load = f"its light-load value ({seconds(knee.light_s)})", unit.of(knee)
        at = "no load of the search" if load is None else unit.format(load)
        rises = "doubles" if knee.rise == 2 else f"rises {knee.rise:g}-fold over"
        sentences.append(f"p99 {SHORT[name]} {rises} {light} at {at}")
    return f"{'; '.join(sentences)}." if sentences else ""


def alone_rows(result: Searched, unit: LoadUnit) -> Table:
    """Return one row per SLO or class."""
    rows: list[Sequence[str]] = [("", "Highest load", "95% CI", "Headroom", "Beyond it")]
    for each in result.alone:
        at, limit_s = unit.of(each), None if result.slo_classes else result.slo.get(each.slo or "")
        rows.append(
            (
                named(each) if limit_s is None else f"{named(each)} ≤ {goal(limit_s)}",
                ("≥ " if each.state == "every load" else "< " if each.state == "no load" else "")
                + unit.format(at.value),
                unit.interval(at),
                room(each),
                _then(each),
            )
        )
    return Table.of(rows)


def _then(each: CriterionLoad) -> str:
    if each.state == "no load":
        return f"{share(each.attained_frac)} attain it there"
    if each.state == "every load":
        return "search stopped"
    return "the queue only grows" if each.ends_with == "queue" else "it is missed"
