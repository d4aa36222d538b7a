"""Charts of a capacity: latency and attainment against load, with the answer, the goal and the knee."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.metrics.answers.capacity_loads import ProbedLoad
from simserve.metrics.answers.parts import Bounded
from simserve.report.capacity.load_curve import LoadUnit
from simserve.report.charts import Figure, axis, figure, hover, label, latency_axis, numbers, scatter, text, whiskers
from simserve.report.formats import SHORT, goal, plural, seconds, share

CURVES = ("p50", "p99")

TOP_ROOM = 1.35
"""Height of the axis over the highest point, which leaves room for labels."""

WIDE = 20.0
"""Ratio of latencies beyond which their axis is logarithmic."""

GOAL_ROOM = 10
"""Depth of the attainment chart, in multiples of the share that may miss: readers look near the goal."""


@dataclass(frozen=True)
class LoadAxis:
    """Horizontal axis of a chart."""

    unit: LoadUnit
    answer: Bounded | None
    """None where there is none."""

    def of(self, points: Sequence[ProbedLoad]) -> list[float]:
        """Return the loads of points."""
        return [float(self.unit.of(point)) for point in points]

    def drawn(self, points: Sequence[ProbedLoad]) -> dict[str, Any]:
        """Return the axis, from 0 to 5% beyond the last point."""
        return axis(self.unit.title, range=[0, 1.05 * max(self.of(points))], nticks=8)


def latency_chart(
    points: Sequence[ProbedLoad], key: str, loads: LoadAxis, marks: Mapping[str, float | None]
) -> Figure | None:
    """Chart p50 and p99 of a latency; `marks` are its `slo` and `knee`, if any. None where no run has a value."""
    known = [point for point in points if point.latency_s(key, "p99") is not None]
    heights = [_height(point, key, level) for point in known for level in CURVES]
    if max(heights, default=0.0) <= 0:
        return None
    lines = [_line(known, key, level, loads) for level in CURVES]
    slo = marks.get("slo")
    positive = [each for each in (*heights, slo) if each]
    is_wide = max(positive) / min(positive) > WIDE
    y_axis = latency_axis(min(positive) / 1.2 if is_wide else 0.0, max(positive) * (TOP_ROOM if is_wide else 1.12))
    shapes, labels = _answer_mark(loads)
    if slo is not None:
        shapes.append(_level(slo))
        labels.append(_level_label(slo, f"<b>SLO {goal(slo)}</b>", y_axis, "bottom"))
    knee = marks.get("knee")
    dots = [] if knee is None else [_knee(knee, known, key, loads)]
    margin = {"l": 64, "r": 14, "t": 26, "b": 48}
    layout = {"xaxis": loads.drawn(points), "yaxis": y_axis, "shapes": shapes, "annotations": labels, "margin": margin}
    return figure([*lines, *dots], 340, **layout)


def _height(point: ProbedLoad, key: str, level: str) -> float:
    return point.latency_s(key, level) or 0.0


def _line(points: Sequence[ProbedLoad], key: str, level: str, loads: LoadAxis) -> dict[str, Any]:
    """Return a line with open marks where the queue only grew: latency there depends on the length of the runs."""
    x = loads.of(points)
    values = [_height(point, key, level) for point in points]
    texts = [
        text(f"{loads.unit.format(at)}: {level} {SHORT[key]} {seconds(value)}{_grows(point)}")
        for at, value, point in zip(x, values, points, strict=True)
    ]
    is_tail = level == "p99"
    line = {"color": "$c1", "width": 2.5 if is_tail else 1.5} | ({} if is_tail else {"dash": "2px,3px"})
    marker = {"color": "$c1", "size": 7 if is_tail else 4, "symbol": _symbols(points)}
    return scatter("lines+markers", numbers(x), numbers(values), **hover(texts), line=line, marker=marker)


def _knee(at: float, points: Sequence[ProbedLoad], key: str, loads: LoadAxis) -> dict[str, Any]:
    """Return a diamond where p99 doubles its light-load value."""
    light_s = _height(points[0], key, "p99")
    words = text(f"knee at {loads.unit.format(at)}: p99 {SHORT[key]} {seconds(2 * light_s)}, twice {seconds(light_s)}")
    marker = {"color": "$c3", "size": 13, "symbol": "diamond", "line": {"color": "$card", "width": 2}}
    return scatter("markers", numbers([at]), numbers([2 * light_s]), **hover([words]), marker=marker)


def attainment_chart(points: Sequence[ProbedLoad], goal_frac: float, loads: LoadAxis) -> Figure:
    """Chart the share that met every SLO, with its interval; the answer is where it crosses the goal."""
    x, y = loads.of(points), [point.attained_frac or 0.0 for point in points]
    texts = [
        text(f"{loads.unit.format(at)}: {share(value)}{_grows(point)}")
        for at, value, point in zip(x, y, points, strict=True)
    ]
    ends = [_ends(point) for point in points]
    line = scatter(
        "lines+markers",
        numbers(x),
        numbers(y, 7),
        error_y=whiskers(y, ends, "$c1"),
        **hover(texts),
        line={"color": "$c1", "width": 2.5},
        marker={"color": "$c1", "size": 7, "symbol": _symbols(points)},
    )
    least = max(0.0, min(*y, *(low for low, _ in ends), 1 - (1 - goal_frac) * 2), _floor(goal_frac))
    room = 0.06 * (1 - least)
    decimals = max(0, math.ceil(-math.log10(1 - least) - 1e-9) - 1)
    y_axis = axis(range=[max(least - room, 0), 1 + room], tickformat=f".{decimals}%", nticks=6)
    shapes, labels = _answer_mark(loads)
    shapes.append(_level(goal_frac))
    labels.append(_level_label(goal_frac, f"<b>goal {goal_frac * 100:.4g}%</b>", y_axis, "top"))
    margin = {"l": 64, "r": 14, "t": 26, "b": 48}
    layout = {"xaxis": loads.drawn(points), "yaxis": y_axis, "shapes": shapes, "annotations": labels, "margin": margin}
    return figure([line], 340, **layout)


def _symbols(points: Sequence[ProbedLoad]) -> list[str]:
    return ["circle-open" if point.saturated else "circle" for point in points]


def below_chart(points: Sequence[ProbedLoad], goal_frac: float) -> str:
    """Return how many points lie below the chart of attainment; empty where all are on it."""
    floor = max(0.0, _floor(goal_frac))
    n = sum((point.attained_frac or 0.0) < floor for point in points)
    n_ends = sum(_ends(point)[0] < floor <= (point.attained_frac or 0.0) for point in points)
    note = f" {plural(n, 'point')} below {share(floor)} {'is' if n == 1 else 'are'} in the table only." if n else ""
    return note + (f" {plural(n_ends, 'interval')} cut off at {share(floor)}." if n_ends else "")


def _floor(goal_frac: float) -> float:
    return 1 - GOAL_ROOM * (1 - goal_frac)


def _grows(point: ProbedLoad) -> str:
    return ", the queue only grows" if point.saturated else ""


def _ends(point: ProbedLoad) -> tuple[float, float]:
    """Return the ends of the interval; the share itself where there is none."""
    at, low, high = point.attained_frac or 0.0, point.low_frac, point.high_frac
    return (at if low is None else min(low, at), at if high is None else max(high, at))


def _answer_mark(loads: LoadAxis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the answer as a vertical line in the band of its interval, with its label."""
    answer = loads.answer
    if answer is None:
        return [], []
    at, low, high = float(answer.value), answer.low, answer.high
    upright: dict[str, Any] = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at, "layer": "below"}
    shapes = [upright | {"line": {"color": "$ink", "width": 1.5}}]
    if low is not None and high is not None:
        band: dict[str, Any] = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": float(low), "x1": float(high)}
        shapes.insert(0, band | {"layer": "below", "fillcolor": "$ink/0.12", "line": {"width": 0}})
    return shapes, [label(f"<b>{loads.unit.bare(at)}</b>", at, 1, yref="paper", yanchor="bottom")]


def _level(at: float) -> dict[str, Any]:
    """Return a dashed horizontal line."""
    line: dict[str, Any] = {"type": "line", "y0": at, "y1": at, "x0": 0, "x1": 1, "xref": "paper", "layer": "below"}
    return line | {"line": {"color": "$c2", "width": 1.75, "dash": "5px,4px"}}


def _level_label(y: float, content: str, y_axis: Mapping[str, Any], anchor: str) -> dict[str, Any]:
    """Return the name of a horizontal line, at its left end."""
    at = math.log10(y) if y_axis.get("type") == "log" else y
    return label(content, 0.01, at, "$c2", xref="paper", xanchor="left", yanchor=anchor)
