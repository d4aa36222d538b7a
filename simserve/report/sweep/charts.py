"""Charts of a sweep: two Pareto fronts with a labeled dot for each point."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.charts import Figure, axis, figure, latency_axis, numbers, scatter
from simserve.report.formats import number, plural, rate, seconds, share
from simserve.report.sections import text
from simserve.report.sweep.words import GOODPUT, TPOT, TTFT, dollars, value, values_of

ROOM = 1.2
"""Factor by which latency axes exceed the outermost dots."""

MOST_NAMED = 12
"""Most points of a front with numbers beside their dots; more would overlap."""


@dataclass(frozen=True)
class Dot:
    """A point on a chart."""

    x: float
    y: float
    low: float | None
    """Lower end of the interval of y, if any."""
    high: float | None
    point: Mapping[str, Any]


def cost_chart(result: Mapping[str, Any]) -> Figure | None:
    """Return goodput against cost; None if no point has both."""
    dots = [_dot(point, float(point["fleet"]["usd_per_hour"]), GOODPUT) for point in _ran(result, GOODPUT)]
    if not dots:
        return None
    axes = {
        "xaxis": axis("Dollars an hour", rangemode="tozero"),
        "yaxis": axis("Goodput, requests/s", rangemode="tozero"),
    }
    return _drawn(result, dots, ("cost_goodput", "top left"), axes)


def latency_chart(result: Mapping[str, Any]) -> Figure | None:
    """Return p99 TPOT against p99 TTFT; None if no point has both."""
    known = [point for point in _ran(result, TTFT) if value(point, TPOT) is not None]
    dots = [_dot(point, float(value(point, TTFT) or 0), TPOT) for point in known]
    if not dots or min(dot.x for dot in dots) <= 0 or min(dot.y for dot in dots) <= 0:
        return None
    slo = _slo(result)
    ends = [end for dot in dots for end in (dot.y, dot.low, dot.high) if end]
    axes = {
        "xaxis": _latency([dot.x for dot in dots], slo.get("ttft_s"), "p99 TTFT"),
        "yaxis": _latency(ends, slo.get("tpot_s"), "p99 TPOT"),
    }
    drawn = _drawn(result, dots, ("ttft_tpot", "top right"), axes)
    drawn["layout"] |= _slo_box(slo, axes)
    return drawn


def left_out(result: Mapping[str, Any], *keys: str) -> str:
    """Return how many points a chart of these measures lacks, and on which front the points go without numbers."""
    n = len(result["points"]) - sum(
        all(value(point, key) is not None for key in keys) for point in _ran(result, keys[0])
    )
    text = f" {plural(n, 'point')} without a measured value {'is' if n == 1 else 'are'} not drawn." if n else ""
    front = result["fronts"]["ttft_tpot" if TTFT in keys else "cost_goodput"]
    if len(front) > MOST_NAMED:
        text += f" The front has {len(front)} points, too many for numbers beside them: point at one to read it."
    return text


def _slo(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits on TTFT and TPOT that hold for all requests of all points."""
    slo = {} if result["slo_classes"] else result["slo"] or {}
    return {key: limit for key in ("ttft_s", "tpot_s") if (limit := number(slo.get(key))) is not None}


def _slo_box(slo: Mapping[str, float], axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the region within the SLO, shaded, its name above its left corner, where there is always room."""
    if not slo:
        return {}
    box: dict[str, float] = {}
    for key, name in (("ttft_s", "xaxis"), ("tpot_s", "yaxis")):
        low, high = (10**end if axes[name].get("type") == "log" else end for end in axes[name]["range"])
        box |= {f"{name[0]}0": low, f"{name[0]}1": slo.get(key, high)}
    shape: dict[str, Any] = {"type": "rect", "layer": "below", "fillcolor": "$good/0.10"}
    shape["line"] = {"color": "$c2", "width": 1.5, "dash": "5px,4px"}
    top = math.log10(box["y1"]) if axes["yaxis"].get("type") == "log" else box["y1"]
    label: dict[str, Any] = {
        "x": 0,
        "xref": "paper",
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 3,
        "showarrow": False,
    }
    return {
        "shapes": [shape | box],
        "annotations": [label | {"text": "<b>SLO</b>", "font": {"color": "$c2", "size": 13}}],
    }


def _ran(result: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [point for point in result["points"] if point["status"] == "finished" and value(point, key) is not None]


def _dot(point: Mapping[str, Any], x: float, key: str) -> Dot:
    y = point["measures"][key]
    low = number(y["low"])
    return Dot(x, float(y["value"]), None if low is None else max(low, 0.0), number(y["high"]), point)


def _latency(values: Sequence[float], limit: float | None, title: str) -> dict[str, Any]:
    shown = [*values, *([] if limit is None else [limit])]
    result = latency_axis(min(shown) / ROOM, max(shown) * ROOM)
    return result | {"title": axis(title)["title"]}


def _drawn(result: Mapping[str, Any], dots: Sequence[Dot], named: tuple[str, str], axes: Mapping[str, Any]) -> Figure:
    """Return the front as steps with numbered points, and all other points behind it."""
    front, side = named
    on_front = {number: at for at, number in enumerate(result["fronts"][front])}
    best = sorted((dot for dot in dots if dot.point["point"] in on_front), key=lambda dot: on_front[dot.point["point"]])
    beaten = [dot for dot in dots if dot.point["point"] not in on_front and not dot.point["saturated"]]
    saturated = [dot for dot in dots if dot.point["saturated"]]
    x, y = numbers([dot.x for dot in best]), numbers([dot.y for dot in best])
    line = scatter("lines", x, y, line={"color": "$c1", "width": 1.5, "shape": "hv"}, hoverinfo="skip")
    traces = [
        line,
        _trace(result, saturated, {"color": "$shade", "symbol": "x-thin-open", "size": 8, "line": {"width": 1.5}}),
        _trace(result, beaten, {"color": "$shade", "symbol": "circle", "size": 8, "opacity": 0.75}),
        _trace(
            result, best, {"color": "$c1", "symbol": "diamond", "size": 10}, side if len(best) <= MOST_NAMED else None
        ),
    ]
    return figure([trace for trace in traces if trace["x"]], 400, margin={"l": 82, "r": 22, "t": 22, "b": 56}, **axes)


def _trace(
    result: Mapping[str, Any], dots: Sequence[Dot], marker: Mapping[str, Any], named: str | None = None
) -> Figure:
    trace: Figure = scatter(
        "markers" if named is None else "markers+text",
        numbers([dot.x for dot in dots]),
        numbers([dot.y for dot in dots]),
        hovertext=[_hover(result, dot.point) for dot in dots],
        hovertemplate="%{hovertext}<extra></extra>",
        marker=dict(marker),
    )
    if named is not None:
        words = {"text": [str(dot.point["point"]) for dot in dots], "textposition": named}
        trace |= words | {"textfont": {"color": "$ink", "size": 13}}
    if any(dot.low is not None for dot in dots):
        ends = [
            (dot.low if dot.low is not None else dot.y, dot.high if dot.high is not None else dot.y) for dot in dots
        ]
        bars = {"type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": marker["color"]}
        bars |= {"array": numbers([high - dot.y for dot, (_, high) in zip(dots, ends, strict=True)])}
        trace["error_y"] = bars | {
            "arrayminus": numbers([dot.y - low for dot, (low, _) in zip(dots, ends, strict=True)])
        }
    return trace


def _hover(result: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """Return the values and results of a point."""
    lines = [f"<b>{point['point']}: {text(values_of(result, point))}</b>", f"{dollars(point)} an hour"]
    if value(point, GOODPUT) is not None:
        met = point["answer"] and point["answer"]["attained_frac"]
        lines.append(f"goodput {rate(value(point, GOODPUT))}/s, {share(met)} within the SLO")
    lines.append(f"p99 TTFT {seconds(value(point, TTFT))}, p99 TPOT {seconds(value(point, TPOT))}")
    return "<br>".join([*lines, *(["saturated: the queue kept growing"] if point["saturated"] else [])])
