"""Page of a sweep: the best points, both Pareto fronts, every point, and failures."""

from collections.abc import Mapping, Sequence

from simserve.metrics.answers.sweep import PointOfSweep, SweepAnswer
from simserve.metrics.summary_schema import EARLIER
from simserve.report.document import Chapter, Document, Item, Items, Plot, Row, SideBySide, Table, Tile
from simserve.report.formats import listed, plural, rate, share, slo_terms
from simserve.report.margin import margin
from simserve.report.sweep import words
from simserve.report.sweep.charts import cost_chart, latency_chart, left_out, with_goodput, with_latencies

DROPPED = ("requests/$", "seeds", "95% CI", "p99 TPOT", "p99 TTFT", "attained", "goodput, req/s")
"""Columns that a narrow terminal leaves out first; price and decision stay."""

MANY_POINTS = 20
"""A longer table scrolls in its own frame on a screen."""

MOST_NAMED = 20
"""Most points named for one reason of failure."""

KEYS = [("diamond k1", "on the front: no point beats it in both"), ("dot k5", "beaten; a cross: saturated, not ranked")]

COST_NOTE = "Up and to the left is better. Numbers are those of the points in the table; bars are 95% CIs over seeds."
LATENCY_NOTE = "Down and to the left is better."


def tell(answer: SweepAnswer) -> Document:
    """Return all that a sweep tells."""
    best, seeds, n_more = answer.best, answer.seeds, len(answer.points) - words.MOST_ROWS
    state = "none" if best.per_usd is None else "met" if best.cheapest else "edge" if answer.tied else "missed"
    return Document(
        command="sweep",
        name=answer.scenario.name,
        state=state,
        title=_title(answer),
        lead=words.sentence(answer),
        kept=[] if best.cheapest is None else [f"{answer.points[best.cheapest.point].usd_per_hour:,.2f} USD/h"],
        setup=(f"Varied: {', '.join(answer.keys)}.",),
        tiles=_tiles(answer),
        parts=(
            *margin({} if best.cheapest is None else {"": answer.points[best.cheapest.point].judged}),
            _fronts(answer),
            _table(answer),
            *_listed(answer, "warnings", "Warnings", words.by_text(answer, lambda point: point.warnings)),
            *_listed(answer, "failed", "Failed", words.by_text(answer, lambda point: [point.reason])),
        ),
        made={"simserve": answer.version, "seeds": f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else seeds[0]},
        brief=(
            words.sentence(answer),
            Table.of(words.table_rows(answer), dropped=DROPPED),
            f"  and {n_more} more points" if n_more > 0 else "",
        ),
        warnings=words.warnings(answer),
    )


def _title(answer: SweepAnswer) -> str:
    """Return the decision in a few words."""
    points, cheapest = answer.points, answer.best.cheapest
    tied = listed([words.values_of(answer, points[number]) for number in answer.tied])
    if not answer.has_slo:
        return f"{plural(len(points), 'point')}, none ranked by goodput"
    if cheapest is None:
        return f"No point surely meets the SLO; on the edge: {tied}" if tied else "No point meets the SLO"
    sure = words.values_of(answer, points[cheapest.point])
    return (
        f"Cheapest that surely meets the SLO: {sure}; tied: {tied}" if tied else f"Cheapest that meets the SLO: {sure}"
    )


def _tiles(answer: SweepAnswer) -> tuple[Tile, ...]:
    """Return a tile for each of the three best points."""
    cheapest, per_usd, goodput = (
        None if best is None else answer.points[best.point]
        for best in (answer.best.cheapest, answer.best.per_usd, answer.best.goodput)
    )
    tiles = []
    if cheapest is not None:
        tiles.append(_tile(answer, "Cheapest within the SLO", cheapest, f"${cheapest.usd_per_hour:,.2f}/h"))
    if per_usd is not None:
        amount = rate(per_usd.means.goodput_per_usd.value)
        tiles.append(_tile(answer, "Most per dollar", per_usd, f"{amount}/$", has_price=True))
    if goodput is not None:
        tiles.append(_tile(answer, "Most goodput", goodput, f"{rate(goodput.goodput_per_s)}/s", has_price=True))
    return tuple(tiles)


def _tile(answer: SweepAnswer, label: str, point: PointOfSweep, figure: str, *, has_price: bool = False) -> Tile:
    price = f", {words.dollars(point)} an hour" if has_price else ""
    decision = f"{EARLIER[point.decision]}: " if point.decision in ("missed", "edge") else ""
    attained = f"{decision}{share(point.attained.value)} within the SLO{price}"
    return Tile(label, figure, (f"point {point.point}: {words.values_of(answer, point)}", attained))


def _fronts(answer: SweepAnswer) -> Chapter:
    by_cost, by_latency = cost_chart(answer), latency_chart(answer)
    cost_note = COST_NOTE + left_out(answer, with_goodput(answer), answer.fronts.cost_goodput)
    latency_note = LATENCY_NOTE + left_out(answer, with_latencies(answer), answer.fronts.ttft_tpot)
    if by_latency is not None and by_latency["layout"].get("shapes"):
        latency_note += f" Shaded: both p99s within the SLO ({slo_terms(answer.slo or {})})."
    no_goodput = "No point has goodput: give the scenario an slo."
    cost = Plot("cost", by_cost, "Goodput against cost", cost_note, KEYS, no_goodput)
    none = "No point has both latencies."
    latency = Plot("latency", by_latency, "TTFT against TPOT", latency_note, KEYS, none)
    return Chapter("fronts", "Fronts", [SideBySide([cost, latency])])


def _table(answer: SweepAnswer) -> Chapter:
    fronts, rows = {"goodput for cost": answer.fronts.cost_goodput, "latency": answer.fronts.ttft_tpot}, []
    for point in words.ranked(answer):
        on = [name for name, front in fronts.items() if point.point in front]
        rows.append(Row(f"{point.point}", words.cells(answer, point), f"front: {', '.join(on)}" if on else ""))
    order = "Most goodput per dollar" if answer.has_slo else "Shortest p99 TTFT"
    means = f"Goodput and latencies are means of {plural(len(answer.seeds), 'seed')} that all points share"
    note = f"{order} first. {means}; attainment is at the nominal load, over all seeds of a point."
    if answer.has_slo:
        note += " r is a percentile of latency / limit, P the probability that it is at most 1, with cost error."
    return Chapter("points", "Points", [Table(("Point", *words.columns(answer)), rows, len(rows) > MANY_POINTS)], note)


def _listed(answer: SweepAnswer, key: str, title: str, by_text: Mapping[str, Sequence[PointOfSweep]]) -> list[Chapter]:
    items = []
    for text, points in by_text.items():
        numbers = [str(point.point) for point in points[:MOST_NAMED]]
        more = [f"{len(points) - MOST_NAMED} more"] if len(points) > MOST_NAMED else []
        names = f"Points {listed([*numbers, *more])}", ""
        if len(points) == 1:
            names = f"Point {points[0].point}", words.values_of(answer, points[0])
        items.append(Item(*names, text))
    return [Chapter(key, title, [Items(items, "warns")])] if items else []
