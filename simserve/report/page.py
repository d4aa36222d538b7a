"""The page of a run: one self-contained HTML file that answers first and shows why below."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.lifetimes import Lifetimes
from simserve.report import chart_data
from simserve.report.cautions import cautions
from simserve.report.document import Cautions, Chapter, Document, Folded, Key, Plot, SideBySide, Titled
from simserve.report.formats import SHORT, count, goal, plural
from simserve.report.groups import classes, tenants, versions
from simserve.report.html import page
from simserve.report.latency_charts import by_prompt, cdf, tail
from simserve.report.margin import margin
from simserve.report.mechanisms import mechanism_list, use
from simserve.report.members import members, replicas
from simserve.report.nominal_load import drawn_load
from simserve.report.percentiles import percentiles
from simserve.report.run_head import run_head
from simserve.report.run_view import RunView
from simserve.report.slowest import slowest
from simserve.report.timeline import POOL_COLORS, bin_widths_s, timeline, timeline_figure

if TYPE_CHECKING:
    from simserve.metrics.results import Results

TAIL_LEVELS = ("p90", "p99", "p99.9")
FINE = "Calibrated costs, verified KV capacity, enough requests, not saturated."


def render(results: "Results") -> str:
    """Return the page as HTML: it loads nothing, runs only its own scripts, and works offline and on paper."""
    return page(tell(results))


def tell(results: "Results") -> Document:
    """Return all that a run tells."""
    reader, page_data = RunView(results.figures), chart_data.gather(results)
    first = RunView(
        results.figures.model_copy(update={"replications": None})
    )  # the charts show the requests of the first run
    latencies = (
        _distribution(first, page_data, "ttft_s"),
        _distribution(first, page_data, "tpot_s"),
        _against_prompt(first, page_data),
    )
    note = "Fully resolved: running it again gives identical tables."
    parts: list[Titled] = [
        *margin({"": reader.decision}),
        Cautions(cautions(reader), FINE),
        Chapter("latency", "Latency", latencies, drawn_load(reader)),
        *slowest(reader),
        Chapter("timeline", "Timeline", [_over_time(first, page_data)]),
        *members(first, Lifetimes(results.facts)),
        percentiles(reader),
        *classes(reader),
        *tenants(reader),
        *versions(reader),
        *mechanism_list(reader),
        use(reader),
        replicas(page_data),
        Chapter("scenario", "Scenario", [Folded("Show the YAML", results.scenario_yaml)], note),
    ]
    return replace(run_head(reader), parts=parts)


def _distribution(reader: RunView, page_data: chart_data.PageData, key: str) -> Plot | SideBySide:
    """Return a latency's cumulative distribution over the window's requests, and its tail."""
    inside, name, short = page_data.is_in_window, key.removesuffix("_s"), SHORT[key]
    values = (page_data.tpot_s if key == "tpot_s" else page_data.ttft_s)[inside]
    n_requests, n_values, slo_s = len(values), int(np.count_nonzero(~np.isnan(values))), reader.slo.get(key)
    n_at_once = int(np.count_nonzero(page_data.has_one_token & inside)) if key == "tpot_s" else 0
    title = f"Cumulative distribution of {short}"
    reached = chart_data.curve(values, n_requests, through=slo_s, n_at_once=n_at_once)
    if len(reached.value) == 0 or reached.value[-1] <= 0:
        return Plot(name, None, title, otherwise=_no_values(page_data, key))
    within = None if slo_s is None else n_at_once / n_requests
    if slo_s is not None and (place := int(np.searchsorted(reached.value, slo_s, side="right"))):
        within = float(reached.share[place - 1])  # where the curve has a point or is flat
    in_tail = {level: at for level, at in _levels(reader, key, TAIL_LEVELS).items() if not reader.is_guess(level)}
    note = f"Share of requests with a {short} at most this long."
    if n_at_once:
        note += f" {plural(n_at_once, 'request')} with one output token count as 0, as in vllm bench serve."
    if n_missing := n_requests - n_values - n_at_once:
        note += f" {plural(n_missing, 'request')} without a full answer count as longer than any time."
    if n_values > chart_data.MAX_CURVE_POINTS:
        note += f" Drawn through {chart_data.MAX_CURVE_POINTS} of {count(n_values)} values, denser toward both ends."
    tail_note = (
        f"Share of requests with a longer {short}. p99 is where the curve crosses 1%, p99.9 where it crosses 0.1%."
    )
    whole = cdf(reached, _levels(reader, key, ("p50", "p99")), slo_s, within)
    above = tail(reached, in_tail, slo_s, None if within is None else 1 - within)
    tail_title = f"Tail of {short} (1 − F, log axis)"
    return SideBySide([Plot(name, whole, title, note), Plot(f"{name}-tail", above, tail_title, tail_note)])


def _no_values(page_data: chart_data.PageData, key: str) -> str:
    """Return why there is no distribution of a latency."""
    if key == "ttft_s":
        return "No request had a first token."
    if np.any(page_data.has_one_token):
        return "Every answer has a single token, so there is no time per output token."
    if np.any(page_data.tpot_s == 0):
        return "Answers come whole, so there is no time per output token."
    return "No request was answered in full."


def _levels(reader: RunView, key: str, levels: tuple[str, ...]) -> dict[str, float]:
    """Return percentiles of a latency."""
    return {level: value for level in levels if (value := reader.number(f"{key}.{level}")) is not None}


def _against_prompt(reader: RunView, page_data: chart_data.PageData) -> Plot:
    """Return TTFT against prompt length, where a request had a first token and prompts differ."""
    rows = np.flatnonzero(page_data.is_in_window & ~np.isnan(page_data.ttft_s))
    prompt_tokens, ttft_s, n = page_data.prompt_tokens[rows], page_data.ttft_s[rows], len(rows)
    title = "TTFT against prompt length"
    if n == 0:
        return Plot("prompt", None, title, otherwise="No request had a first token.")
    if prompt_tokens.min() == prompt_tokens.max():
        alike = f"All prompts have {plural(float(prompt_tokens[0]), 'token')}, so there is nothing to compare."
        return Plot("prompt", None, title, otherwise=alike)
    shown, bands = chart_data.even_rows(n), chart_data.quantile_bands(prompt_tokens, ttft_s)
    drawn = by_prompt(prompt_tokens[shown], ttft_s[shown], bands, reader.slo.get("ttft_s"))
    requests = plural(n, "request")
    dots = f"an even sample of {chart_data.MAX_DOTS:,} of {requests}" if n > chart_data.MAX_DOTS else f"all {requests}"
    n_missing = int(np.count_nonzero(page_data.is_in_window)) - n
    left_out = f"; {count(n_missing)} without a full answer have none" if n_missing else ""
    lines = f"No lines of p50 and p99: fewer than {chart_data.MIN_ROWS_PER_BAND} requests in a group of prompt length."
    keys: list[Key] = [("dot k1", "a request")]
    if len(bands.x):
        lines = f"Lines: all of them, in up to {chart_data.MAX_BANDS} groups of prompt length."
        keys += [("k0", "p50"), ("dash k0", "p99")]
    keys += [("dash k2", "SLO")] if "ttft_s" in reader.slo else []
    return Plot("prompt", drawn, title, f"Dots: {dots}{left_out}. {lines}", keys)


def _over_time(reader: RunView, page_data: chart_data.PageData) -> Plot:
    """Return what happened when, where anything arrived: how to read it, and what a point is."""
    if len(page_data.arrival_s) == 0:
        return Plot("time", None, otherwise="Nothing arrived.")
    start_s, end_s = reader.number("window.start_s"), reader.number("window.end_s")
    window_s = (start_s or 0.0, page_data.end_s if end_s is None else end_s)
    arrivals_s, series_s = bin_widths_s(page_data)
    others = f", the other panels over {goal(series_s)}."
    if not page_data.n_intervals:
        others = "; the run kept no time series of its replicas."
    note = "All panels share one clock: drag to zoom, double-click to go back. Shaded: outside the measured window. "
    met = [("fill k1", "arrived, met the SLO"), ("fill k2", "arrived, missed it")] if reader.has_slo else []
    pools = list(dict.fromkeys(page_data.replica_pool))
    several = [(_pool_key(place), pool) for place, pool in enumerate(pools)] if len(pools) > 1 else []
    keys = [*met, *several, ("k1", "mean of replicas"), ("band k1", "up to the highest")]
    text = f"{note}Arrivals are means over {goal(arrivals_s)}{others}"
    return Plot("time", timeline_figure(timeline(page_data, window_s)), "", text, keys)


def _pool_key(place: int) -> str:
    """Return the CSS classes of a pool's swatch: colors come again as dashes."""
    color = POOL_COLORS[place % len(POOL_COLORS)].replace("$c", "k")
    return color if place < len(POOL_COLORS) else f"dash {color}"
