"""Load curve words: how far each SLO and class alone would hold, and where latency turns up."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.formats import NONE, SHORT, goal, listed, number, rate, seconds, share


@dataclass(frozen=True)
class LoadUnit:
    """How a load is told."""

    key: str
    """Where it stands in an answer and in a point."""
    name: str
    title: str
    """Title of the axis."""
    bare: Callable[[float], str]
    """Without its name."""

    def format(self, value: float) -> str:
        """`13.4 requests/s`."""
        return f"{self.bare(value)} {self.name}"

    def interval(self, ends: Mapping[str, Any]) -> str:
        """Return `13.2–13.6`; a dash where it is not known."""
        low, high = number(ends["low"]), number(ends["high"])
        return NONE if low is None or high is None else f"{self.bare(low)}–{self.bare(high)}"


def _whole(value: float) -> str:
    return f"{math.floor(value + 1e-9):,}"


REQUESTS_PER_S = LoadUnit("offered_per_s", "req/s", "Offered load, req/s", rate)
CLIENTS = LoadUnit("concurrency", "clients at once", "Clients at once", _whole)
REPLICAS = LoadUnit("replicas", "replicas", "Replicas", _whole)

LITTLE = 0.005
"""Room that reads as none."""

TURNING = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies that have a knee on the page if no SLO names others."""


def sentences(result: Mapping[str, Any], unit: LoadUnit) -> list[str]:
    """What to say besides the answer."""
    text = [_alone(result, unit), _knee(result, unit)]
    return [each for each in text if each]


def _alone(result: Mapping[str, Any], unit: LoadUnit) -> str:
    """The one that binds first, and how much further the others would hold."""
    parts = sorted(result.get("alone") or [], key=lambda each: float(each["room_frac"]))
    if not parts:
        return ""
    if (
        all(each["ends_with"] == "queue" and each["state"] == "found" for each in parts)
        and parts[-1]["room_frac"] < LITTLE
    ):
        return "No SLO binds before the queue begins to grow."
    others = [f"{named(each)} alone {_holds(each, unit).removeprefix('would hold ')}" for each in parts[1:]]
    first = named(parts[0])
    return f"{first[0].upper()}{first[1:]} binds: alone it {_holds(parts[0], unit)}; {listed(others)}."


def named(each: Mapping[str, Any]) -> str:
    """`TTFT`, or `class batch`."""
    return SHORT[each["slo"]] if each["slo"] else f"class {each['slo_class']}"


def _holds(each: Mapping[str, Any], unit: LoadUnit) -> str:
    at = unit.format(each[unit.key]["value"])
    if each["state"] == "no load":
        return f"fails even at {at}"
    if each["state"] == "every load":
        return f"still holds at {at}"
    ends = ", where the queue begins to grow" if each["ends_with"] == "queue" else ""
    return f"would hold to {at} ({room(each)}{ends})"


def room(each: Mapping[str, Any]) -> str:
    """`+6.3%`: how much further than the whole."""
    frac = each["room_frac"]
    if abs(frac) < LITTLE:
        return "hardly further"
    return f"{frac * 100:+.2g}%" if frac < 1 else f"{1 + frac:.2g} times as far"


def turning(result: Mapping[str, Any]) -> list[str]:
    """Return the latencies that have a knee on the page: those of an SLO."""
    given = {*result["slo"], *(key for targets in result["slo_classes"].values() for key in targets)}
    return [key for key in result.get("knees") or {} if key in given or (not given and key in TURNING)]


def _knee(result: Mapping[str, Any], unit: LoadUnit) -> str:
    turned = {name: result["knees"][name] for name in turning(result)}
    if not turned:
        return ""
    sentences = []
    for name, each in turned.items():
        light = f"its light-load value ({seconds(each['light_s'])})"
        at = unit.format(each[unit.key]) if each[unit.key] is not None else None
        rises = "doubles" if each["rise"] == 2 else f"rises {each['rise']:g}-fold over"
        sentences.append(f"p99 {SHORT[name]} {rises} {light} {f'at {at}' if at else 'at no load that was tried'}")
    return f"{'; '.join(sentences)}."


def alone_rows(result: Mapping[str, Any], unit: LoadUnit) -> list[Sequence[str]]:
    """A row an SLO or class, below the heads of the columns."""
    rows: list[Sequence[str]] = [("held to", "highest", "95% CI", "beyond the answer", "then")]
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
        return f"met by {share(each['attained_frac'])} there"
    if each["state"] == "every load":
        return "not looked for further"
    return "the queue only grows" if each["ends_with"] == "queue" else "it is missed"
