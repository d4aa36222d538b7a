"""Charts of a sweep: two Pareto fronts with a labeled dot for each point."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.metrics.answers.parts import Interval
from simserve.metrics.answers.sweep import PointOfSweep, SweepAnswer
from simserve.report.charts import Figure, axis, figure, label, latency_axis, numbers, scatter, text, whiskers
from simserve.report.formats import plural, rate, seconds, share
from simserve.report.sweep.words import dollars, values_of

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
    point: PointOfSweep


def cost_chart(answer: SweepAnswer) -> Figure | None:
    """Return goodput against cost; None if no point has both."""
    dots = [_dot(point, point.usd_per_hour, point.means.goodput_per_s) for point in with_goodput(answer)]
    if not dots:
        return None
    axes = {
        "xaxis": axis("Dollars an hour", rangemode="tozero"),
        "yaxis": axis("Goodput, requests/s", rangemode="tozero"),
    }
    return _draw(answer, dots, answer.fronts.cost_goodput, "top left", axes)


def latency_chart(answer: SweepAnswer) -> Figure | None:
    """Return p99 TPOT against p99 TTFT; None if no point has both."""
    pairs = [(point, point.means) for point in with_latencies(answer)]
    dots = [_dot(point, means.ttft_p99_s.value or 0.0, means.tpot_p99_s) for point, means in pairs]
    if not dots or min(dot.x for dot in dots) <= 0 or min(dot.y for dot in dots) <= 0:
        return None
    limits = {} if answer.slo_classes else answer.slo or {}  # those of all requests of all points
    slo: dict[str, float] = {key: limits[key] for key in ("ttft_s", "tpot_s") if key in limits}
    ends = [end for dot in dots for end in (dot.y, dot.low, dot.high) if end]
    axes = {
        "xaxis": _latency([dot.x for dot in dots], slo.get("ttft_s"), "p99 TTFT"),
        "yaxis": _latency(ends, slo.get("tpot_s"), "p99 TPOT"),
    }
    drawn = _draw(answer, dots, answer.fronts.ttft_tpot, "top right", axes)
    drawn["layout"] |= _slo_box(slo, axes)
    return drawn


def with_goodput(answer: SweepAnswer) -> list[PointOfSweep]:
    """Return the points that the first chart draws."""
    return [point for point in answer.points if point.is_finished and point.goodput_per_s is not None]


def with_latencies(answer: SweepAnswer) -> list[PointOfSweep]:
    """Return the points that the second chart draws."""
    finished = [point for point in answer.points if point.is_finished]
    return [each for each in finished if None not in (each.means.ttft_p99_s.value, each.means.tpot_p99_s.value)]


def left_out(answer: SweepAnswer, drawn: Sequence[PointOfSweep], front: Sequence[int]) -> str:
    """Return how many points a chart lacks, and that its front has too many points for numbers."""
    n = len(answer.points) - len(drawn)
    text = f" {plural(n, 'point')} without a measured value {'is' if n == 1 else 'are'} not drawn." if n else ""
    if len(front) > MOST_NAMED:
        text += f" The front has {len(front)} points, too many for numbers beside them: point at one to read it."
    return text


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
    words = label("<b>SLO</b>", 0, top, "$c2", xref="paper", xanchor="left", yanchor="bottom", xshift=3)
    return {"shapes": [shape | box], "annotations": [words]}


def _dot(point: PointOfSweep, x: float, y: Interval) -> Dot:
    return Dot(x, y.value or 0.0, None if y.low is None else max(y.low, 0.0), y.high, point)


def _latency(values: Sequence[float], limit: float | None, title: str) -> dict[str, Any]:
    shown = [*values, *([] if limit is None else [limit])]
    return latency_axis(min(shown) / ROOM, max(shown) * ROOM) | {"title": axis(title)["title"]}


def _draw(answer: SweepAnswer, dots: Sequence[Dot], front: Sequence[int], side: str, axes: Mapping[str, Any]) -> Figure:
    """Return the front as steps with numbered points, and all other points behind it."""
    on_front = {number: at for at, number in enumerate(front)}
    best = sorted((dot for dot in dots if dot.point.point in on_front), key=lambda dot: on_front[dot.point.point])
    beaten = [dot for dot in dots if dot.point.point not in on_front and not dot.point.saturated]
    saturated = [dot for dot in dots if dot.point.saturated]
    x, y = numbers([dot.x for dot in best]), numbers([dot.y for dot in best])
    line = scatter("lines", x, y, line={"color": "$c1", "width": 1.5, "shape": "hv"}, hoverinfo="skip")
    traces = [
        line,
        _trace(answer, saturated, {"color": "$shade", "symbol": "x-thin-open", "size": 8, "line": {"width": 1.5}}),
        _trace(answer, beaten, {"color": "$shade", "symbol": "circle", "size": 8, "opacity": 0.75}),
        _trace(
            answer, best, {"color": "$c1", "symbol": "diamond", "size": 10}, side if len(best) <= MOST_NAMED else None
        ),
    ]
    return figure([trace for trace in traces if trace["x"]], 400, margin={"l": 82, "r": 22, "t": 22, "b": 56}, **axes)


def _trace(answer: SweepAnswer, dots: Sequence[Dot], marker: Mapping[str, Any], named: str | None = None) -> Figure:
    trace: Figure = scatter(
        "markers" if named is None else "markers+text",
        numbers([dot.x for dot in dots]),
        numbers([dot.y for dot in dots]),
        hovertext=[_hover(answer, dot.point) for dot in dots],
        hovertemplate="%{hovertext}<extra></extra>",
        marker=dict(marker),
    )
    if named is not None:
        words = {"text": [str(dot.point.point) for dot in dots], "textposition": named}
        trace |= words | {"textfont": {"color": "$ink", "size": 13}}
    if any(dot.low is not None for dot in dots):
        ends = [(dot.y if dot.low is None else dot.low, dot.y if dot.high is None else dot.high) for dot in dots]
        trace["error_y"] = whiskers([dot.y for dot in dots], ends, marker["color"]) | {"thickness": 1, "width": 3}
    return trace


def _hover(answer: SweepAnswer, point: PointOfSweep) -> str:
    """Return the values and results of a point."""
    lines = [f"<b>{point.point}: {text(values_of(answer, point))}</b>", f"{dollars(point)} an hour"]
    if point.goodput_per_s is not None:
        met = None if point.answer is None else point.answer.attained_frac
        lines.append(f"goodput {rate(point.goodput_per_s)}/s, {share(met)} within the SLO")
    means = point.means
    lines.append(f"p99 TTFT {seconds(means.ttft_p99_s.value)}, p99 TPOT {seconds(means.tpot_p99_s.value)}")
    return "<br>".join([*lines, *(["saturated: the queue kept growing"] if point.saturated else [])])
