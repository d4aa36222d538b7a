"""Load curve text: the highest load for each SLO and class alone, and the knees of latency."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.formats import NONE, SHORT, goal, listed, number, rate, seconds, share


@dataclass(frozen=True)
class LoadUnit:
    """Unit of a load, and its format."""

    key: str
    """Key of the load in an answer and in a point."""
    name: str
    title: str
    """Title of an axis."""
    bare: Callable[[float], str]
    """Formats the number without the unit."""

    def format(self, value: float) -> str:
        """Return `13.4 req/s`."""
        return f"{self.bare(value)} {self.name}"

    def interval(self, ends: Mapping[str, Any]) -> str:
        """Return `13.2–13.6`; a dash where it is unknown."""
        low, high = number(ends["low"]), number(ends["high"])
        return NONE if low is None or high is None else f"{self.bare(low)}–{self.bare(high)}"


def _whole(value: float) -> str:
    return f"{math.floor(value + 1e-9):,}"


REQUESTS_PER_S = LoadUnit("offered_per_s", "req/s", "Offered load, req/s", rate)
CLIENTS = LoadUnit("concurrency", "clients at once", "Clients at once", _whole)
REPLICAS = LoadUnit("replicas", "replicas", "Replicas", _whole)
UNITS = {"rate": REQUESTS_PER_S, "concurrency": CLIENTS}
"""Unit of the load of a curve, by kind of question."""

LITTLE = 0.005
"""Headroom that is shown as none."""

KNEES = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies with a knee in the text where the scenario has no SLO."""


def sentences(result: Mapping[str, Any], unit: LoadUnit) -> list[str]:
    """Return which SLO binds, and the knees."""
    return [each for each in (_binding(result, unit), _knee(result, unit)) if each]


def _binding(result: Mapping[str, Any], unit: LoadUnit) -> str:
    """Return the SLO or class that binds, and the highest loads of the others."""
    parts = sorted(result.get("alone") or [], key=lambda each: float(each["room_frac"]))
    if not parts:
        return ""
    if (
        all(each["ends_with"] == "queue" and each["state"] == "found" for each in parts)
        and parts[-1]["room_frac"] < LITTLE
    ):
        return "No SLO binds before the queue begins to grow."
    others = [f"{named(each)} alone {_limit_of(each, unit)}" for each in parts[1:]]
    first = named(parts[0])
    return f"{first[0].upper()}{first[1:]} binds: alone it {_limit_of(parts[0], unit)}; {listed(others)}."


def named(each: Mapping[str, Any]) -> str:
    """Return `TTFT`, or `class batch`."""
    return SHORT[each["slo"]] if each["slo"] else f"class {each['slo_class']}"


def _limit_of(each: Mapping[str, Any], unit: LoadUnit) -> str:
    at = unit.format(each[unit.key]["value"])
    if each["state"] == "no load":
        return f"fails even at {at}"
    if each["state"] == "every load":
        return f"is still met at {at}"
    cause = ", where the queue begins to grow" if each["ends_with"] == "queue" else ""
    return f"is met up to {at} ({room(each)}{cause})"


def room(each: Mapping[str, Any]) -> str:
    """Return the headroom beyond the capacity: `+6.3%`."""
    frac = each["room_frac"]
    if abs(frac) < LITTLE:
        return "no headroom"
    return f"{frac * 100:+.2g}%" if frac < 1 else f"{1 + frac:.2g} times the capacity"


def limited(result: Mapping[str, Any]) -> set[str]:
    """Return the latencies with an SLO, of all requests or of a class."""
    return {*result["slo"], *(key for targets in result["slo_classes"].values() for key in targets)}


def knee_latencies(result: Mapping[str, Any]) -> list[str]:
    """Return the latencies with a knee to show: those with an SLO."""
    given = limited(result)
    return [key for key in result.get("knees") or {} if key in given or (not given and key in KNEES)]


def _knee(result: Mapping[str, Any], unit: LoadUnit) -> str:
    knees = {name: result["knees"][name] for name in knee_latencies(result)}
    if not knees:
        return ""
    sentences = []
    for name, each in knees.items():
        light = f"its light-load value ({seconds(each['light_s'])})"
        at = unit.format(each[unit.key]) if each[unit.key] is not None else None
        rises = "doubles" if each["rise"] == 2 else f"rises {each['rise']:g}-fold over"
        sentences.append(f"p99 {SHORT[name]} {rises} {light} {f'at {at}' if at else 'at no load of the search'}")
    return f"{'; '.join(sentences)}."


def alone_rows(result: Mapping[str, Any], unit: LoadUnit) -> list[Sequence[str]]:
    """Return the column heads, then one row per SLO or class."""
    rows: list[Sequence[str]] = [("criterion", "highest load", "95% CI", "headroom", "beyond it")]
    for each in result.get("alone") or []:
        at = each[unit.key]
        rows.append(
            (
                f"{named(each)}{_limit(result, each)}",
                ("≥ " if each["state"] == "every load" else "< " if each["state"] == "no load" else "")
                + unit.format(at["value"]),
                unit.interval(at),
                room(each),
                _then(each),
            )
        )
    return rows


def _limit(result: Mapping[str, Any], each: Mapping[str, Any]) -> str:
    limit = result["slo"].get(each["slo"])
    return f" ≤ {goal(limit)}" if limit is not None and not result["slo_classes"] else ""


def _then(each: Mapping[str, Any]) -> str:
    if each["state"] == "no load":
        return f"{share(each['attained_frac'])} attain it there"
    if each["state"] == "every load":
        return "search stopped"
    return "the queue only grows" if each["ends_with"] == "queue" else "it is missed"
