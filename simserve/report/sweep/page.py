"""Page of a sweep: the best points, both Pareto fronts, every point, and failures."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.charts import Figure
from simserve.report.document import Headline, page
from simserve.report.formats import listed, plural, rate, share, slo_terms
from simserve.report.nominal_load import DECISIONS
from simserve.report.sections import card, prose, section, table, text, tile
from simserve.report.sweep.charts import cost_chart, latency_chart, left_out
from simserve.report.sweep.words import (
    GOODPUT,
    PER_USD,
    TPOT,
    TTFT,
    by_text,
    cells,
    columns,
    dollars,
    has_goodput,
    ranked,
    sentence,
    value,
    values_of,
)

MANY_POINTS = 20
"""A longer table scrolls in its own frame on a screen."""

MOST_NAMED = 20
"""Most points named for one reason of failure."""

KEYS = [("diamond k1", "on the front: no point beats it in both"), ("dot k5", "beaten; a cross: saturated, not ranked")]

COST_NOTE = "Up and to the left is better. Numbers are those of the points in the table; bars are 95% CIs over seeds."
LATENCY_NOTE = "Down and to the left is better."


def render(result: Mapping[str, Any]) -> str:
    """Return the page as HTML from the content of `sweep.json`."""
    drawn = {"cost": cost_chart(result), "latency": latency_chart(result)}
    figures = {name: chart for name, chart in drawn.items() if chart is not None}
    seeds = result["seeds"]
    lists = (
        _listed(result, "warnings", "Warnings", by_text(result, lambda point: point.get("warnings") or [])),
        _listed(result, "failed", "Failed", by_text(result, lambda point: [point["reason"]])),
    )
    made = {"simserve": result["version"], "seeds": f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else seeds[0]}
    return page(_headline(result), [_fronts(result, figures), _table(result), *lists], figures, made)


def _title(result: Mapping[str, Any]) -> str:
    """Return the decision in a few words."""
    best, points = result["best"], result["points"]
    tied = listed([values_of(result, points[place]) for place in result.get("tied", [])])
    if not any(map(has_goodput, points)):
        return f"{plural(len(points), 'point')}, none ranked by goodput"
    if best["cheapest"] is None:
        return f"No point surely meets the SLO; on the edge: {tied}" if tied else "No point meets the SLO"
    sure = values_of(result, points[best["cheapest"]["point"]])
    return (
        f"Cheapest that surely meets the SLO: {sure}; tied: {tied}" if tied else f"Cheapest that meets the SLO: {sure}"
    )


def _headline(result: Mapping[str, Any]) -> Headline:
    best = result["best"]
    state = (
        "none" if best["per_usd"] is None else "met" if best["cheapest"] else "edge" if result.get("tied") else "missed"
    )
    varied = (f"Varied: {', '.join(result['keys'])}.",)
    return Headline(
        "sweep", result["scenario"]["name"], state, _title(result), sentence(result), varied, _tiles(result)
    )


def _tiles(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a tile for each of the three best points."""
    requested = {"cheapest": "Cheapest within the SLO", "per_usd": "Most per dollar", "goodput": "Most goodput"}
    tiles = []
    for key, label in requested.items():
        best = result["best"][key]
        if best is not None:
            point = result["points"][best["point"]]
            lines = [prose(f"point {point['point']}: {values_of(result, point)}"), prose(_terms(point, key))]
            tiles.append(tile(label, _figure(point, key), lines))
    return tuple(tiles)


def _figure(point: Mapping[str, Any], key: str) -> str:
    """Return the figure of a tile."""
    if key == "cheapest":
        return f"${point['fleet']['usd_per_hour']:,.2f}/h"
    return f"{rate(value(point, PER_USD))}/$" if key == "per_usd" else f"{rate(value(point, GOODPUT))}/s"


def _terms(point: Mapping[str, Any], key: str) -> str:
    """Return what the tile's point attains, and at what price."""
    answer = f"{DECISIONS[point['decision']]}: " if point.get("decision") in ("missed", "edge") else ""
    met = f"{answer}{share(point['answer']['attained_frac'])} within the SLO"
    return met if key == "cheapest" else f"{met}, {dollars(point)} an hour"


def _fronts(result: Mapping[str, Any], figures: Mapping[str, Figure]) -> str:
    notes = {"cost": COST_NOTE + left_out(result, GOODPUT), "latency": LATENCY_NOTE + left_out(result, TTFT, TPOT)}
    if "latency" in figures and figures["latency"]["layout"].get("shapes"):
        notes["latency"] += f" Shaded: both p99s within the SLO ({slo_terms(result['slo'])})."
    no_goodput = "No point has goodput: give the scenario an slo."
    cost = card("cost", figures, "Goodput against cost", notes["cost"], KEYS, no_goodput)
    latency = card("latency", figures, "TTFT against TPOT", notes["latency"], KEYS, "No point has both latencies.")
    return section("fronts", "Fronts", "", f'<div class="pair">{cost}{latency}</div>')


def _table(result: Mapping[str, Any]) -> str:
    rows = [(_row_name(result, point), cells(result, point)) for point in ranked(result)]
    order = "Most goodput per dollar" if any(map(has_goodput, result["points"])) else "Shortest p99 TTFT"
    means = f"Goodput and latencies are means of {plural(len(result['seeds']), 'seed')} that all points share"
    note = f"{order} first. {means}; attainment is at the nominal load, over all seeds of a point."
    return section("points", "Points", note, table(("Point", *columns(result)), rows, is_tall=len(rows) > MANY_POINTS))


def _row_name(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    fronts = {"cost_goodput": "goodput for cost", "ttft_tpot": "latency"}
    on = [name for front, name in fronts.items() if point["point"] in result["fronts"][front]]
    return f"{point['point']}" + (f"<small>front: {text(', '.join(on))}</small>" if on else "")


def _listed(
    result: Mapping[str, Any], key: str, title: str, points_of: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    items = "".join(f"<li>{_points_named(result, points)}: {prose(each)}</li>" for each, points in points_of.items())
    return section(key, title, "", f'<div class="trust"><ul>{items}</ul></div>') if items else ""


def _points_named(result: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    """Return `Point 3 (tensor 3)`, or the numbers of several points."""
    if len(points) == 1:
        return f"<strong>Point {points[0]['point']}</strong> ({text(values_of(result, points[0]))})"
    numbers = [str(point["point"]) for point in points[:MOST_NAMED]]
    more = [f"{len(points) - MOST_NAMED} more"] if len(points) > MOST_NAMED else []
    return f"<strong>Points {text(listed([*numbers, *more]))}</strong>"
