"""A comparison in words: which side carries more load, then the measures, a row each."""

import math
from collections.abc import Sequence

from simserve.metrics.answers.comparison import ComparisonAnswer, LoadDecision, MeasureDifference, SideLoad
from simserve.metrics.goal import probability
from simserve.report.formats import NONE, SHORT, amount, ci_95, listed, percent, plural, rate, seconds
from simserve.report.headline import ratio
from simserve.report.nominal_load import BY_WORD, CALIBRATE_NEXT

MOST_NAMED = 3
"""Measures of one kind that the sentence names; the table has all."""

LISTED_FIRST = ("slo_attainment.frac", "goodput.per_s", "ttft_s.p99", "tpot_s.p99", "e2e_s.p99")

MORE_SEEDS = 4
"""Times as many seeds halve an interval."""


def sentence(answer: ComparisonAnswer) -> str:
    """Return all sentences of the answer."""
    return " ".join(paragraphs(answer))


def paragraphs(answer: ComparisonAnswer) -> list[str]:
    """Return the decision by load, with its cause and the next command; then those about each side's own load, and what
    the measures say."""
    own = [
        f"At its own load, {name} {BY_WORD[judged.word]}{'' if judged.r is None else f': {ratio(judged)}'}."
        for name, judged in zip(answer.names, answer.decisions, strict=True)
        if judged is not None
    ]
    texts = ([_decision(answer), _fails_first(answer)], own, [_measures(answer), _drawn(answer)])
    return [" ".join(filter(None, each)) for each in texts if any(each)]


def title(answer: ComparisonAnswer) -> tuple[str, str] | None:
    """Return state and title of the page where load decides, else None."""
    decision, b = answer.load_decision, answer.b
    if decision is None:
        return None
    if decision.edge_by == "cost":
        return "edge", "Cost error decides"
    if decision.outcome == "unclear":
        return ("few", f"{b}: one run each") if decision.n_seeds == 1 else ("edge", "Statistically tied")
    if decision.outcome == "same":
        return "none", "No change"
    size = "" if decision.more_frac is None else f"{percent(abs(decision.more_frac))} "
    is_better = decision.outcome == "better"
    return ("met", f"{b} carries {size}more load") if is_better else ("missed", f"{b} carries {size}less load")


def _decision(answer: ComparisonAnswer) -> str:
    decision = answer.decision
    if decision is None:
        return ""
    if decision.outcome is None:
        return f"Compares measures only: {decision.reason}."
    more = decision.more_frac
    return _by_bounds(answer, decision) if more is None else _by_goodput(answer, decision, more)


def _by_goodput(answer: ComparisonAnswer, decision: LoadDecision, more: float) -> str:
    """Return the decision where both sides have a p99 goodput."""
    a, b = answer.names
    rates = [rate(side.goodput_per_s) for side in decision.sides]
    at = f"at {decision.goal_frac * 100:.4g}% SLO attainment"
    n_seeds = plural(decision.n_seeds, "seed")
    if decision.outcome == "same":
        return f"No change: {a} and {b} carry the same load, {rates[0]} req/s {at} ({n_seeds})."
    carries = f"{b} carries {percent(abs(more))} {'less' if more < 0 else 'more'} load"
    numbers = f"{rates[1]} req/s against {rates[0]} {at}"
    low, high = decision.low_frac, decision.high_frac
    if low is None or high is None:
        return f"{carries}: {numbers}. Every seed gives the same run, so there is no interval."
    interval = ci_95(low, high) if more > 0 else ci_95(-high, -low)
    if decision.total is not None:
        least, most = decision.total[0] or 0.0, decision.total[1] or 0.0
        text = ci_95(least, most) if more > 0 else ci_95(-most, -least)
        interval += f"; with cost error {text.removeprefix('95% CI ')}"
    if decision.edge_by == "cost":
        chance = decision.probability or 0.0
        as_simulated = f"{carries} ({interval}), P {probability(chance if more > 0 else 1 - chance)}"
        return f"Cost error decides: as simulated, {as_simulated}. {numbers}. {CALIBRATE_NEXT}"
    if decision.outcome == "unclear":
        rerun = f"Rerun with --replications {decision.n_seeds * MORE_SEEDS} to decide."
        return f"Statistically tied: {carries} ({ci_95(low, high)}). {numbers}, {n_seeds}. {rerun}"
    return f"{carries} ({interval}): {numbers}."


def _by_bounds(answer: ComparisonAnswer, decision: LoadDecision) -> str:
    """Return the decision where a side meets the goal at every load that was run, or at none."""
    goal = f"{decision.goal_frac * 100:.4g}%"
    sides = [_carries(name, side, goal) for name, side in zip(answer.names, decision.sides, strict=True)]
    head = {"better": f"{answer.b} carries more load. ", "worse": f"{answer.b} carries less load. "}
    return head.get(decision.outcome, "Load does not decide. ") + " ".join(sides)


def _carries(name: str, side: SideLoad, goal: str) -> str:
    if side.holds_every_load is None:
        return f"{name} carries {rate(side.goodput_per_s)} req/s at {goal} SLO attainment."
    at = f"{rate(side.last_per_s)} req/s"
    if side.holds_every_load:
        return f"{name} meets the SLO at every rate, up to {at}."
    return f"{name} attains {goal} at no rate, down to {at}."


def _fails_first(answer: ComparisonAnswer) -> str:
    decision = answer.load_decision
    if decision is None:
        return ""
    limits = [SHORT.get(side.fails_first or "") for side in decision.sides]
    if limits[0] == limits[1]:
        return f"{limits[0]} fails first on both sides." if limits[0] else ""
    return " ".join(f"{slo} of {name} fails first." for name, slo in zip(answer.names, limits, strict=True) if slo)


def _measures(answer: ComparisonAnswer) -> str:
    """Return which side is better at what."""
    measures, b, how = answer.measures, answer.b, answer.how
    if all(measure.outcome == "same" for measure in measures):
        return f"Measures ({how}): no difference."
    if not answer.has_intervals:
        return f"Measures ({how}): no interval separates a difference from chance. Compare two scenarios for intervals."
    kinds = {kind: [each for each in measures if each.outcome == kind] for kind in ("better", "worse")}
    texts = [f"is {kind} at {_named(some)}." for kind, some in kinds.items() if some]
    return f"Measures ({how}): {f'{b} ' + ' It '.join(texts) if texts else 'all statistically tied.'}"


def _drawn(answer: ComparisonAnswer) -> str:
    """Return drawn against nominal load of the measures."""
    texts = [
        None if load is None else f"drew {rate(load.drawn_per_s)} req/s of a nominal {rate(load.nominal_per_s)}"
        for load in answer.loads
    ]
    if texts[0] == texts[1]:
        return f"The seeds {texts[0]}." if texts[0] else ""
    return " ".join(f"The seeds of {name} {text}." for name, text in zip(answer.names, texts, strict=True) if text)


def table_rows(answer: ComparisonAnswer) -> list[Sequence[str]]:
    """Return a row a measure, below the column titles."""
    head = ("", "A", "B", "change", f"{answer.confidence * 100:.0f}% CI of B − A", "B is")
    rows: list[Sequence[str]] = [head]
    for each in answer.measures:
        low, high, frac = each.low, each.high, each.change_frac
        interval = NONE if low is None or high is None else f"{_signed(low, each.unit)} to {_signed(high, each.unit)}"
        changed = NONE if frac is None else f"{frac:+z.1%}"
        rows.append((each.label, *pair(each), changed, interval, each.outcome))
    return rows


def pair(measure: MeasureDifference) -> tuple[str, str]:
    """Return a measure of A and of B, with units."""
    return amount(measure.a, measure.unit), amount(measure.b, measure.unit)


def _named(measures: Sequence[MeasureDifference]) -> str:
    """Return `p99 TTFT (-12%) and goodput (+3%)`, the most telling first."""
    order = {key: place for place, key in enumerate(LISTED_FIRST)}
    ranked = sorted(measures, key=lambda measure: order.get(measure.key, len(order)))
    n_more = len(ranked) - MOST_NAMED
    more = [f"{n_more} more"] if n_more > 0 else []
    return listed([f"{measure.label} ({change(measure)})" for measure in ranked[:MOST_NAMED]] + more)


def change(measure: MeasureDifference) -> str:
    """Return by how much B differs: `-12%`, or in points where shares differ."""
    frac = measure.change_frac
    if frac is None or measure.unit == "frac":
        return _signed(measure.difference, measure.unit)
    return f"{frac:+.2g}".replace("e+", "e") if abs(frac) > 10 else f"{frac * 100:+.3g}%"


def _signed(gap: float | None, unit: str) -> str:
    """Return a difference with its sign; that of shares in percentage points."""
    if gap is None:
        return NONE
    if unit == "frac":
        return f"{gap * 100:+.3g} points"
    sign = "-" if math.copysign(1.0, gap) < 0 else "+"
    return sign + (seconds(abs(gap)) if unit == "s" else rate(abs(gap)))
