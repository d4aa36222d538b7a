"""Page of a sweep: the best points, both Pareto fronts, every point, and failures."""

from collections.abc import Mapping, Sequence

from simserve.metrics.answers.sweep import PointOfSweep, SweepAnswer
from simserve.report.charts import Figure
from simserve.report.document import Headline, page
from simserve.report.formats import listed, plural, rate, share, slo_terms
from simserve.report.nominal_load import DECISIONS
from simserve.report.sections import card, prose, section, table, text, tile
from simserve.report.sweep.charts import cost_chart, latency_chart, left_out, with_goodput, with_latencies
from simserve.report.sweep.words import by_text, cells, columns, dollars, ranked, sentence, values_of

MANY_POINTS = 20
"""A longer table scrolls in its own frame on a screen."""

MOST_NAMED = 20
"""Most points named for one reason of failure."""

KEYS = [("diamond k1", "on the front: no point beats it in both"), ("dot k5", "beaten; a cross: saturated, not ranked")]

COST_NOTE = "Up and to the left is better. Numbers are those of the points in the table; bars are 95% CIs over seeds."
LATENCY_NOTE = "Down and to the left is better."


def render(answer: SweepAnswer) -> str:
    """Return the page as HTML."""
    drawn = {"cost": cost_chart(answer), "latency": latency_chart(answer)}
    figures = {name: chart for name, chart in drawn.items() if chart is not None}
    seeds = answer.seeds
    lists = (
        _listed(answer, "warnings", "Warnings", by_text(answer, lambda point: point.warnings)),
        _listed(answer, "failed", "Failed", by_text(answer, lambda point: [point.reason])),
    )
    made = {"simserve": answer.version, "seeds": f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else seeds[0]}
    return page(_headline(answer), [_fronts(answer, figures), _table(answer), *lists], figures, made)


def _title(answer: SweepAnswer) -> str:
    """Return the decision in a few words."""
    points, cheapest = answer.points, answer.best.cheapest
    tied = listed([values_of(answer, points[number]) for number in answer.tied])
    if not answer.has_slo:
        return f"{plural(len(points), 'point')}, none ranked by goodput"
    if cheapest is None:
        return f"No point surely meets the SLO; on the edge: {tied}" if tied else "No point meets the SLO"
    sure = values_of(answer, points[cheapest.point])
    return (
        f"Cheapest that surely meets the SLO: {sure}; tied: {tied}" if tied else f"Cheapest that meets the SLO: {sure}"
    )


def _headline(answer: SweepAnswer) -> Headline:
    best = answer.best
    state = "none" if best.per_usd is None else "met" if best.cheapest else "edge" if answer.tied else "missed"
    varied = (f"Varied: {', '.join(answer.keys)}.",)
    return Headline("sweep", answer.scenario.name, state, _title(answer), sentence(answer), varied, _tiles(answer))


def _tiles(answer: SweepAnswer) -> tuple[str, ...]:
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


def _tile(answer: SweepAnswer, label: str, point: PointOfSweep, figure: str, *, has_price: bool = False) -> str:
    price = f", {dollars(point)} an hour" if has_price else ""
    lines = (f"point {point.point}: {values_of(answer, point)}", f"{_attained(point)}{price}")
    return tile(label, figure, [prose(line) for line in lines])


def _attained(point: PointOfSweep) -> str:
    """Return what the point attains, and the decision where it does not meet the SLO."""
    decision = f"{DECISIONS[point.decision]}: " if point.decision in ("missed", "edge") else ""
    return f"{decision}{share(point.attained.value)} within the SLO"


def _fronts(answer: SweepAnswer, figures: Mapping[str, Figure]) -> str:
    cost_note = COST_NOTE + left_out(answer, with_goodput(answer), answer.fronts.cost_goodput)
    latency_note = LATENCY_NOTE + left_out(answer, with_latencies(answer), answer.fronts.ttft_tpot)
    if "latency" in figures and figures["latency"]["layout"].get("shapes"):
        latency_note += f" Shaded: both p99s within the SLO ({slo_terms(answer.slo or {})})."
    no_goodput = "No point has goodput: give the scenario an slo."
    cost = card("cost", figures, "Goodput against cost", cost_note, KEYS, no_goodput)
    latency = card("latency", figures, "TTFT against TPOT", latency_note, KEYS, "No point has both latencies.")
    return section("fronts", "Fronts", "", f'<div class="pair">{cost}{latency}</div>')


def _table(answer: SweepAnswer) -> str:
    rows = [(_row_name(answer, point), cells(answer, point)) for point in ranked(answer)]
    order = "Most goodput per dollar" if answer.has_slo else "Shortest p99 TTFT"
    means = f"Goodput and latencies are means of {plural(len(answer.seeds), 'seed')} that all points share"
    note = f"{order} first. {means}; attainment is at the nominal load, over all seeds of a point."
    return section("points", "Points", note, table(("Point", *columns(answer)), rows, is_tall=len(rows) > MANY_POINTS))


def _row_name(answer: SweepAnswer, point: PointOfSweep) -> str:
    fronts = {"goodput for cost": answer.fronts.cost_goodput, "latency": answer.fronts.ttft_tpot}
    on = [name for name, front in fronts.items() if point.point in front]
    return f"{point.point}" + (f"<small>front: {text(', '.join(on))}</small>" if on else "")


def _listed(answer: SweepAnswer, key: str, title: str, points_of: Mapping[str, Sequence[PointOfSweep]]) -> str:
    items = "".join(f"<li>{_points_named(answer, points)}: {prose(each)}</li>" for each, points in points_of.items())
    return section(key, title, "", f'<div class="trust"><ul>{items}</ul></div>') if items else ""


def _points_named(answer: SweepAnswer, points: Sequence[PointOfSweep]) -> str:
    """Return `Point 3 (tensor 3)`, or the numbers of several points."""
    if len(points) == 1:
        return f"<strong>Point {points[0].point}</strong> ({text(values_of(answer, points[0]))})"
    numbers = [str(point.point) for point in points[:MOST_NAMED]]
    more = [f"{len(points) - MOST_NAMED} more"] if len(points) > MOST_NAMED else []
    return f"<strong>Points {text(listed([*numbers, *more]))}</strong>"
