"""Figures as plain dicts for plotly.js; colors are tokens (`$c1`) that the page's script resolves."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.report.formats import goal

Figure = dict[str, Any]

LOG_FROM_RATIO = 8.0
"""An axis of values that span more than this is logarithmic."""


def text(value: object) -> str:
    """Return text, made harmless inside a chart: labels there may have markup."""
    return escape(str(value))


def figure(data: list[dict[str, Any]], height: int, **layout: Any) -> Figure:
    """Return a figure in the page's quiet style."""
    base = {
        "height": height,
        "margin": {"l": 56, "r": 14, "t": 14, "b": 44},
        "font": {"size": 13, "color": "$soft"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "$card",
            "bordercolor": "$line",
            "font": {"color": "$ink", "size": 13},
            "align": "left",
        },
    }
    return {"data": data, "layout": base | layout}


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an axis with hairline grid, no zero line and no zooming, so that a phone can scroll past."""
    base: dict[str, Any] = {
        "gridcolor": "$grid",
        "linecolor": "$line",
        "tickcolor": "$line",
        "zeroline": False,
        "fixedrange": True,
        "tickangle": 0,
    }
    if title is not None:
        base["title"] = {"text": title, "standoff": 8, "font": {"size": 13}}
    return base | more


def hover(texts: Iterable[str]) -> dict[str, Any]:
    """Return what a point says under the pointer."""
    return {"text": list(texts), "hovertemplate": "%{text}<extra></extra>"}


def scatter(mode: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return points, a line, or both."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def label(content: str, x: float, y: float, color: str = "$ink", **placed: Any) -> dict[str, Any]:
    """Return a text at a place of a chart, without an arrow."""
    font = {"color": color, "size": 13}
    return {"x": x, "y": y, "text": content, "showarrow": False, "font": font, **placed}


def whiskers(values: Sequence[float], ends: Sequence[tuple[float, float]], color: str) -> dict[str, Any]:
    """Return the intervals of values; NaN is no end."""
    above = numbers([high - value for value, (_, high) in zip(values, ends, strict=True)])
    below = numbers([value - low for value, (low, _) in zip(values, ends, strict=True)])
    look = {"color": color, "thickness": 1.5, "width": 4}
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **look}


def latency_axis(low_s: float, high_s: float) -> dict[str, Any]:
    """Return a time axis from low to high; logarithmic where it spans much, labeled in ms and s."""
    if low_s > 0 and high_s / low_s > LOG_FROM_RATIO:
        return log_axis((low_s, high_s), goal)
    ticks = _even_ticks(low_s, high_s)
    return axis(range=[low_s, high_s], tickvals=ticks, ticktext=[goal(tick) if tick else "0" for tick in ticks])


def log_axis(ends: tuple[float, float], form: Callable[[float], str], title: str | None = None) -> dict[str, Any]:
    """Return a logarithmic axis with its ticks as `form` writes them."""
    ticks, low_high = _log_ticks(*ends), [float(np.log10(end)) for end in ends]
    return axis(title, type="log", range=low_high, tickvals=ticks, ticktext=[form(tick) for tick in ticks])


def numbers(values: Sequence[float] | NDArray[Any], figures: int = 5) -> list[float | None]:
    """Return plain floats with that many figures, None for NaN, as JSON wants them."""
    return [None if value != value else float(f"{value:.{figures}g}") for value in map(float, values)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 of each decade; fewer where there are many decades."""
    steps = (1, 2, 5) if high / low < 150 else (1, 3) if high / low < 3000 else (1,)
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def _even_ticks(low: float, high: float) -> list[float]:
    """Return about five round steps."""
    raw = (high - low) / 5
    decade = 10.0 ** np.floor(np.log10(raw))
    step = min((decade * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda size: abs(size - raw))
    first = int(np.ceil(low / step - 1e-9))
    return [float(f"{step * k:.6g}") for k in range(first, int(np.floor(high / step + 1e-9)) + 1)]
