"""The page of a run: one self-contained HTML file that answers first and shows why below."""

from typing import TYPE_CHECKING

import numpy as np

from simserve.report import cards, groups, sections, slowest
from simserve.report.chart_data import CdfCurve, Floats, curve, even_rows, quantile_bands
from simserve.report.charts import Figure, by_prompt, cdf, tail
from simserve.report.document import document
from simserve.report.headline import HEADLINES
from simserve.report.page_data import PageData, gather
from simserve.report.replicas import replica_rows
from simserve.report.summary_reader import SummaryReader
from simserve.report.timeline import timeline, timeline_figure

if TYPE_CHECKING:
    from simserve.metrics.results import Results


def render(results: "Results") -> str:
    """Return the page as HTML: it loads nothing, runs only its own scripts, and works offline and on paper."""
    reader, page_data = SummaryReader(results.summary), gather(results)
    first = SummaryReader({**results.summary, "replications": None})  # the charts show the requests of the first run
    figures: dict[str, Figure | None] = {
        **_latency(first, page_data, "ttft_s", page_data.ttft_s),
        **_latency(first, page_data, "tpot_s", page_data.tpot_s),
        "prompt": _by_prompt(first, page_data),
        "time": _timeline(first, page_data),
    }
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    body = (
        sections.header(reader),
        sections.warning_section(reader),
        cards.latency(reader, page_data, drawn),
        slowest.slowest(reader),
        cards.timeline(reader, page_data, drawn),
        sections.percentiles(reader),
        groups.classes(reader),
        groups.tenants(reader),
        sections.mechanism_list(reader),
        sections.use(reader),
        sections.replicas(replica_rows(page_data)),
        sections.scenario(results.scenario_yaml),
        sections.footer(reader),
    )
    return document(f"{reader.name}: {HEADLINES[reader.state].lower()} · simserve", "".join(body), drawn)


def _latency(reader: SummaryReader, page_data: PageData, key: str, values: Floats) -> dict[str, Figure]:
    """Return a latency's cumulative distribution over the window's requests, and its tail; none without a time."""
    inside = page_data.is_in_window
    n_requests, slo_s = int(np.count_nonzero(inside)), reader.slo.get(key)
    n_at_once = int(np.count_nonzero(page_data.has_one_token & inside)) if key == "tpot_s" else 0
    reached = curve(values[inside], n_requests, through=slo_s, n_at_once=n_at_once)
    if len(reached.value) == 0 or reached.value[-1] <= 0:
        return {}
    within = None if slo_s is None else _share_within(reached, slo_s, n_at_once / n_requests)
    name = key.removesuffix("_s")
    return {
        name: cdf(reached, _levels(reader, key, ("p50", "p99")), slo_s, within),
        f"{name}-tail": tail(reached, _levels(reader, key, TAIL_LEVELS), slo_s, None if within is None else 1 - within),
    }


TAIL_LEVELS = ("p90", "p99", "p99.9")


def _levels(reader: SummaryReader, key: str, levels: tuple[str, ...]) -> dict[str, float]:
    """Return percentiles of a latency; in its tail only those that the run has enough requests for."""
    values = {level: reader.percentile(key, level) for level in levels}
    is_shown = {level: levels is not TAIL_LEVELS or not reader.is_guess(level) for level in levels}
    return {level: value for level, value in values.items() if value is not None and is_shown[level]}


def _share_within(reached: CdfCurve, slo_s: float, least: float) -> float:
    """Return the curve at the SLO, where it has a point or is flat."""
    place = int(np.searchsorted(reached.value, slo_s, side="right"))
    return float(reached.share[place - 1]) if place else least


def _by_prompt(reader: SummaryReader, page_data: PageData) -> Figure | None:
    """Return TTFT against prompt length; None where no request had a first token or all prompts are alike."""
    rows = np.flatnonzero(page_data.is_in_window & ~np.isnan(page_data.ttft_s))
    prompt_tokens, ttft_s = page_data.prompt_tokens[rows], page_data.ttft_s[rows]
    if len(rows) == 0 or prompt_tokens.min() == prompt_tokens.max():
        return None
    shown = even_rows(len(rows))
    bands = quantile_bands(prompt_tokens, ttft_s)
    return by_prompt(prompt_tokens[shown], ttft_s[shown], bands, reader.slo.get("ttft_s"))


def _timeline(reader: SummaryReader, page_data: PageData) -> Figure | None:
    """Return what happened when; None where nothing arrived."""
    if len(page_data.arrival_s) == 0:
        return None
    start_s, end_s = reader.number("window", "start_s"), reader.number("window", "end_s")
    window_s = (start_s or 0.0, page_data.end_s if end_s is None else end_s)
    return timeline_figure(timeline(page_data, window_s))
