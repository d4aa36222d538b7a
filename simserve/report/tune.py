"""The page of a tuning: the flags to change, what they gain and cost, and every point of the search."""

from simserve.metrics.answers.tune import Objective, TuneAnswer, TuneWord
from simserve.report.charts import axis, figure, numbers, scatter
from simserve.report.document import Cautions, Chapter, Document, Plot, Row, Table, Tile
from simserve.report.formats import NONE, SHORT, as_sentence, ci_95, listed, plural, seconds, share, signed

TITLES: dict[TuneWord, tuple[str, str]] = {
    "better": ("met", "Better flags found"),
    "tied": ("edge", "Statistically tied"),
    "same": ("none", "No better flags found"),
}
"""State and title for each word."""

OBJECTIVES: dict[Objective, str] = {
    "r": "r at the load of the scenario",
    "cost": "The cost of a request within the SLO",
    "throughput": "GPU time of a request within the SLO",
}

MOST_ROWS = 20
FINE = "The best point was confirmed on draws of the load that the search had not used."


def tell(answer: TuneAnswer) -> Document:
    """Return all that a tuning tells."""
    state, title = TITLES[answer.word]
    flags = [Row(change.flag, (change.before or NONE, change.after or NONE)) for change in answer.changes]
    diff, costs, lead = Table(("flag", "now", "better"), flags), _costs(answer), sentence(answer)
    n_points = f"{plural(answer.n_tried, 'point')} of {answer.n_possible or answer.n_tried:,} tried"
    left = f"Not varied: {listed(list(answer.not_varied))}." if answer.not_varied else ""
    setup = (f"{n_points}, {listed([key.rpartition('.')[2] for key in answer.varied])} varied.", left)
    changes = [Chapter("flags", "Flags to change", [diff])] if answer.changes else []
    return Document(
        command="tune",
        name=answer.scenario.name,
        state=state,
        title=title,
        lead=lead,
        setup=setup,
        tiles=_tiles(answer),
        parts=(
            *changes,
            Chapter(
                "costs", "Latencies before and after", [costs], f"Means over {plural(answer.n_seeds, 'fresh seed')}."
            ),
            Chapter("search", "The search", [_plot(answer), _best_points(answer)]),
            Cautions([as_sentence(text) for text in answer.warnings], FINE),
        ),
        made={"scenario": answer.scenario.digest, "seeds": answer.n_seeds},
        brief=(f"{title}: {lead}", *([diff] if answer.changes else []), costs, " ".join(setup)),
        warnings=answer.warnings,
    )


def sentence(answer: TuneAnswer) -> str:
    """Return what the search came to, with its interval."""
    level, gain = f"the p{answer.goal_frac * 100:.4g} of latency/limit", answer.gain_frac or 0.0
    if answer.word == "same":
        return f"None of {plural(answer.n_tried, 'point')} beats the scenario: {level} is {answer.r_before:.2f}."
    moved = f"{OBJECTIVES[answer.objective]} {'falls' if gain >= 0 else 'rises'} by {share(abs(gain))} on fresh draws"
    ci = f" (gain {_gain(answer)})" if answer.gain else ""
    after = f"{moved}{ci}; {level} is {answer.r_before:.2f} before and {answer.r_after:.2f} after."
    return " ".join(filter(None, (_carried(answer), after)))


def _gain(answer: TuneAnswer) -> str:
    return ci_95(*(end or 0.0 for end in answer.gain or (0.0, 0.0)))


def _carried(answer: TuneAnswer) -> str:
    """Return how much more load the best point carries."""
    load = answer.load
    if load is None or load.outcome is None or load.more_frac is None:
        return ""
    ends = "" if load.low_frac is None or load.high_frac is None else ci_95(load.low_frac, load.high_frac)
    return f"Load within the SLO: {signed(load.more_frac)}{f' ({ends})' if ends else ''}."


def _costs(answer: TuneAnswer) -> Table:
    rows = [
        Row(f"{SHORT[each.latency]} {each.level}", (seconds(each.before_s), seconds(each.after_s)))
        for each in answer.latencies
    ]
    return Table(("", "now", "better"), rows)


def _tiles(answer: TuneAnswer) -> list[Tile]:
    gain = Tile("Gain", signed(answer.gain_frac), [_gain(answer)] if answer.gain else [])
    return [gain, Tile("r", f"{answer.r_after:.2f}", [f"{answer.r_before:.2f} before"])]


def _plot(answer: TuneAnswer) -> Plot:
    """Return a chart of r of each point, in the order of the search."""
    points = [(point.number, point.r) for point in answer.points if point.r is not None and point.number]
    dots = scatter(
        "markers",
        numbers([float(number) for number, _ in points]),
        numbers([min(float(r), 10.0) for _, r in points]),
        marker={"color": "$c1", "size": 7},
    )
    return Plot("search", figure([dots], 260, xaxis=axis("Point"), yaxis=axis("r", type="log")))


def _best_points(answer: TuneAnswer) -> Table:
    ranked = sorted((point for point in answer.points if point.r is not None), key=lambda point: float(point.r or 0.0))
    rows = [Row(point.settings, (f"{float(point.r or 0.0):.3f}",)) for point in ranked[:MOST_ROWS]]
    return Table(("Settings", "r"), rows, is_tall=True, wraps=True)
