"""A comparison in words: one sentence that says which side is better, and a row a measure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import NONE, listed, number, rate, seconds, share

MOST_NAMED = 3
"""Measures of one kind that the sentence names; the table has all."""

LISTED_FIRST = ("slo_attainment.frac", "goodput.per_s", "ttft_s.p99", "tpot_s.p99", "e2e_s.p99")


def sentence(result: Mapping[str, Any]) -> str:
    """Which side is better at what, and by how much; from what `simserve compare --json` prints."""
    a, b, measures = result["a"], result["b"], result["measures"]
    head = f"{b} against {a} ({result['how']})"
    if all(each["verdict"] == "same" for each in measures):
        return f"{head}: no difference at all."
    if not any(number(each["low"]) is not None for each in measures):
        return f"{head}: whether chance did this cannot be told from one run each; compare scenarios for intervals."
    kinds = {kind: [each for each in measures if each["verdict"] == kind] for kind in ("better", "worse")}
    text = [f"{kind} at {_named(each)}" for kind, each in kinds.items() if each]
    if not text:
        return f"{head}: no difference that chance could not have made."
    return f"{head}: {b} is {', and '.join(text)}."


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a measure, below the heads of the columns."""
    head = ("", "A", "B", "change", f"{result['confidence'] * 100:.0f}% interval of B − A", "B is")
    return [head, *(_row(each) for each in result["measures"])]


def _row(each: Mapping[str, Any]) -> Sequence[str]:
    unit = each["unit"]
    ends = [number(each[name]) for name in ("low", "high")]
    interval = NONE if None in ends else f"{_signed(ends[0], unit)} to {_signed(ends[1], unit)}"
    frac = number(each["change_frac"])
    changed = NONE if frac is None else f"{frac:+z.1%}"
    return (each["label"], amount(each["a"], unit), amount(each["b"], unit), changed, interval, each["verdict"])


def _named(measures: Sequence[Mapping[str, Any]]) -> str:
    """`p99 TTFT (-12%) and goodput (+3%)`, the most telling first."""
    order = {key: place for place, key in enumerate(LISTED_FIRST)}
    ranked = sorted(measures, key=lambda each: order.get(each["key"], len(order)))
    n_more = len(ranked) - MOST_NAMED
    more = [f"{n_more} more"] if n_more > 0 else []
    return listed([f"{each['label']} ({change(each)})" for each in ranked[:MOST_NAMED]] + more)


def change(each: Mapping[str, Any]) -> str:
    """By how much B differs: `-12%`, or in points where shares differ."""
    frac = number(each["change_frac"])
    if frac is None or each["unit"] == "frac":
        return _signed(each["difference"], each["unit"])
    return f"{frac:+.2g}".replace("e+", "e") if abs(frac) > 10 else f"{frac * 100:+.3g}%"


def amount(value: Any, unit: str) -> str:
    """A measure's value in its unit."""
    if unit == "frac":
        return share(value)
    return seconds(value) if unit == "s" else rate(value)


def _signed(value: Any, unit: str) -> str:
    """A difference with its sign; of shares in points of a per cent."""
    gap = number(value)
    if gap is None:
        return NONE
    if unit == "frac":
        return f"{gap * 100:+.3g} points"
    sign = "-" if math.copysign(1.0, gap) < 0 else "+"
    return sign + (seconds(abs(gap)) if unit == "s" else rate(abs(gap)))
