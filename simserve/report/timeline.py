"""Timeline of a run: arrivals, queue, batch, KV and tokens over one clock, at most 600 points a line."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from simserve.report.chart_data import MAX_BINS, Floats, PageData, bin_width, coarser, per_bin
from simserve.report.charts import Figure, axis, figure, label, numbers

POOL_COLORS = ("$c1", "$c3", "$c4", "$c2")

PANELS = {
    "queue_len": ("Requests waiting, per replica", "waiting"),
    "running": ("Requests running, per replica", "running"),
    "kv_frac": ("KV cache in use, per replica", "KV in use"),
    "prefill_tokens_per_s": ("Prefill tokens/s, per replica", "prefill tokens/s"),
    "output_tokens_per_s": ("Output tokens/s, per replica", "output tokens/s"),
}
"""Titles of the panels below the arrivals, top to bottom, and their names in the box that follows the pointer."""

MIN_BINS = 30
FEW_PER_BIN = 5.0
"""Arrivals per bin: with fewer, chance looks like bursts."""

PANEL_HEIGHT = 92
ARRIVALS_HEIGHT = 130
GAP_HEIGHT = 40
MARGIN = {"l": 56, "r": 14, "t": 30, "b": 48}


@dataclass(frozen=True)
class TimelineTrack:
    """One quantity of one pool, `(n_bins,)`: the mean over its replicas and the highest of them."""

    pool: str
    mean: Floats
    peak: Floats


@dataclass(frozen=True)
class Timeline:
    """What happened when; every array is `(n_bins,)`, bin i is [i, i + 1) × its width from the start."""

    arrival_width_s: float
    met_per_s: Floats
    missed_per_s: Floats | None
    """Arrivals by whether they went on to meet the SLO; None and all in met_per_s without one."""
    width_s: float
    tracks: Mapping[str, tuple[TimelineTrack, ...]]
    """Tracks by key of PANELS; a quantity that was not recorded is not in it."""
    window_s: tuple[float, float]
    end_s: float


def timeline(page_data: PageData, window_s: tuple[float, float]) -> Timeline:
    """Return the timeline of a run, binned so that a line has at most MAX_BINS points and a bin a few arrivals."""
    end_s = page_data.end_s
    width_s, series_width_s = bin_widths_s(page_data)
    n_bins = max(int(np.ceil(end_s / width_s)), 1)
    missed = page_data.has_missed_slo
    others = page_data.arrival_s if missed is None else page_data.arrival_s[~missed]
    factor = round(series_width_s / page_data.interval_s)
    of_replica = np.array(page_data.replica_pool)

    def tracks(key: str) -> tuple[TimelineTrack, ...]:
        """Return a track for each pool, in the order of the replicas."""
        grid, pools = page_data.series[key], dict.fromkeys(page_data.replica_pool)
        return tuple(TimelineTrack(pool, *coarser(grid[of_replica == pool], factor)) for pool in pools)

    return Timeline(
        arrival_width_s=width_s,
        met_per_s=per_bin(others, width_s, n_bins),
        missed_per_s=None if missed is None else per_bin(page_data.arrival_s[missed], width_s, n_bins),
        width_s=series_width_s,
        tracks={key: tracks(key) for key in PANELS if page_data.n_intervals},
        window_s=window_s,
        end_s=end_s,
    )


def bin_widths_s(page_data: PageData) -> tuple[float, float]:
    """Return the time that a point stands for, of the arrivals and of the series."""
    n_bins = int(np.clip(len(page_data.arrival_s) / FEW_PER_BIN, MIN_BINS, MAX_BINS))
    return bin_width(page_data.end_s, n_bins), page_data.interval_s * (-(-page_data.n_intervals // MAX_BINS) or 1)


def timeline_figure(timeline: Timeline) -> Figure:
    """Return all panels in one figure over one time axis, so that they are zoomed and read together."""
    unit_s, unit = clock(timeline.end_s)
    panels = [key for key in PANELS if timeline.tracks.get(key)]
    heights = [ARRIVALS_HEIGHT] + [PANEL_HEIGHT] * len(panels)
    plot_height = sum(heights) + GAP_HEIGHT * len(panels)
    domains = _domains(heights, plot_height)
    missed_per_s = timeline.missed_per_s
    arrived_per_s = timeline.met_per_s if missed_per_s is None else timeline.met_per_s + missed_per_s
    layout: dict[str, Any] = {
        "xaxis": _time_axis(timeline.end_s / unit_s, unit, f"y{len(heights)}" if len(heights) > 1 else "y"),
        "yaxis": _panel_axis(domains[0], float(arrived_per_s.max())),
        "annotations": [_title("Arrivals per second", domains[0])],
        "shapes": _outside_window(timeline, unit_s),
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "margin": MARGIN,
    }
    data = _arrival_traces(timeline, unit_s)
    for place, key in enumerate(panels, start=2):
        tracks, (title, spoken) = timeline.tracks[key], PANELS[key]
        layout[f"yaxis{place}"] = _panel_axis(
            domains[place - 1], max(float(np.fmax.reduce(t.peak)) for t in tracks), key
        )
        layout["annotations"].append(_title(title, domains[place - 1]))
        for pool, track in enumerate(tracks):
            name = spoken if len(tracks) == 1 else f"{track.pool}: {spoken}"
            shown = _hover(name, ".1~%" if key == "kv_frac" else ",.3~r")
            data += _track_traces(track, timeline.width_s / unit_s, {"yaxis": f"y{place}"} | shown, pool)
    return figure(data, plot_height + MARGIN["t"] + MARGIN["b"], **layout)


def clock(end_s: float) -> tuple[float, str]:
    """Return the unit for a run of that length, in seconds and by name."""
    return (1.0, "seconds") if end_s <= 300 else (60.0, "minutes") if end_s <= 3 * 3600 else (3600.0, "hours")


def _domains(heights: list[int], plot_height: int) -> list[list[float]]:
    """Return where each panel stands on the paper, from the top down."""
    domains, top = [], plot_height
    for height in heights:
        domains.append([max(top - height, 0) / plot_height, top / plot_height])
        top -= height + GAP_HEIGHT
    return domains


def _time_axis(end: float, unit: str, lowest: str) -> dict[str, Any]:
    more = {"fixedrange": False, "range": [0, end], "anchor": lowest, "nticks": 8, "hoverformat": ".4~g"}
    more["unifiedhovertitle"] = {"text": f"%{{x:.4~g}} {unit}"}
    return axis(f"{unit.capitalize()} from the start", showgrid=False, ticks="outside", ticklen=4, **more)


def _panel_axis(domain: list[float], peak: float, key: str = "") -> dict[str, Any]:
    if key == "kv_frac":
        return axis(domain=domain, range=[0, 1.02], tickformat=".0%", tickvals=[0, 0.5, 1])
    least = 1.0 if key in ("queue_len", "running") else 1e-3  # less than one request is not worth a whole panel
    return axis(domain=domain, range=[0, max(peak * 1.06, least)], nticks=4, tickformat="~s" if peak >= 1000 else "~g")


def _title(text: str, domain: list[float]) -> dict[str, Any]:
    return label(text, 0, domain[1], xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=5)


def _outside_window(timeline: Timeline, unit_s: float) -> list[dict[str, Any]]:
    """Return shades over the warm-up and over what follows the last arrival."""
    start_s, end_s = timeline.window_s
    spans = [(0.0, start_s), (end_s, timeline.end_s)]
    shade = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}, "layer": "below"}
    shade["fillcolor"] = "$shade/0.13"
    return [
        shade | {"x0": low / unit_s, "x1": high / unit_s} for low, high in spans if high - low > 1e-3 * timeline.end_s
    ]


def _arrival_traces(timeline: Timeline, unit_s: float) -> list[dict[str, Any]]:
    x = _starts(timeline.met_per_s, timeline.arrival_width_s / unit_s)
    base: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": x, "yaxis": "y", "stackgroup": "arrivals"}
    name = "arrivals/s" if timeline.missed_per_s is None else "arrivals/s that met the SLO"
    met = base | {"y": numbers(timeline.met_per_s, 4), "name": name, "fillcolor": "$c1/0.55"} | _arrivals_hover(name)
    met["line"] = {"width": 0, "color": "$c1", "shape": "hv"}
    if timeline.missed_per_s is None:
        return [met]
    missed = base | {"y": numbers(timeline.missed_per_s, 4), "name": "missed", "fillcolor": "$c2/0.85"}
    missed |= _arrivals_hover("arrivals/s that missed it")
    missed["line"] = {"width": 0, "color": "$c2", "shape": "hv"}
    return [missed, met]


def _arrivals_hover(label: str) -> dict[str, Any]:
    """Return `arrivals/s that missed it 3.2`."""
    return {"hovertemplate": f"{label} <b>%{{y:,.3~r}}</b><extra></extra>"}


def _hover(label: str, number_format: str) -> dict[str, Any]:
    """Return `waiting 3.2, highest 5.1`, for one track of a panel."""
    shown = f"{_literal(label)} <b>%{{y:{number_format}}}</b>, highest %{{customdata:{number_format}}}<extra></extra>"
    return {"hovertemplate": shown}


def _track_traces(track: TimelineTrack, width: float, more: dict[str, Any], place: int) -> list[dict[str, Any]]:
    """Return the mean as a line and, where replicas differ, the band from it to the highest one."""
    base = {"type": "scatter", "mode": "lines", "x": _starts(track.mean, width)} | more
    color = POOL_COLORS[place % len(POOL_COLORS)]
    line = {"color": color, "width": 1.6, "shape": "hv", "dash": "solid" if place < len(POOL_COLORS) else "4px,3px"}
    pool = _literal(track.pool)
    mean = base | {
        "y": numbers(track.mean, 4),
        "name": f"{pool} mean",
        "line": line,
        "customdata": numbers(track.peak, 4),
    }
    if np.allclose(track.mean, track.peak, equal_nan=True):
        return [mean | {"name": pool}]
    edge = {"color": f"{color}/0.45", "width": 0.6, "shape": "hv"}
    peak = base | {"y": numbers(track.peak, 4), "name": f"{pool} highest", "line": edge}
    return [mean, peak | {"hoverinfo": "skip", "hovertemplate": None, "fill": "tonexty", "fillcolor": f"{color}/0.22"}]


def _literal(text: str) -> str:
    """Return text that plotly, which reads labels as markup and as templates, shows as it is."""
    return escape(text).replace("{", "&#123;")


def _starts(values: Floats, width: float) -> list[float | None]:
    return numbers(np.arange(len(values)) * width, 6)
