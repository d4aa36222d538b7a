"""The page of a comparison: which side carries more load, and each measure with the interval of its difference."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.charts import Figure, axis, figure, hover, numbers, scatter, whiskers
from simserve.report.comparison.words import LISTED_FIRST, change, sentence, table_rows
from simserve.report.comparison.words import title as title_by_load
from simserve.report.document import Headline, page
from simserve.report.formats import amount, as_sentence, number, plural, share
from simserve.report.sections import card, prose, row_table, section, text, tile, warning_list

Facts = Mapping[str, Any]

MOST_FRAC = 1.0
"""Largest change drawn in place; larger ones are drawn at the edge, as they would hide all others."""

LEAST_FRAC = 0.02
"""Smallest range of the axis."""

GOODPUT = "goodput.per_s"

VERDICTS = {
    "better": ("$good", "triangle-right"),
    "worse": ("$bad", "triangle-left"),
    "unclear": ("$soft", "circle-open"),
    "same": ("$soft", "line-ns-open"),
}
"""Color and symbol of each outcome: color is never the only sign."""

NOTE = (
    "To the right, B is better: ▶ better and ◀ worse beyond chance, ○ statistically tied, | no difference. "
    "Bars: 95% CI, as a share of A."
)

ONE_RUN = "One run each has no interval: any difference may be chance. Compare two scenarios for intervals."


def render(result: Facts) -> str:
    """Return the page as HTML, from what `simserve compare --json` prints."""
    drawn = [each for each in result["measures"] if number(each["change_frac"]) is not None]
    figures = {"change": _chart(drawn)} if drawn else {}
    note = NOTE + _left_out(result["measures"])
    warnings = [*map(as_sentence, result["warnings"]), *([] if _has_intervals(result) else [ONE_RUN])]
    sides = f"A: {result['a']} · B: {result['b']}. {result['how'].capitalize()}."
    parts = (
        section("changes", "B against A", "", card("change", figures, "", note, (), "Nothing to compare.")),
        section("measures", "Every measure", sides, row_table(table_rows(result))),
        warning_list(warnings, "Both sides had the same load and the same SLO."),
    )
    return page(_headline(result), parts, figures, {"simserve": result.get("version")})


def _left_out(measures: Sequence[Facts]) -> str:
    """Return how many changes are drawn at the edge of the chart, and how many not at all."""
    changes = [number(each["change_frac"]) for each in measures]
    n_beyond = sum(change is not None and abs(change) > MOST_FRAC for change in changes)
    n_without = changes.count(None)
    edge = f" {plural(n_beyond, 'change')} beyond {share(MOST_FRAC)} drawn at the edge." if n_beyond else ""
    none = f" {plural(n_without, 'measure')} without a change relative to A in the table only." if n_without else ""
    return edge + none


def _headline(result: Facts) -> Headline:
    measures = result["measures"]
    state, title = title_by_load(result) or _by_measures(result)
    by_key = {each["key"]: each for each in measures}
    first = [by_key[key] for key in (*LISTED_FIRST, "output_tokens_per_s") if key in by_key] or list(measures)
    tiles = (*_load_tile(result), *(_tile(each) for each in first[:6]))
    return Headline("compare", f"{result['a']} and {result['b']}", state, title, sentence(result), (), tiles)


def _load_tile(result: Facts) -> tuple[str, ...]:
    """Return the tile of the decision, where both sides have a p99 goodput."""
    decision = result.get("decision") or {}
    if number(decision.get("more_frac")) is None:
        return ()
    ends = {side: decision[side]["goodput_per_s"] for side in "ab"}
    each = {"label": f"p{decision['goal_frac'] * 100:.4g} goodput", "unit": "per_s", "verdict": decision["verdict"]}
    return (_tile(each | ends | {"change_frac": decision["more_frac"], "difference": ends["b"] - ends["a"]}),)


def _by_measures(result: Facts) -> tuple[str, str]:
    """Return state and title by goodput; where that does not differ, by how many measures do."""
    a, b, measures = result["a"], result["b"], result["measures"]
    n = {decision: sum(each["verdict"] == decision for each in measures) for decision in VERDICTS}
    if all(each["verdict"] == "same" for each in measures):
        return "none", f"No change: {b} equals {a}"
    if not _has_intervals(result):
        return "few", f"{b} against {a}: one run each"
    goodput = next((each for each in measures if each["key"] == GOODPUT), None)
    if goodput is not None and goodput["verdict"] in ("better", "worse"):
        is_better = goodput["verdict"] == "better"
        size = f"{abs(goodput['change_frac']) * 100:.3g}% " if number(goodput["change_frac"]) is not None else ""
        return ("met" if is_better else "missed"), f"{b} has {size}{'more' if is_better else 'less'} goodput"
    if n["better"] and n["worse"]:
        return "edge", f"{b} is better at {n['better']} and worse at {n['worse']} of {len(measures)} measures"
    if n["better"] or n["worse"]:
        word = "better" if n["better"] else "worse"
        return ("met" if n["better"] else "missed"), f"{b} is {word} at {n[word]} of {len(measures)} measures"
    return "none", "Statistically tied"


def _tile(each: Facts) -> str:
    values = f"{amount(each['a'], each['unit'])} → {amount(each['b'], each['unit'])}"
    mark, name = {"better": ("▶", "ok"), "worse": ("◀", "over")}.get(each["verdict"], ("", "soft"))
    decision = f'<span class="{name}">{mark} {text(each["verdict"])}</span>'
    return tile(each["label"], change(each), [prose(values), decision])


def _has_intervals(result: Facts) -> bool:
    return any(number(each["low"]) is not None for each in result["measures"])


def _chart(measures: Sequence[Facts]) -> Figure:
    """Return a chart with a row a measure: how much better B is, as a share of A."""
    gains = [_gain(each) for each in measures]
    ends = list(map(_ends, measures))
    widest = max([LEAST_FRAC, *(min(abs(x), MOST_FRAC) for each in (gains, *ends) for x in each)])
    shown = [max(-widest, min(widest, gain)) for gain in gains]
    colors, symbols = zip(*(VERDICTS[each["verdict"]] for each in measures), strict=True)
    texts = [
        text(f"{each['label']}: {amount(each['a'], each['unit'])} → {amount(each['b'], each['unit'])} ({change(each)})")
        for each in measures
    ]
    drawn = [(min(x, max(low, -widest)), max(x, min(high, widest))) for (low, high), x in zip(ends, shown, strict=True)]
    rows, line = [text(each["label"]) for each in measures], {"color": list(colors), "width": 2}
    dots = scatter(
        "markers",
        numbers(shown),
        rows,
        error_x=whiskers(shown, drawn, "$soft"),
        **hover(texts),
        marker={"color": list(colors), "symbol": list(symbols), "size": 11, "line": line},
        cliponaxis=False,
    )
    x_axis = axis("← B is worse · B is better →", range=[-1.08 * widest, 1.08 * widest], tickformat="+.3~%", nticks=7)
    y_axis = axis(type="category", categoryorder="array", categoryarray=rows[::-1], range=[-0.7, len(rows) - 0.3])
    none = {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    shapes = [none | {"line": {"color": "$ink", "width": 1.25}}]
    margin = {"l": 132, "r": 18, "t": 8, "b": 50}
    return figure([dots], 70 + 26 * len(rows), xaxis=x_axis, yaxis=y_axis, shapes=shapes, margin=margin)


def _gain(each: Facts) -> float:
    """Return how much better B is: of durations, less is better."""
    return float(each["change_frac"]) * (-1 if each["unit"] == "s" else 1)


def _ends(each: Facts) -> tuple[float, float]:
    """Return the interval of the gain; its value where it has none."""
    low, high = number(each["low"]), number(each["high"])
    if low is None or high is None:
        return _gain(each), _gain(each)
    ends = [end / abs(each["a"]) * (-1 if each["unit"] == "s" else 1) for end in (low, high)]
    return min(ends), max(ends)
