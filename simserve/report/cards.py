"""The charts' places on the page: a title, a sentence on how to read it, keys, and an element to draw into."""

from collections.abc import Collection

import numpy as np

from simserve.report.chart_data import MAX_DOTS
from simserve.report.formats import count, plural
from simserve.report.page_data import PageData
from simserve.report.sections import prose, section, text
from simserve.report.summary_reader import SummaryReader

Key = tuple[str, str]
"""CSS classes of a swatch, and what it stands for."""


def latency(reader: SummaryReader, page_data: PageData, drawn: Collection[str]) -> str:
    """How long the first token took, how long each further one, and what prompt length does to it."""
    ttft = card("ttft", drawn, "Time to first token", _ttft_note(reader), (), "No request had a first token.")
    tpot = card("tpot", drawn, "Time per output token", _tpot_note(page_data), (), _no_tpot(page_data))
    prompt = card(
        "prompt",
        drawn,
        "TTFT against prompt length",
        _sample_note(page_data),
        _prompt_keys(reader),
        _no_prompt(page_data),
    )
    return section("latency", "Latency", "", f'<div class="pair">{ttft}{tpot}</div>{prompt}')


def timeline(reader: SummaryReader, page_data: PageData, drawn: Collection[str]) -> str:
    """What happened when."""
    note = "One clock for all panels; drag to zoom, double-click to go back. Shaded: outside the measured window."
    body = card("time", drawn, "", note, _time_keys(reader, page_data), "Nothing arrived.")
    return section("timeline", "Timeline", "", body)


def card(name: str, drawn: Collection[str], title: str, note: str, keys: Collection[Key], otherwise: str) -> str:
    """A chart in its frame, or the sentence that says why there is none."""
    head = f"<h3>{text(title)}</h3>" if title else ""
    if name not in drawn:
        return f'<div class="card">{head}<p class="empty">{prose(otherwise)}</p></div>'
    swatches = "".join(f'<span class="key {classes}">{text(meaning)}</span>' for classes, meaning in keys)
    legend = f'<div class="keys">{swatches}</div>' if swatches else ""
    label = text(title or "Timeline")
    sentence = f'<p class="note">{prose(note)}</p>'
    place = f'<div class="chart" id="{name}" role="img" aria-label="{label}"></div>'
    return f'<div class="card">{head}{sentence}{legend}{place}</div>'


def _ttft_note(reader: SummaryReader) -> str:
    n_arrived, n_answered = reader.n("arrived"), reader.n("finished")
    if n_answered < n_arrived:
        return f"Share of all requests, the {count(n_arrived - n_answered)} that were not answered in full included"
    return "Share of requests that had it within so long"


def _tpot_note(page_data: PageData) -> str:
    n_one = int(np.count_nonzero(page_data.has_one_token & page_data.is_in_window))
    if n_one:
        return f"Share of requests; {count(n_one)} with a single token count as 0, as in vllm bench serve"
    return "Share of requests that took at most so long a token"


def _no_tpot(page_data: PageData) -> str:
    if np.any(page_data.has_one_token):
        return "Every answer has a single token, so there is no time per output token."
    if np.any(page_data.tpot_s == 0):
        return "Answers come whole, so there is no time per output token."
    return "No request was answered in full."


def _sample_note(page_data: PageData) -> str:
    n = int(np.count_nonzero(page_data.is_in_window & ~np.isnan(page_data.ttft_s)))
    if n > MAX_DOTS:
        return f"Dots: an even sample of {MAX_DOTS:,} of {plural(n, 'request')}. Lines: all of them, by prompt length."
    return f"Dots: all {plural(n, 'request')}. Lines: the same, by prompt length."


def _no_prompt(page_data: PageData) -> str:
    answered = page_data.prompt_tokens[page_data.is_in_window & ~np.isnan(page_data.ttft_s)]
    if len(answered) == 0:
        return "No request had a first token."
    return f"All prompts have {plural(float(answered[0]), 'token')}, so there is nothing to compare."


def _prompt_keys(reader: SummaryReader) -> list[Key]:
    keys = [("dot k1", "a request"), ("k0", "p50"), ("dash k0", "p99")]
    return [*keys, ("dash k2", "SLO")] if "ttft_s" in reader.slo else keys


def _time_keys(reader: SummaryReader, page_data: PageData) -> list[Key]:
    met = [("fill k1", "arrived, met the SLO"), ("fill k2", "arrived, missed it")] if reader.has_slo else []
    pools = list(dict.fromkeys(page_data.replica_pool))
    several = (
        [(color, pool) for color, pool in zip(("k1", "k3", "k4", "k2"), pools, strict=False)] if len(pools) > 1 else []
    )
    return [*met, *several, ("k1", "mean of replicas"), ("band k1", "up to the highest")]
