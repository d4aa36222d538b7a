"""Places of the charts on the page: a title, a sentence on how to read it, keys, and an element to draw into."""

from collections.abc import Collection

import numpy as np

from simserve.report.chart_data import MAX_BANDS, MAX_CURVE_POINTS, MAX_DOTS, MIN_ROWS_PER_BAND, quantile_bands
from simserve.report.formats import SHORT, count, goal, plural
from simserve.report.headline import drawn_load
from simserve.report.page_data import PageData
from simserve.report.sections import prose, section, text
from simserve.report.summary_reader import SummaryReader
from simserve.report.timeline import POOL_COLORS, bin_widths_s

Key = tuple[str, str]
"""CSS classes of a swatch, and what it stands for."""


def latency(reader: SummaryReader, page_data: PageData, drawn: Collection[str]) -> str:
    """Return the charts of TTFT and TPOT, their tails, and TTFT against prompt length."""
    ttft = _distribution("ttft_s", drawn, _ttft_note(page_data), "No request had a first token.")
    tpot = _distribution("tpot_s", drawn, _tpot_note(page_data), _no_tpot(page_data))
    title = "TTFT against prompt length"
    prompt = card(
        "prompt", drawn, title, _sample_note(page_data), _prompt_keys(reader, page_data), _no_prompt(page_data)
    )
    return section("latency", "Latency", drawn_load(reader), ttft + tpot + prompt)


def _distribution(key: str, drawn: Collection[str], note: str, otherwise: str) -> str:
    """Return the cumulative distribution of a latency beside its tail."""
    name, short = key.removesuffix("_s"), SHORT[key]
    whole = card(name, drawn, f"Cumulative distribution of {short}", note, (), otherwise)
    if name not in drawn:
        return whole
    tail_note = (
        f"Share of requests with a longer {short}. p99 is where the curve crosses 1%, p99.9 where it crosses 0.1%."
    )
    tail = card(f"{name}-tail", drawn, f"Tail of {short} (1 − F, log axis)", tail_note, (), otherwise)
    return f'<div class="pair">{whole}{tail}</div>'


def timeline(reader: SummaryReader, page_data: PageData, drawn: Collection[str]) -> str:
    """Return the chart of what happened when."""
    body = card("time", drawn, "", _time_note(page_data), _time_keys(reader, page_data), "Nothing arrived.")
    return section("timeline", "Timeline", "", body)


def _time_note(page_data: PageData) -> str:
    """Say how to read the panels, and what each of their points is a mean over."""
    note = "All panels share one clock: drag to zoom, double-click to go back. Shaded: outside the measured window. "
    arrivals_s, series_s = bin_widths_s(page_data)
    if not page_data.n_intervals:
        return note + f"Arrivals are means over {goal(arrivals_s)}; the run kept no time series of its replicas."
    return note + f"Arrivals are means over {goal(arrivals_s)}, the other panels over {goal(series_s)}."


def card(name: str, drawn: Collection[str], title: str, note: str, keys: Collection[Key], otherwise: str) -> str:
    """Return a chart in its frame, or the sentence that says why there is none."""
    head = f"<h3>{text(title)}</h3>" if title else ""
    if name not in drawn:
        return f'<div class="card">{head}<p class="empty">{prose(otherwise)}</p></div>'
    swatches = "".join(f'<span class="key {classes}">{text(meaning)}</span>' for classes, meaning in keys)
    legend = f'<div class="keys">{swatches}</div>' if swatches else ""
    label = text(title or "Timeline")
    sentence = f'<p class="note">{prose(note)}</p>'
    place = f'<div class="chart" id="{name}" role="img" aria-label="{label}"></div>'
    return f'<div class="card">{head}{sentence}{legend}{place}</div>'


def _ttft_note(page_data: PageData) -> str:
    inside = page_data.is_in_window
    n_values = int(np.count_nonzero(inside & ~np.isnan(page_data.ttft_s)))
    note = "Share of requests with a TTFT at most this long."
    n_missing = int(np.count_nonzero(inside)) - n_values
    if n_missing:
        note += f" {plural(n_missing, 'request')} without a full answer count as longer than any time."
    return note + _thinned(n_values)


def _tpot_note(page_data: PageData) -> str:
    inside = page_data.is_in_window
    n_values = int(np.count_nonzero(inside & ~np.isnan(page_data.tpot_s)))
    n_one = int(np.count_nonzero(page_data.has_one_token & inside))
    n_missing = int(np.count_nonzero(inside)) - n_values - n_one
    note = "Share of requests with a TPOT at most this long."
    if n_one:
        note += f" {plural(n_one, 'request')} with one output token count as 0, as in vllm bench serve."
    if n_missing:
        note += f" {plural(n_missing, 'request')} without a full answer count as longer than any time."
    return note + _thinned(n_values)


def _thinned(n_values: int) -> str:
    if n_values <= MAX_CURVE_POINTS:
        return ""
    return f" Drawn through {MAX_CURVE_POINTS} of {count(n_values)} values, denser toward both ends."


def _no_tpot(page_data: PageData) -> str:
    if np.any(page_data.has_one_token):
        return "Every answer has a single token, so there is no time per output token."
    if np.any(page_data.tpot_s == 0):
        return "Answers come whole, so there is no time per output token."
    return "No request was answered in full."


def _sample_note(page_data: PageData) -> str:
    inside = page_data.is_in_window
    n = int(np.count_nonzero(inside & ~np.isnan(page_data.ttft_s)))
    dots = (
        f"an even sample of {MAX_DOTS:,} of {plural(n, 'request')}" if n > MAX_DOTS else f"all {plural(n, 'request')}"
    )
    n_missing = int(np.count_nonzero(inside)) - n
    left_out = f"; {count(n_missing)} without a full answer have none" if n_missing else ""
    lines = f"Lines: all of them, in up to {MAX_BANDS} groups of prompt length."
    if not _has_bands(page_data):
        lines = f"No lines of p50 and p99: fewer than {MIN_ROWS_PER_BAND} requests in a group of prompt length."
    return f"Dots: {dots}{left_out}. {lines}"


def _has_bands(page_data: PageData) -> bool:
    rows = page_data.is_in_window & ~np.isnan(page_data.ttft_s)
    return len(quantile_bands(page_data.prompt_tokens[rows], page_data.ttft_s[rows]).x) > 0


def _no_prompt(page_data: PageData) -> str:
    answered = page_data.prompt_tokens[page_data.is_in_window & ~np.isnan(page_data.ttft_s)]
    if len(answered) == 0:
        return "No request had a first token."
    return f"All prompts have {plural(float(answered[0]), 'token')}, so there is nothing to compare."


def _prompt_keys(reader: SummaryReader, page_data: PageData) -> list[Key]:
    lines = [("k0", "p50"), ("dash k0", "p99")] if _has_bands(page_data) else []
    return [("dot k1", "a request"), *lines, *([("dash k2", "SLO")] if "ttft_s" in reader.slo else [])]


def _time_keys(reader: SummaryReader, page_data: PageData) -> list[Key]:
    met = [("fill k1", "arrived, met the SLO"), ("fill k2", "arrived, missed it")] if reader.has_slo else []
    pools = list(dict.fromkeys(page_data.replica_pool))
    several = [(pool_key(place), pool) for place, pool in enumerate(pools)] if len(pools) > 1 else []
    return [*met, *several, ("k1", "mean of replicas"), ("band k1", "up to the highest")]


def pool_key(place: int) -> str:
    """Return the CSS classes of a pool's swatch: colors come again as dashes."""
    color = POOL_COLORS[place % len(POOL_COLORS)].replace("$c", "k")
    return color if place < len(POOL_COLORS) else f"dash {color}"
