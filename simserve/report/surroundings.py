"""What lies around a capacity, in words: how far each SLO and class alone would hold, and where latency turns up."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.report.formats import SHORT, goal, listed, rate, seconds, share

Load = Callable[[float], str]
"""How a load is told: `13.4 requests/s`."""

LITTLE = 0.005
"""Room that reads as none."""

TURNING = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies whose knee is told, where no SLO says which matter."""


def requests_per_s(value: float) -> str:
    """A rate."""
    return f"{rate(value)} requests/s"


def clients(value: float) -> str:
    """A concurrency."""
    return f"{math.floor(value + 1e-9):,} at once"


def sentences(found: Mapping[str, Any], key: str, load: Load) -> list[str]:
    """What to say besides the answer; `key` is where a load stands: `offered_per_s`."""
    said = [_alone(found, key, load), _knee(found, key, load)]
    return [each for each in said if each]


def _alone(found: Mapping[str, Any], key: str, load: Load) -> str:
    """The one that binds first, and how much further the others would hold."""
    parts = sorted(found.get("alone") or [], key=lambda each: float(each["room_frac"]))
    if not parts:
        return ""
    if (
        all(each["ends_with"] == "queue" and each["state"] == "found" for each in parts)
        and parts[-1]["room_frac"] < LITTLE
    ):
        return "No SLO binds before the queue begins to grow."
    others = [f"{named(each)} alone {_holds(each, key, load)}" for each in parts[1:]]
    return f"{named(parts[0])} binds: alone it {_holds(parts[0], key, load)}; {listed(others)}."


def named(each: Mapping[str, Any]) -> str:
    """`TTFT`, or `class batch`."""
    return SHORT[each["slo"]] if each["slo"] else f"class {each['slo_class']}"


def _holds(each: Mapping[str, Any], key: str, load: Load) -> str:
    at = load(each[key]["value"])
    if each["state"] == "no load":
        return f"fails even at {at}"
    if each["state"] == "every load":
        return f"still holds at {at}"
    ends = ", where the queue begins to grow" if each["ends_with"] == "queue" else ""
    return f"would hold to {at} ({room(each)}{ends})"


def room(each: Mapping[str, Any]) -> str:
    """`+6.3 %`: how much further than the whole."""
    frac = each["room_frac"]
    if abs(frac) < LITTLE:
        return "hardly further"
    return f"{frac * 100:+.2g} %" if frac < 1 else f"{1 + frac:.2g} times as far"


def turning(found: Mapping[str, Any]) -> list[str]:
    """Latencies whose knees matter: those of an SLO."""
    given = {*found["slo"], *(key for targets in found["slo_classes"].values() for key in targets)}
    return [key for key in found.get("knees") or {} if key in given or (not given and key in TURNING)]


def _knee(found: Mapping[str, Any], key: str, load: Load) -> str:
    turned = {name: found["knees"][name] for name in turning(found)}
    if not turned:
        return ""
    first = next(iter(turned.values()))
    told = [
        f"p99 {SHORT[name]} at {load(each[key])}" if each[key] is not None else f"p99 {SHORT[name]} nowhere below"
        for name, each in turned.items()
    ]
    light = listed([f"{seconds(each['light_s'])}" for each in turned.values()])
    return f"The knee, where it is {first['rise']:g} times what it is under light load ({light}): {listed(told)}."


def alone_rows(found: Mapping[str, Any], key: str, load: Load) -> list[Sequence[str]]:
    """A row an SLO or class, below the heads of the columns."""
    rows: list[Sequence[str]] = [("held to", "highest", "interval", "beyond the answer", "then")]
    for each in found.get("alone") or []:
        at, known = each[key], each[key]["low"] is not None
        rows.append(
            (
                f"{named(each)}{_limit(found, each)}",
                ("≥ " if each["state"] == "every load" else "< " if each["state"] == "no load" else "")
                + load(at["value"]),
                f"{rate(at['low'])} to {rate(at['high'])}" if known else "–",
                room(each),
                _then(each),
            )
        )
    return rows


def _limit(found: Mapping[str, Any], each: Mapping[str, Any]) -> str:
    limit = found["slo"].get(each["slo"])
    return f" ≤ {goal(limit)}" if limit is not None and not found["slo_classes"] else ""


def _then(each: Mapping[str, Any]) -> str:
    if each["state"] == "no load":
        return f"met by {share(each['attained_frac'])} there"
    if each["state"] == "every load":
        return "not looked for further"
    return "the queue only grows" if each["ends_with"] == "queue" else "it is missed"
