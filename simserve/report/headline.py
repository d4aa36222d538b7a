"""The answer in one sentence that a planner can act on, and the short table; shared by the page and the terminal."""

from collections.abc import Mapping
from typing import Any

from simserve.metrics.goal import GOAL_FRAC
from simserve.report.advice import advice, in_the_end, lost, replicas_needed
from simserve.report.confidence import FEWEST
from simserve.report.formats import (
    LATENCIES,
    NONE,
    SHORT,
    count,
    goal,
    interval,
    listed,
    number,
    plural,
    rate,
    seconds,
    share,
    slo_terms,
    span,
)
from simserve.report.summary_reader import SummaryReader

HEADLINES = {
    "met": "Meets the SLO",
    "edge": "On the edge of the SLO",
    "few": "Too few requests to tell",
    "missed": "Misses the SLO",
    "none": "No SLO to meet",
    "saturated": "Saturated",
    "critical": "At capacity",
    "nothing": "Nothing finished",
    "unmeasured": "Nothing was measured",
}
"""The verdict in a few words, by `Answers.state`."""

CONFIDENCE_ROW = "95%"
"""What a row of intervals is called."""

LEVELS = ("p50", "p90", "p95", "p99", "p99.9")
GOAL = f"{GOAL_FRAC * 100:.4g}%"


def headline(summary: Mapping[str, Any]) -> str:
    """One sentence: the answer, the number behind it, and what to do about it."""
    reader = SummaryReader(summary)
    return f"{HEADLINES[reader.state]}: {detail(reader)}"


def prediction(summary: Mapping[str, Any]) -> str | None:
    """How far the costs of steps are known, said of what the SLO limits; None where nothing was replayed."""
    reader = SummaryReader(summary)
    result = summary.get("prediction")
    if not result:
        return None
    keys = [key for key in (*reader.slo, "ttft_s", "tpot_s") if reader.predicted(key, "p99") is not None]
    text = [f"p99 {SHORT[key]} {between(reader.predicted(key, 'p99'))}" for key in dict.fromkeys(keys)]
    chance = number(result.get("slo_probability"))
    sure = "" if chance is None else f"; the SLO is met with a probability of {chance * 100:.0f}%"
    n = plural(int(result["replays"]), "replay")
    of_all = " over all classes" if len(reader.classes) > 1 else ""
    confidence = f"{result['confidence'] * 100:.0f}% prediction{of_all}"
    return f"As far as step costs are known ({n}), {confidence}: {listed(text)}{sure}."


def between(ends: tuple[float, float] | None) -> str:
    """`279 to 385 ms`, as seconds are written."""
    return "" if ends is None else f"{seconds(ends[0])} to {seconds(ends[1])}"


def terminal_table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Percentiles of each latency as text; the first row names the columns, the last column is the SLO, if any."""
    reader = SummaryReader(summary)
    rows: list[tuple[str, ...]] = [("", *LEVELS, *(["SLO"] if reader.slo else []))]
    for key in LATENCIES:
        rows.append((SHORT[key], *latency_cells(reader, key)))
        rows += [(CONFIDENCE_ROW, *cells) for cells in confidence_cells(reader, key)]
    return rows


def latency_cells(reader: SummaryReader, key: str) -> list[str]:
    """The percentiles of a latency as text, guesses marked, and its goal where the scenario has goals."""
    cells = [_marked(seconds(reader.percentile(key, level)), reader.is_guess(level)) for level in LEVELS]
    return [*cells, goal(reader.slo.get(key))] if reader.slo else cells


def confidence_cells(reader: SummaryReader, key: str) -> list[list[str]]:
    """A row with where each percentile lies as far as chance goes; none where nothing is known of any."""
    ends = [reader.confidence(key, level) for level in LEVELS]
    if not any(ends):
        return []
    return [[NONE if each is None else span(*each) for each in ends]]


def how_sure(reader: SummaryReader) -> str:
    """What the rows of intervals are, and what marks a guess; nothing where there are neither."""
    text = []
    if any(reader.confidence(key, level) for key in LATENCIES for level in LEVELS):
        where = f"Means over {over_runs(reader)}; " if reader.replications else ""
        text.append(f"{where}{CONFIDENCE_ROW}: where the value of endless runs lies, as far as chance goes")
        text.append("≥: too short a run to say where it ends")
    guesses = [level for level in LEVELS if reader.is_guess(level) and reader.n("finished")]
    if guesses:
        least = listed([f"{count(FEWEST[level])} for a {level}" for level in guesses])
        text.append(f"~: a guess, with fewer requests than {least}")
    return f"{'. '.join(text)}." if text else ""


def over_runs(reader: SummaryReader) -> str:
    """`10 runs (seeds 0 to 9)`."""
    result = reader.replications or {"seeds": [0]}
    return f"{len(result['seeds'])} runs (seeds {result['seeds'][0]} to {result['seeds'][-1]})"


def _marked(cell: str, is_guess: bool) -> str:
    return f"~{cell}" if is_guess and cell != NONE else cell


def detail(reader: SummaryReader) -> str:
    """The rest of the verdict's sentence; with classes it is about the one that fares worst."""
    text = _of_worst(reader)
    if reader.queue_state == "undetermined" and reader.state in ("met", "edge", "missed", "none"):
        return f"{text.removesuffix('.')}; whether the queue is steady, so short a run cannot tell."
    return text


def _of_worst(reader: SummaryReader) -> str:
    state, worst = reader.state, reader.judged_class
    if worst is None or state not in ("met", "edge", "few", "missed"):
        return _SENTENCES[state](reader)
    shares = [own.attainment for own in reader.classes.values() if own.attainment is not None]
    if len(shares) == 1:
        return _SENTENCES[state](reader.judged)
    if len(set(shares)) == 1:
        return f"{len(shares)} classes fare alike; of {worst}, {_SENTENCES[state](reader.judged)}"
    return f"of {len(shares)} classes, {worst} fares worst: {_SENTENCES[state](reader.judged)}"


def _met(reader: SummaryReader) -> str:
    goodput = f"a goodput of {rate(reader.number('goodput', 'per_s'))} requests/s on {plural(reader.n_gpus, 'GPU')}"
    return f"{_attained(reader)}, {goodput}{_margin(reader)}."


def _edge(reader: SummaryReader) -> str:
    what = "these runs" if reader.replications else "this run"
    return (
        f"{_attained(reader)}, too close to {GOAL} to tell from {what}; "
        "make it longer, run it with more seeds (--replications), or add a little capacity, before you rely on it."
    )


def _few(reader: SummaryReader) -> str:
    return f"{_attained(reader)}; offer some hundreds at least, better 1,000, before you rely on it."


def _missed(reader: SummaryReader) -> str:
    only = "only " if reader.attainment else ""
    return f"{only}{_attained(reader)}, where {GOAL} should; {advice(reader)}{in_the_end(reader)}."


def _none(reader: SummaryReader) -> str:
    ttft, tpot = (seconds(reader.percentile(key, "p99")) for key in ("ttft_s", "tpot_s"))
    served = f"{count(reader.n('finished'))} of {plural(reader.n('arrived'), 'request')} finished"
    at_rate = f"{rate(reader.number('requests_per_s'))} a second"
    return (
        f"{served}, {at_rate}, with a p99 TTFT of {ttft} and a p99 TPOT of {tpot}; "
        "give the scenario an slo, such as {ttft_s: 0.5, tpot_s: 0.05}, to learn its attainment and goodput."
    )


def _saturated(reader: SummaryReader) -> str:
    offered, served = rate(reader.number("offered_per_s")), rate(reader.number("served_per_s"))
    what = "attempts" if reader.has_retries else "requests"
    return (
        f"{offered} {what}/s arrived and {served} were served, so the queue grew as long as requests came, and "
        f"latencies tell how long the run was rather than how good the cluster is; stay below {served} requests/s"
        f"{replicas_needed(reader)}."
    )


def _critical(reader: SummaryReader) -> str:
    served = rate(reader.number("served_per_s"))
    return (
        f"{rate(reader.number('offered_per_s'))} requests/s arrived and {served} were served, but the queue hardly "
        "ever emptied: at capacity it grows with the square root of time, and latencies tell how long the run was; "
        f"stay well below {served} requests/s{replicas_needed(reader)}."
    )


def _nothing(reader: SummaryReader) -> str:
    if reader.reasons:
        return f"none of {reader.requested} in the window was answered in full{lost(reader)}."
    fates = {"rejected": "rejected", "timed_out": "timed out", "unfinished": "unfinished"}
    text = listed([f"{count(reader.n(fate))} {words}" for fate, words in fates.items() if reader.n(fate)])
    refused = reader.n("rejected") * 2 > reader.n("arrived")
    act = (
        "see status_reason in requests.parquet, then shorten the prompts or give the cluster more KV memory"
        if refused
        else "lower the load or raise workload.drain_limit_s, and see status_reason in requests.parquet"
    )
    return f"none of {plural(reader.n('arrived'), 'request')} in the window was answered in full ({text}); {act}."


def _unmeasured(reader: SummaryReader) -> str:
    return (
        "no request arrived after the warm-up; shorten measure.warmup_s (or warmup_requests), or make the run longer."
    )


_SENTENCES = {
    "met": _met,
    "edge": _edge,
    "few": _few,
    "missed": _missed,
    "none": _none,
    "saturated": _saturated,
    "critical": _critical,
    "nothing": _nothing,
    "unmeasured": _unmeasured,
}


def _attained(reader: SummaryReader) -> str:
    """`96.2% of 16,000 requests had TTFT ≤ 500 ms (95% interval 95.1–97.2%)`."""
    ends = reader.attainment_interval
    sure = f" (95% interval {interval(*ends)})" if ends else ""
    return f"{share(reader.attainment)} of {reader.requested} had {slo_terms(reader.slo)}{sure}"


def _margin(reader: SummaryReader) -> str:
    """How close the tightest goal is; an ITL goal binds the largest gap, so its pooled p99 says little."""
    p99s = {key: reader.percentile(key, "p99") for key in reader.slo if key != "itl_s"}
    used = {key: p99 / reader.slo[key] for key, p99 in p99s.items() if p99 is not None}
    if not used:
        return ""
    key = max(used, key=lambda name: used[name])
    if reader.is_far_below:
        return f"; there is room for more load, as even the highest {SHORT[key]} takes less than half of its limit"
    room = "there is room for more load" if used[key] < 0.7 else "expect little room for more load"
    return f"; {room}, as the p99 {SHORT[key]} takes {used[key] * 100:.0f}% of its limit"
