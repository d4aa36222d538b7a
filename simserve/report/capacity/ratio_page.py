"""Page of a ratio: the best split into prefill and decode, and the highest rate of every split."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.capacity.load_curve import REQUESTS_PER_S
from simserve.report.capacity.ratio import against, replicas, sentence, table_rows
from simserve.report.cards import card
from simserve.report.charts import Figure, axis, figure, numbers
from simserve.report.formats import listed, number, plural, rate
from simserve.report.sections import pool_words, prose, section, table, text, tile
from simserve.report.study_page import Headline, study_page
from simserve.report.study_warnings import made_from, warning_section

Facts = Mapping[str, Any]


def render(result: Facts) -> str:
    """Return the page as HTML, from what `simserve capacity --ratio --json` prints."""
    figures = {"splits": _chart(result)}
    note = "Highest rate that meets the goal, by replicas of prefill : decode, with its 95% CI; the best is filled."
    keys = [
        ("dot k1", "a split"),
        *([("dash k0", "the same GPUs without disaggregation")] if result["together"] else []),
    ]
    head, *rows = table_rows(result)
    body = table([head[0].capitalize(), *head[1:]], [(text(row[0]), row[1:]) for row in rows])
    parts = (
        section("rates", "Highest rate of each split", "", card("splits", figures, "", note, keys, "")),
        section("tried", "Every split", "All use the same seeds.", body),
        warning_section(result),
    )
    return study_page(_headline(result), parts, figures, made_from(result))


def _headline(result: Facts) -> Headline:
    answer, name = result["answer"], result["scenario"]["name"]
    setup = f"{listed([pool_words(pool) for pool in result['pools']])}."
    if answer is None:
        return Headline("capacity", name, "missed", "No split holds", sentence(result), setup)
    at = answer["offered_per_s"]
    title = f"{answer['split']}, {REQUESTS_PER_S.format(at['value'])} on {plural(answer['fleet']['n_gpus'], 'GPU')}"
    tiles = [
        tile("Best split", answer["split"], [prose(replicas(answer))]),
        tile("Rate", f"{rate(at['value'])}/s", [prose(f"95% CI {REQUESTS_PER_S.interval(at)}")]),
        tile("Per GPU", f"{rate(answer['per_gpu_s']['value'])}/s", []),
    ]
    for key, label in (("per_usd", "Per dollar"), ("per_kwh", "Per kWh")):
        if answer[key] is not None:
            tiles.append(tile(label, rate(answer[key]["value"]), [prose("requests")]))
    both = result["together"]
    if both is None:
        tiles.append(tile("Splits", str(len(result["splits"])), []))
    else:
        tiles.append(tile("Together", f"{rate(both['offered_per_s']['value'])}/s", [prose(against(both, answer))]))
    state = "met" if answer["is_clear"] else "edge"
    return Headline("capacity", name, state, title, sentence(result), setup, tuple(tiles))


def _chart(result: Facts) -> Figure:
    """Chart one mark per split; the best is filled and larger, so that it does not depend on color."""
    splits: Sequence[Facts] = result["splits"]
    answer, both = result["answer"], result["together"]
    best = [answer is not None and each["split"] == answer["split"] for each in splits]
    rates = [each["offered_per_s"] for each in splits]
    names = [each["split"] for each in splits]
    dots = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": names,
        "y": numbers([each["value"] for each in rates]),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": numbers([_or_nan(each["high"]) - each["value"] for each in rates]),
            "arrayminus": numbers([each["value"] - _or_nan(each["low"]) for each in rates]),
            "color": "$c1",
            "thickness": 1.5,
            "width": 4,
        },
        "text": [
            text(f"{name}: {REQUESTS_PER_S.format(each['value'])}") for name, each in zip(names, rates, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": "$c1", "width": 1.5, "dash": "2px,3px"},
        "marker": {
            "color": "$c1",
            "size": [13 if is_best else 9 for is_best in best],
            "symbol": ["circle" if is_best else "circle-open" for is_best in best],
        },
    }
    highest = max(
        [number(each["high"]) or each["value"] for each in rates] + ([both["offered_per_s"]["value"]] if both else [])
    )
    shapes = []
    if both is not None:
        at = both["offered_per_s"]["value"]
        level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "layer": "below"}
        shapes = [level | {"line": {"color": "$ink", "width": 1.5, "dash": "5px,4px"}}]
    x_axis = axis("Prefill : decode replicas", type="category", categoryorder="array", categoryarray=names)
    y_axis = axis("Requests/s", range=[0, 1.12 * highest if highest else 1.0], nticks=6)
    margin = {"l": 64, "r": 14, "t": 14, "b": 50}
    return figure([dots], 360, xaxis=x_axis, yaxis=y_axis, shapes=shapes, margin=margin)


def _or_nan(end: Any) -> float:
    """Return the end of an interval; NaN where it is unknown."""
    known = number(end)
    return math.nan if known is None else known
