"""A comparison in words: which side carries more load, then the measures, a row each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.check import change_interval, percent
from simserve.report.formats import NONE, SHORT, amount, listed, number, plural, rate, seconds

MOST_NAMED = 3
"""Measures of one kind that the sentence names; the table has all."""

LISTED_FIRST = ("slo_attainment.frac", "goodput.per_s", "ttft_s.p99", "tpot_s.p99", "e2e_s.p99")

MORE_SEEDS = 4
"""Times as many seeds halve an interval."""


def sentence(result: Mapping[str, Any]) -> str:
    """Return all sentences of the answer, from what `simserve compare --json` prints."""
    return " ".join(paragraphs(result))


def paragraphs(result: Mapping[str, Any]) -> list[str]:
    """Return the decision by load, with its cause and the next command; then what the measures say."""
    texts = ([_decision(result), _fails_first(result)], [_measures(result), _drawn(result)])
    return [" ".join(filter(None, each)) for each in texts if any(each)]


def title(result: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return state and title of the page where load decides, else None."""
    decision, b = result.get("decision") or {}, result["b"]
    outcome = decision.get("verdict")
    if outcome is None:
        return None
    if outcome == "unclear":
        return ("few", f"{b}: one run each") if decision["n_seeds"] == 1 else ("edge", "Statistically tied")
    if outcome == "same":
        return "none", "No change"
    more = number(decision["more_frac"])
    size = "" if more is None else f"{percent(abs(more))} "
    return (
        ("met", f"{b} carries {size}more load") if outcome == "better" else ("missed", f"{b} carries {size}less load")
    )


def _decision(result: Mapping[str, Any]) -> str:
    decision = result.get("decision")
    if not decision:
        return ""
    if decision["verdict"] is None:
        return f"Compares measures only: {decision['reason']}."
    more = number(decision["more_frac"])
    return _by_bounds(result, decision) if more is None else _by_goodput(result, decision, more)


def _by_goodput(result: Mapping[str, Any], decision: Mapping[str, Any], more: float) -> str:
    """Return the decision where both sides have a p99 goodput."""
    a, b = result["a"], result["b"]
    rates = [rate(decision[side]["goodput_per_s"]) for side in "ab"]
    at = f"at {decision['goal_frac'] * 100:.4g}% SLO attainment"
    n_seeds = plural(decision["n_seeds"], "seed")
    if decision["verdict"] == "same":
        return f"No change: {a} and {b} carry the same load, {rates[0]} req/s {at} ({n_seeds})."
    carries = f"{b} carries {percent(abs(more))} {'less' if more < 0 else 'more'} load"
    numbers = f"{rates[1]} req/s against {rates[0]} {at}"
    if decision["n_seeds"] == 1:
        return f"{carries}: {numbers}. Every seed gives the same run, so there is no interval."
    low, high = decision["low_frac"], decision["high_frac"]
    if decision["verdict"] == "unclear":
        rerun = f"Rerun with --replications {decision['n_seeds'] * MORE_SEEDS} to decide."
        return f"Statistically tied: {carries} ({change_interval(low, high)}). {numbers}, {n_seeds}. {rerun}"
    ends = (low, high) if more > 0 else (-high, -low)
    return f"{carries} ({change_interval(*ends)}): {numbers}."


def _by_bounds(result: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    """Return the decision where a side meets the goal at every load that was run, or at none."""
    goal = f"{decision['goal_frac'] * 100:.4g}%"
    sides = [_carries(result[side], decision[side], goal) for side in "ab"]
    head = {"better": f"{result['b']} carries more load. ", "worse": f"{result['b']} carries less load. "}
    return head.get(decision["verdict"], "Load does not decide. ") + " ".join(sides)


def _carries(name: str, side: Mapping[str, Any], goal: str) -> str:
    if side["holds_every_load"] is None:
        return f"{name} carries {rate(side['goodput_per_s'])} req/s at {goal} SLO attainment."
    at = f"{rate(side['last_per_s'])} req/s"
    if side["holds_every_load"]:
        return f"{name} meets the SLO at every rate, up to {at}."
    return f"{name} attains {goal} at no rate, down to {at}."


def _fails_first(result: Mapping[str, Any]) -> str:
    decision = result.get("decision") or {}
    if decision.get("verdict") is None:
        return ""
    first = {side: SHORT.get(str(decision[side]["fails_first"])) for side in "ab"}
    if first["a"] == first["b"]:
        return f"{first['a']} fails first on both sides." if first["a"] else ""
    return " ".join(f"{name} of {result[side]} fails first." for side, name in first.items() if name)


def _measures(result: Mapping[str, Any]) -> str:
    """Return which side is better at what."""
    measures, b, how = result["measures"], result["b"], result["how"]
    if all(each["verdict"] == "same" for each in measures):
        return f"Measures ({how}): no difference."
    if not any(number(each["low"]) is not None for each in measures):
        return f"Measures ({how}): no interval separates a difference from chance. Compare two scenarios for intervals."
    kinds = {kind: [each for each in measures if each["verdict"] == kind] for kind in ("better", "worse")}
    texts = [f"is {kind} at {_named(each)}." for kind, each in kinds.items() if each]
    return f"Measures ({how}): {f'{b} ' + ' It '.join(texts) if texts else 'all statistically tied.'}"


def _drawn(result: Mapping[str, Any]) -> str:
    """Return drawn against nominal load of the measures."""
    loads = result.get("load") or {}
    texts = {
        side: f"drew {rate(load['drawn_per_s'])} req/s of a nominal {rate(load['nominal_per_s'])}"
        for side in "ab"
        if (load := loads.get(side))
    }
    if len(set(texts.values())) == 1 and len(texts) == 2:
        return f"The seeds {texts['a']}."
    return " ".join(f"The seeds of {result[side]} {text}." for side, text in texts.items())


def table_rows(result: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return a row a measure, below the column titles."""
    head = ("", "A", "B", "change", f"{result['confidence'] * 100:.0f}% CI of B − A", "B is")
    return [head, *(_row(each) for each in result["measures"])]


def _row(each: Mapping[str, Any]) -> Sequence[str]:
    unit = each["unit"]
    ends = [number(each[name]) for name in ("low", "high")]
    interval = NONE if None in ends else f"{_signed(ends[0], unit)} to {_signed(ends[1], unit)}"
    frac = number(each["change_frac"])
    changed = NONE if frac is None else f"{frac:+z.1%}"
    return (each["label"], amount(each["a"], unit), amount(each["b"], unit), changed, interval, each["verdict"])


def _named(measures: Sequence[Mapping[str, Any]]) -> str:
    """Return `p99 TTFT (-12%) and goodput (+3%)`, the most telling first."""
    order = {key: place for place, key in enumerate(LISTED_FIRST)}
    ranked = sorted(measures, key=lambda each: order.get(each["key"], len(order)))
    n_more = len(ranked) - MOST_NAMED
    more = [f"{n_more} more"] if n_more > 0 else []
    return listed([f"{each['label']} ({change(each)})" for each in ranked[:MOST_NAMED]] + more)


def change(each: Mapping[str, Any]) -> str:
    """Return by how much B differs: `-12%`, or in points where shares differ."""
    frac = number(each["change_frac"])
    if frac is None or each["unit"] == "frac":
        return _signed(each["difference"], each["unit"])
    return f"{frac:+.2g}".replace("e+", "e") if abs(frac) > 10 else f"{frac * 100:+.3g}%"


def _signed(value: Any, unit: str) -> str:
    """Return a difference with its sign; that of shares in percentage points."""
    gap = number(value)
    if gap is None:
        return NONE
    if unit == "frac":
        return f"{gap * 100:+.3g} points"
    sign = "-" if math.copysign(1.0, gap) < 0 else "+"
    return sign + (seconds(abs(gap)) if unit == "s" else rate(abs(gap)))
