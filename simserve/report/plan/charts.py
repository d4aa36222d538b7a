"""Plan charts: monthly cost of each option, and GPUs by month and hour."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.charts import Figure, axis, figure
from simserve.report.formats import plural, rate
from simserve.report.plan.reasons import usd
from simserve.report.plan.words import option_name

BAR = 34
"""Height of a bar and the gap below it, in pixels."""

ROOM = 1.16
"""Length of the axis as a multiple of the longest bar, for its label."""


def costs(result: Mapping[str, Any]) -> Figure | None:
    """Return a bar for each option that meets the SLO, the cheapest on top; None without one."""
    held = [row for row in result["options"] if row["state"] == "holds"]
    if not held:
        return None
    names = [option_name(row) for row in held]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(held))),
        "x": [row["usd_per_month"] for row in held],
        "marker": {"color": ["$c1" if row["rank"] == 1 else "$shade" for row in held]},
        "error_x": _open(held),
        "text": [f"{usd(row['usd_per_month'])}, {plural(row['gpus'], 'GPU')}" for row in held],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "width": 0.56,
    }
    most = max(row["usd_per_month_high"] for row in held)
    labels = [_label(place, row, name) for place, (row, name) in enumerate(zip(held, names, strict=True))]
    y_axis = axis(range=[len(held) - 0.4, -0.9], showticklabels=False, showgrid=False)
    x_axis = axis(range=[0, most * ROOM], tickprefix="$", tickformat=",.0f", nticks=5)
    margin = {"l": 14, "r": 14, "t": 6, "b": 34}
    return figure([bars], 56 + (BAR + 20) * len(held), xaxis=x_axis, yaxis=y_axis, annotations=labels, margin=margin)


def _open(held: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return whiskers to the cost of the smallest statistically tied fleet."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [row["usd_per_month_high"] - row["usd_per_month"] or None for row in held],
        "arrayminus": [row["usd_per_month"] - row["usd_per_month_low"] or None for row in held],
        "color": "$ink",
        "thickness": 1.5,
        "width": 5,
    }


def _label(place: int, row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the option's name above its bar, where a phone has room for it."""
    text = f"<b>{name}</b>  {usd(row['usd_per_month'])}, {plural(row['gpus'], 'GPU')}"
    at = {"x": 0, "y": place - 0.3, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return at | {"text": text, "font": {"color": "$ink", "size": 13}}


def months(result: Mapping[str, Any]) -> Figure | None:
    """Return the GPUs of each month as steps; None without growth."""
    growth = result["growth"]
    if growth is None:
        return None
    hover = [
        f"month {row['month']}: {_need(row)} for {rate(row['offered_per_s'])} requests/s" for row in growth["rows"]
    ]
    return _stair([row["month"] for row in growth["rows"]], growth["rows"], hover, "Months from now")


def hours(result: Mapping[str, Any]) -> Figure | None:
    """Return the GPUs of each hour as steps; None unless the load is diurnal."""
    by_hour = result["autoscaling"]
    if by_hour is None:
        return None
    hover = [
        f"hour {row['hour']}: {_need(row)} for up to {rate(row['peak_per_s'])} requests/s" for row in by_hour["rows"]
    ]
    return _stair([row["hour"] for row in by_hour["rows"]], by_hour["rows"], hover, "Hour")


def _need(row: Mapping[str, Any]) -> str:
    return "more GPUs than --max-gpus allows" if row["gpus"] is None else plural(row["gpus"], "GPU")


def _stair(x: list[int], rows: Sequence[Mapping[str, Any]], hover: list[str], title: str) -> Figure:
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": [row["gpus"] for row in rows],
        "text": hover,
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": "$c1", "width": 2.5, "shape": "hv"},
        "marker": {"color": "$c1", "size": 6},
    }
    most = max((row["gpus"] for row in rows if row["gpus"] is not None), default=1)
    y_axis = axis("GPUs", range=[0, most * 1.15], tickformat=",d", nticks=min(6, most + 1))
    x_axis = axis(title, range=[x[0] - 0.3, x[-1] + 0.3], tickformat=",d", nticks=13)
    return figure([line], 280, xaxis=x_axis, yaxis=y_axis, margin={"l": 56, "r": 14, "t": 14, "b": 50})
