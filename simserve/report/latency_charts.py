"""Charts of a run's latencies: the cumulative distribution, its tail, and TTFT against prompt length."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simserve.report import charts
from simserve.report.chart_data import Bands, CdfCurve, Floats
from simserve.report.formats import goal, seconds, share

SLO_LINE = {"color": "$c2", "width": 1.75, "dash": "5px,4px"}


def cdf(reached: CdfCurve, levels: Mapping[str, float], slo_s: float | None, within_slo: float | None) -> charts.Figure:
    """Return the share of requests that took at most a time, with the SLO and `levels` (p50, p99) on the curve."""
    texts = [f"{share(y)} within {seconds(x)}" for x, y in zip(reached.value, reached.share, strict=True)]
    heights = np.interp(list(levels.values()), reached.value, reached.share)
    x_axis = _curve_axis(reached, slo_s)
    shapes = [] if slo_s is None else [_slo_upright(slo_s)]
    labels = [] if slo_s is None else [_slo_label(slo_s, within_slo, x_axis)]
    places = zip(levels.items(), heights, strict=True)
    labels += [_level_label(name, value, height, x_axis) for (name, value), height in places]
    y_axis = charts.axis(range=[0, 1.14], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])
    data = [_curve_line(reached, reached.value, reached.share, texts), _level_dots(levels, heights)]
    margin = {"l": 56, "r": 14, "t": 14, "b": 30}
    return charts.figure(data, 306, margin=margin, xaxis=x_axis, yaxis=y_axis, shapes=shapes, annotations=labels)


def tail(
    reached: CdfCurve, levels: Mapping[str, float], slo_s: float | None, beyond_slo: float | None
) -> charts.Figure:
    """Return the share of requests that took longer, on a logarithmic axis, with the SLO and `levels` (p99, p99.9)."""
    longer = np.maximum(1 - reached.share, 0.0)
    least = min(1 / max(reached.n_requests, 1), 0.1)
    texts = [f"{share(y)} longer than {seconds(x)}" for x, y in zip(reached.value, longer, strict=True)]
    x_axis = _curve_axis(reached, slo_s)
    drawn = np.where(longer < 0.5 * least, 0.1 * least, longer)  # none is longer: the line leaves the chart downward
    at, heights = reached.value, np.maximum(np.interp(list(levels.values()), reached.value, longer), least)
    if longer[-1] > 0.5 * least:  # unanswered requests: their share is longer than any time
        end = 10 ** x_axis["range"][1] if x_axis.get("type") == "log" else x_axis["range"][1]
        at, drawn, texts = np.append(at, end), np.append(drawn, drawn[-1]), [*texts, texts[-1]]
    decades = range(int(np.floor(np.log10(least) + 1e-9)), 1)
    ticks = [float(f"1e{decade}") for decade in decades]
    y_axis = charts.axis(type="log", range=[float(np.log10(least)) - 0.12, 0.06], tickvals=ticks)
    y_axis["ticktext"] = [f"{100 * tick:.6g}%" for tick in ticks]
    labels = [_tail_label(*of, float(height), x_axis) for of, height in zip(levels.items(), heights, strict=True)]
    shapes = []
    if slo_s is not None:
        shapes = [_slo_upright(slo_s) | {"yref": "paper"}]
        labels.append(_slo_top_label(slo_s, beyond_slo, x_axis))
    data = [_curve_line(reached, at, drawn, texts), _level_dots(levels, heights)]
    margin = {"l": 62, "r": 14, "t": 26, "b": 30}
    return charts.figure(data, 306, margin=margin, xaxis=x_axis, yaxis=y_axis, shapes=shapes, annotations=labels)


def _curve_axis(reached: CdfCurve, slo_s: float | None) -> dict[str, Any]:
    return charts.latency_axis(
        *_range([float(reached.value[0]), float(reached.value[-1]), *([] if slo_s is None else [slo_s])])
    )


def _curve_line(reached: CdfCurve, x: Floats, y: Floats, texts: Sequence[str]) -> dict[str, Any]:
    line = {"color": "$c1", "width": 2.5, "shape": "hv" if reached.is_exact else "linear"}
    return charts.scatter("lines", charts.numbers(x), charts.numbers(y, 7), **charts.hover(texts), line=line)


def _level_dots(levels: Mapping[str, float], heights: Floats) -> dict[str, Any]:
    marker = {"color": "$c1", "size": 9, "line": {"color": "$card", "width": 2}}
    x, y = charts.numbers(list(levels.values())), charts.numbers(heights, 7)
    return charts.scatter("markers", x, y, marker=marker, hoverinfo="skip", cliponaxis=False)


def _slo_label(slo_s: float, within: float | None, x_axis: dict[str, Any]) -> dict[str, Any]:
    """Return the name of the SLO and the share of requests within it, beside the foot of its line."""
    at = _place(slo_s, x_axis)
    side, shift = ("left", 7) if _along(at, x_axis) < 0.55 else ("right", -7)
    sentence = f"<b>SLO {goal(slo_s)}</b>" + (f"<br>{share(within)} within" if within is not None else "")
    place = {"yref": "paper", "yanchor": "bottom", "xanchor": side, "xshift": shift, "align": side}
    return charts.label(sentence, at, 0.04, "$c2", **place)


def _slo_upright(slo_s: float) -> dict[str, Any]:
    line: dict[str, Any] = {"type": "line", "x0": slo_s, "x1": slo_s, "y0": 0, "y1": 1, "layer": "below"}
    return line | {"line": SLO_LINE}


def _slo_top_label(slo_s: float, beyond: float | None, x_axis: dict[str, Any]) -> dict[str, Any]:
    """Return the name of the SLO and the share of requests beyond it, above its line."""
    at = _place(slo_s, x_axis)
    along = _along(at, x_axis)
    side = "left" if along < 0.2 else "right" if along > 0.7 else "center"
    sentence = f"<b>SLO {goal(slo_s)}</b>" + (f": {share(beyond)} longer" if beyond is not None else "")
    return charts.label(sentence, at, 1, "$c2", yref="paper", yanchor="bottom", xanchor=side)


def by_prompt(prompt_tokens: Floats, ttft_s: Floats, bands: Bands, slo_s: float | None) -> charts.Figure:
    """Return TTFT against prompt length: a sample of requests as dots, p50 and p99 of all of them as lines."""
    text = [f"{int(x):,} tokens: {seconds(y)}" for x, y in zip(prompt_tokens, ttft_s, strict=True)]
    opacity = float(np.clip(12 / np.sqrt(len(ttft_s)), 0.18, 0.8))
    marker = {"color": "$c1", "size": 4, "opacity": opacity}
    dots = charts.scatter(
        "markers", prompt_tokens.astype(np.int64).tolist(), charts.numbers(ttft_s), **charts.hover(text), marker=marker
    )
    styles = (("p50", bands.p50, {"width": 2}), ("p99", bands.p99, {"width": 2, "dash": "2px,3px"}))
    lines = [_band_line(bands, y, {"color": "$ink"} | style, name) for name, y, style in styles if len(y)]
    seen = [float(ttft_s.min()), float(ttft_s.max()), *([] if slo_s is None else [slo_s])]
    y_axis = charts.latency_axis(*_range(seen))
    shapes = []
    if slo_s is not None:
        shapes = [{"type": "line", "y0": slo_s, "y1": slo_s, "x0": 0, "x1": 1, "xref": "paper", "line": SLO_LINE}]
    x_axis = _token_axis(float(prompt_tokens.min()), float(prompt_tokens.max()))
    margin = {"l": 66, "r": 14, "t": 14, "b": 50}
    return charts.figure([dots, *lines], 380, xaxis=x_axis, yaxis=y_axis, shapes=shapes, margin=margin)


def _band_line(bands: Bands, y: Floats, line: dict[str, Any], name: str) -> dict[str, Any]:
    text = [f"{name} near {int(at):,} tokens: {seconds(value)}" for at, value in zip(bands.x, y, strict=True)]
    return charts.scatter("lines", charts.numbers(bands.x), charts.numbers(y), **charts.hover(text), line=line)


def _token_axis(low: float, high: float) -> dict[str, Any]:
    """Return an axis of prompt lengths."""
    low, high = max(low * 0.93, 0.5), max(high * 1.07, 1.0)
    if high / low > charts.LOG_FROM_RATIO:
        return charts.log_axis((low, high), "{:,.0f}".format, "Prompt tokens")
    return charts.axis("Prompt tokens", range=[low, high], tickformat=",d", nticks=7)


def _level_label(name: str, value: float, height: float, x_axis: dict[str, Any]) -> dict[str, Any]:
    """Return `p99 1.36 s` at its dot, where the curve is not: above it near the top, else to its lower right."""
    at = _place(value, x_axis)
    extra: dict[str, Any]
    if height > 0.9:
        side = "center" if _along(at, x_axis) < 0.86 else "right"
        extra = {"xanchor": side, "yanchor": "bottom", "yshift": 6}
    else:
        extra = {"xanchor": "left", "yanchor": "top", "xshift": 5, "yshift": -5}
    return charts.label(f"{name} <b>{seconds(value)}</b>", at, float(height), **extra)


def _tail_label(name: str, value: float, height: float, x_axis: dict[str, Any]) -> dict[str, Any]:
    """Return `p99 1.36 s` at its dot: above the falling curve, or below it where that would leave the chart."""
    at = _place(value, x_axis)
    extra: dict[str, Any]
    if _along(at, x_axis) < 0.7:
        extra = {"xanchor": "left", "yanchor": "bottom", "xshift": 4, "yshift": 1}
    else:
        extra = {"xanchor": "right", "yanchor": "top", "xshift": -5, "yshift": 1}
    return charts.label(f"{name} <b>{seconds(value)}</b>", at, float(np.log10(height)), **extra)


def _along(at: float, x_axis: dict[str, Any]) -> float:
    """Return how far along the axis a place is, 0 to 1."""
    low, high = x_axis["range"]
    return float((at - low) / (high - low))


def _place(value: float, x_axis: dict[str, Any]) -> float:
    """Return where annotations want a value: its logarithm on a logarithmic axis."""
    return float(np.log10(value)) if x_axis.get("type") == "log" else value


def _range(values: list[float]) -> tuple[float, float]:
    """Return what an axis shows: the values with a little room, from 0 where that is near."""
    low, high = min(values), max(values)
    if low > 0 and high / low > charts.LOG_FROM_RATIO:
        return low / 1.15, high * 1.25
    room = 0.1 * (high - low)
    return (low - room, high + room) if low > 0.4 * high and room > 0 else (0.0, max(high * 1.1, 1e-6))
