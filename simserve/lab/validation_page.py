"""The page of a validation: predicted against measured, a dot a run, and the errors by engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simserve.lab.runs import MeasuredRun, Prediction, by, errors, worst
from simserve.lab.trust import Trust
from simserve.report.chart_data import Floats
from simserve.report.charts import Figure, axis, figure, hover, latency_axis, numbers, scatter, text
from simserve.report.document import Chapter, Document, Key, Plot, Row, SideBySide, Table
from simserve.report.formats import plural, seconds, share

METRICS = {"tpot": "Time per output token", "ttft": "Time to first token"}
COLORS = ("$c1", "$c2", "$c3")
SYMBOLS = ("circle", "diamond", "square")
"""Symbols of the engines, in the order of their names: color is never the only sign."""

KEYS: Mapping[str, Callable[[MeasuredRun], str]] = {
    "engine": lambda run: run.engine,
    "engine, model": lambda run: f"{run.engine} {run.model} {run.weight_dtype}",
    "engine, TP": lambda run: f"{run.engine} TP {run.tensor}",
    "engine, load": lambda run: f"{run.engine} {run.concurrency:3d} in flight",
}
"""Properties that tables of errors group runs by."""

WORST = 5

NOTE = "A dot on the line was predicted exactly; shaded: within 10%."

Marker = Mapping[str, str | float]

ROOM = 1.25
"""Factor by which the axes run past the outermost dots."""

TINY_S = 1e-6
"""Smallest end of an axis, where all is zero."""


def tell(result: Mapping[str, Any], trust: Trust) -> Document:
    """Return the decision and what `simserve validate --json` prints."""
    points = result["left_out"] or result["points"]
    how = (
        "Held-out: each group of runs (a model and TP degree) was predicted by constants fitted to the other groups."
        if result["left_out"]
        else "Predicted by the shipped constants. Errors of runs that they were fitted to are in-sample."
    )
    campaign = result["campaign"]
    assumed = f"{campaign['requests_per_client']} requests per client. {campaign['source']}"
    compared = f"Predicted against measured, {plural(len(points), 'run')}."
    keys: list[Key] = [(f"dot k{place}", engine) for place, engine in enumerate(_engines(points), 1)]
    charts = []
    for name, metric in METRICS.items():
        sides = [np.array([point[key] for point in points]) for key in (f"{name}_s", f"predicted_{name}_s")]
        groups = [_dots(points, name, engine, place) for place, engine in enumerate(_engines(points))]
        charts.append(Plot(name, against(sides[0], sides[1], groups), metric, NOTE, keys))
    return Document(
        command="validate",
        name=plural(len(_engines(points)), "engine"),
        state=trust.state,
        title=trust.title,
        lead=trust.sentence,
        setup=(compared, f"{how} Assumed of the client: {assumed}."),
        parts=(Chapter("runs", "Runs", [SideBySide(charts)]), _errors(points)),
        brief=(f"{trust.title}: {trust.sentence}",),
    )


def _engines(points: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({str(point["engine"]) for point in points})


def against(measured: Floats, predicted: Floats, dots: Sequence[Mapping[str, Any]]) -> Figure:
    """Return dots between axes of equal range, which shows all of measured (right) and predicted (up), with the line
    of no error."""
    low, high = min(measured.min(), predicted.min()) / ROOM, max(measured.max(), predicted.max(), TINY_S) * ROOM
    ends = [low, high]
    corners = numbers([low, high, high, low]), numbers([0.9 * low, 0.9 * high, 1.1 * high, 1.1 * low])
    filled: dict[str, Any] = {"fill": "toself", "fillcolor": "$ink/0.08", "line": {"width": 0}, "hoverinfo": "skip"}
    band = scatter("lines", *corners, **filled)
    line = scatter("lines", numbers(ends), numbers(ends), line={"color": "$soft", "width": 1}, hoverinfo="skip")
    titles = [{"title": axis(title)["title"]} for title in ("Measured", "Predicted")]
    x_axis, y_axis = (latency_axis(low, high) | title for title in titles)
    margin = {"l": 76, "r": 14, "t": 14, "b": 56}
    return figure([band, line, *map(dict, dots)], 420, xaxis=x_axis, yaxis=y_axis, margin=margin)


def dots(
    measured: Sequence[float] | Floats, predicted: Sequence[float] | Floats, texts: Sequence[str], marker: Marker
) -> dict[str, Any]:
    """Return a dot for each run or request."""
    return scatter("markers", numbers(measured), numbers(predicted), **hover(texts), marker=marker)


def _dots(points: Sequence[Mapping[str, Any]], metric: str, engine: str, place: int) -> dict[str, Any]:
    mine = [point for point in points if point["engine"] == engine]
    texts = [
        f"{engine}: {point['model']} {point['weight_dtype']}, TP {point['tp']}<br>"
        f"{point['isl']} in, {point['osl']} out, {point['concurrency']} in flight<br>"
        f"measured {seconds(point[f'{metric}_s'])}, predicted {seconds(point[f'predicted_{metric}_s'])}"
        for point in mine
    ]
    measured, predicted = ([point[f"{side}{metric}_s"] for point in mine] for side in ("", "predicted_"))
    marker: Marker = {"color": COLORS[place % 3], "symbol": SYMBOLS[place % 3], "size": 7, "opacity": 0.75}
    return dots(measured, predicted, [text(each).replace("&lt;br&gt;", "<br>") for each in texts], marker)


def _errors(points: Sequence[Mapping[str, Any]]) -> Chapter:
    """Return the errors, a row for each engine and metric."""
    rows = []
    for engine in _engines(points):
        mine = [point for point in points if point["engine"] == engine]
        for metric, title in METRICS.items():
            signed = np.array([point[f"predicted_{metric}_s"] / point[f"{metric}_s"] - 1 for point in mine])
            size = np.abs(signed)
            numbers_told = (size.mean(), np.median(size), np.percentile(size, 90))
            cells = [str(len(mine)), *(share(float(each)) for each in numbers_told), f"{signed.mean():+.1%}"]
            rows.append(Row(engine, cells, title))
    head = ["", "Runs", "Mean error", "Median", "p90", "Bias"]
    note = "Relative to the measured values; bias is the mean of the signed errors."
    return Chapter("errors", "Errors", [Table(head, rows)], note)


def error_tables(points: Sequence[Prediction]) -> Iterator[Table]:
    """Yield tables of errors by engine, model, TP and load."""
    for title, key in KEYS.items():
        table: list[Sequence[str]] = [(title, "metric", "runs", "mean error", "90% CI", "median", "p90", "bias")]
        for name, group in by(points, key).items():
            for metric in ("tpot", "ttft"):
                error = errors(group, metric)
                interval = "" if error.interval is None else f"{error.interval[0]:.1%} to {error.interval[1]:.1%}"
                ends = (f"{error.median_frac:.1%}", f"{error.p90_frac:.1%}", f"{error.bias_frac:+.1%}")
                table.append((name, metric.upper(), f"{error.n}", f"{error.mape_frac:.1%}", interval, *ends))
        yield Table.of(table)


def worst_tables(points: Sequence[Prediction]) -> Iterator[Table]:
    """Yield the runs that are furthest off in each latency."""
    for metric in ("tpot", "ttft"):
        table: list[Sequence[str]] = [(f"Worst {metric.upper()}", "measured", "predicted", "ratio")]
        for point in worst(points, metric, WORST):
            sides = (point.run.measured_s[metric], point.mean_s(metric))
            table.append((point.run.label, *(f"{side * 1e3:,.1f} ms" for side in sides), f"{point.ratio(metric):.2f}"))
        yield Table.of(table)
