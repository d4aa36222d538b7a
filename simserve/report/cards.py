"""The charts' places on the page: a title, a sentence on how to read it, keys, and an element to draw into."""

from collections.abc import Collection

import numpy as np

from simserve.report.chart_data import MAX_DOTS
from simserve.report.formats import count, plural
from simserve.report.page_data import Evidence
from simserve.report.sections import prose, section, text
from simserve.report.summary_reader import Answers

Key = tuple[str, str]
"""CSS classes of a swatch, and what it stands for."""


def latency(answers: Answers, evidence: Evidence, drawn: Collection[str]) -> str:
    """How long the first token took, how long each further one, and what prompt length does to it."""
    ttft = card("ttft", drawn, "Time to first token", _ttft_note(answers), (), "No request had a first token.")
    tpot = card("tpot", drawn, "Time per output token", _tpot_note(evidence), (), _no_tpot(evidence))
    prompt = card(
        "prompt",
        drawn,
        "TTFT against prompt length",
        _sample_note(evidence),
        _prompt_keys(answers),
        _no_prompt(evidence),
    )
    return section("latency", "Latency", "", f'<div class="pair">{ttft}{tpot}</div>{prompt}')


def timeline(answers: Answers, evidence: Evidence, drawn: Collection[str]) -> str:
    """What happened when."""
    note = "One clock for all panels; drag to zoom, double-click to go back. Shaded: outside the measured window."
    body = card("time", drawn, "", note, _time_keys(answers, evidence), "Nothing arrived.")
    return section("timeline", "Timeline", "", body)


def card(name: str, drawn: Collection[str], title: str, note: str, keys: Collection[Key], otherwise: str) -> str:
    """A chart in its frame, or the sentence that says why there is none."""
    head = f"<h3>{text(title)}</h3>" if title else ""
    if name not in drawn:
        return f'<div class="card">{head}<p class="empty">{prose(otherwise)}</p></div>'
    swatches = "".join(f'<span class="key {classes}">{text(meaning)}</span>' for classes, meaning in keys)
    legend = f'<div class="keys">{swatches}</div>' if swatches else ""
    label = text(title or "Timeline")
    said = f'<p class="note">{prose(note)}</p>'
    place = f'<div class="chart" id="{name}" role="img" aria-label="{label}"></div>'
    return f'<div class="card">{head}{said}{legend}{place}</div>'


def _ttft_note(answers: Answers) -> str:
    n_arrived, n_answered = answers.n("arrived"), answers.n("finished")
    if n_answered < n_arrived:
        return f"Share of all requests, the {count(n_arrived - n_answered)} that were not answered in full included"
    return "Share of requests that had it within so long"


def _tpot_note(evidence: Evidence) -> str:
    n_one = int(np.count_nonzero(evidence.has_one_token & evidence.is_in_window))
    if n_one:
        return f"Share of requests; {count(n_one)} with a single token count as 0, as in vllm bench serve"
    return "Share of requests that took at most so long a token"


def _no_tpot(evidence: Evidence) -> str:
    if np.any(evidence.has_one_token):
        return "Every answer has a single token, so there is no time per output token."
    if np.any(evidence.tpot_s == 0):
        return "Answers come whole, so there is no time per output token."
    return "No request was answered in full."


def _sample_note(evidence: Evidence) -> str:
    n = int(np.count_nonzero(evidence.is_in_window & ~np.isnan(evidence.ttft_s)))
    if n > MAX_DOTS:
        return f"Dots: an even sample of {MAX_DOTS:,} of {plural(n, 'request')}. Lines: all of them, by prompt length."
    return f"Dots: all {plural(n, 'request')}. Lines: the same, by prompt length."


def _no_prompt(evidence: Evidence) -> str:
    answered = evidence.prompt_tokens[evidence.is_in_window & ~np.isnan(evidence.ttft_s)]
    if len(answered) == 0:
        return "No request had a first token."
    return f"All prompts have {plural(float(answered[0]), 'token')}, so there is nothing to compare."


def _prompt_keys(answers: Answers) -> list[Key]:
    keys = [("dot k1", "a request"), ("k0", "p50"), ("dash k0", "p99")]
    return [*keys, ("dash k2", "SLO")] if "ttft_s" in answers.slo else keys


def _time_keys(answers: Answers, evidence: Evidence) -> list[Key]:
    met = [("fill k1", "arrived, met the SLO"), ("fill k2", "arrived, missed it")] if answers.has_slo else []
    pools = list(dict.fromkeys(evidence.replica_pool))
    several = (
        [(colour, pool) for colour, pool in zip(("k1", "k3", "k4", "k2"), pools, strict=False)]
        if len(pools) > 1
        else []
    )
    return [*met, *several, ("k1", "mean of replicas"), ("band k1", "up to the highest")]
