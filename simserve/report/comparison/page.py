"""The page of a comparison: which side carries more load, and each measure with the interval of its difference."""

from collections.abc import Sequence

from simserve.metrics.answers.comparison import ComparisonAnswer, MeasureDifference
from simserve.report.charts import Figure, axis, figure, hover, numbers, scatter, text, whiskers
from simserve.report.comparison.words import LISTED_FIRST, change, pair, paragraphs, sentence, table_rows
from simserve.report.comparison.words import title as title_by_load
from simserve.report.document import Cautions, Chapter, Document, Plot, Table, Tile, Toned
from simserve.report.formats import as_sentence, plural, share
from simserve.report.margin import margin

MOST_FRAC = 1.0
"""Largest change drawn in place; larger ones are drawn at the edge, as they would hide all others."""

LEAST_FRAC = 0.02
"""Smallest range of the axis."""

GOODPUT = "goodput.per_s"

MOST_TILES = 6
"""The tiles of one row."""

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


def tell(answer: ComparisonAnswer) -> Document:
    """Return all that a comparison tells."""
    drawn = [(measure, measure.change_frac) for measure in answer.measures if measure.change_frac is not None]
    note = NOTE + _left_out(answer.measures)
    warnings = [*map(as_sentence, answer.warnings), *([] if answer.has_intervals else [ONE_RUN])]
    sides = f"A: {answer.a} · B: {answer.b}. {answer.how.capitalize()}."
    rows = table_rows(answer)
    table, (state, title) = Table.of(rows, dropped=rows[0][4:5]), title_by_load(answer) or _by_measures(answer)
    chart = Plot("change", _chart(drawn) if drawn else None, "", note, otherwise="Nothing to compare.")
    return Document(
        command="compare",
        name=f"{answer.a} and {answer.b}",
        state=state,
        title=title,
        lead=sentence(answer),
        tiles=_tiles(answer),
        parts=(
            *margin({"A": answer.judged.a, "B": answer.judged.b}),
            Chapter("changes", "B against A", [chart]),
            Chapter("measures", "Every measure", [table], sides),
            Cautions(warnings, "Both sides had the same load and the same SLO."),
        ),
        made={"simserve": answer.version},
        brief=(*paragraphs(answer), table),
        warnings=answer.warnings,
    )


def _left_out(measures: Sequence[MeasureDifference]) -> str:
    """Return how many changes are drawn at the edge of the chart, and how many not at all."""
    changes = [measure.change_frac for measure in measures]
    n_beyond = sum(frac is not None and abs(frac) > MOST_FRAC for frac in changes)
    n_without = changes.count(None)
    edge = f" {plural(n_beyond, 'change')} beyond {share(MOST_FRAC)} drawn at the edge." if n_beyond else ""
    none = f" {plural(n_without, 'measure')} without a change relative to A in the table only." if n_without else ""
    return edge + none


def _tiles(answer: ComparisonAnswer) -> list[Tile]:
    by_key = {measure.key: measure for measure in answer.measures}
    first = [by_key[key] for key in (*LISTED_FIRST, "output_tokens_per_s") if key in by_key] or answer.measures
    return [_tile(each) for each in [*_of_load(answer), *first][:MOST_TILES]]


def _of_load(answer: ComparisonAnswer) -> list[MeasureDifference]:
    """Return the goodputs of the decision as a measure, where both sides have one."""
    decision = answer.load_decision
    if decision is None or decision.more_frac is None:
        return []
    a, b = (side.goodput_per_s or 0.0 for side in decision.sides)
    return [
        MeasureDifference(
            key=GOODPUT,
            label=f"p{decision.goal_frac * 100:.4g} goodput",
            unit="per_s",
            a=a,
            b=b,
            difference=b - a,
            low=None,
            high=None,
            change_frac=decision.more_frac,
            outcome=decision.outcome,
        )
    ]


def _by_measures(answer: ComparisonAnswer) -> tuple[str, str]:
    """Return state and title by goodput; where that does not differ, by how many measures do."""
    a, b, measures = answer.a, answer.b, answer.measures
    n = {outcome: sum(measure.outcome == outcome for measure in measures) for outcome in VERDICTS}
    if n["same"] == len(measures):
        return "none", f"No change: {b} equals {a}"
    if not answer.has_intervals:
        return "few", f"{b} against {a}: one run each"
    goodput = next((measure for measure in measures if measure.key == GOODPUT), None)
    if goodput is not None and goodput.outcome in ("better", "worse"):
        is_better, frac = goodput.outcome == "better", goodput.change_frac
        size = "" if frac is None else f"{abs(frac) * 100:.3g}% "
        return ("met" if is_better else "missed"), f"{b} has {size}{'more' if is_better else 'less'} goodput"
    if n["better"] and n["worse"]:
        return "edge", f"{b} is better at {n['better']} and worse at {n['worse']} of {len(measures)} measures"
    if n["better"] or n["worse"]:
        word = "better" if n["better"] else "worse"
        return ("met" if n["better"] else "missed"), f"{b} is {word} at {n[word]} of {len(measures)} measures"
    return "none", "Statistically tied"


def _tile(measure: MeasureDifference) -> Tile:
    mark, tone = {"better": ("▶ ", "ok"), "worse": ("◀ ", "over")}.get(measure.outcome, ("", "soft"))
    return Tile(measure.label, change(measure), [" → ".join(pair(measure)), Toned(f"{mark}{measure.outcome}", tone)])


def _chart(drawn: Sequence[tuple[MeasureDifference, float]]) -> Figure:
    """Return a chart with a row a measure: how much better B is, as a share of A."""
    measures = [measure for measure, _ in drawn]
    gains = [_gain(measure, frac) for measure, frac in drawn]
    ends = [_ends(measure, gain) for measure, gain in zip(measures, gains, strict=True)]
    widest = max([LEAST_FRAC, *(min(abs(x), MOST_FRAC) for each in (gains, *ends) for x in each)])
    shown = [max(-widest, min(widest, gain)) for gain in gains]
    colors, symbols = zip(*(VERDICTS[measure.outcome] for measure in measures), strict=True)
    texts = [text(f"{measure.label}: {' → '.join(pair(measure))} ({change(measure)})") for measure in measures]
    edges = [(min(x, max(low, -widest)), max(x, min(high, widest))) for (low, high), x in zip(ends, shown, strict=True)]
    rows, line = [text(measure.label) for measure in measures], {"color": list(colors), "width": 2}
    dots = scatter(
        "markers",
        numbers(shown),
        rows,
        error_x=whiskers(shown, edges, "$soft"),
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


def _gain(measure: MeasureDifference, change_frac: float) -> float:
    """Return how much better B is: of durations, less is better."""
    return change_frac * (-1 if measure.unit == "s" else 1)


def _ends(measure: MeasureDifference, gain: float) -> tuple[float, float]:
    """Return the interval of the gain; its value where it has none."""
    if measure.low is None or measure.high is None or not measure.a:
        return gain, gain
    ends = [_gain(measure, end / abs(measure.a)) for end in (measure.low, measure.high)]
    return min(ends), max(ends)
