"""The answer in one sentence that a planner can act on; shared by the page and the terminal."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from simserve.metrics.decision import LOAD_TOLERANCE_FRAC, probability
from simserve.metrics.goal import GOAL_FRAC
from simserve.report.advice import advice, in_the_end, lost, replicas_needed, reserved
from simserve.report.formats import (
    SHORT,
    count,
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
from simserve.report.nominal_load import against, at_load
from simserve.report.summary_reader import SummaryReader

GOAL = f"{GOAL_FRAC * 100:.4g}%"


def headline(summary: Mapping[str, Any]) -> str:
    """Return the decision, the number behind it, the cause and what to do about it."""
    reader = SummaryReader(summary)
    return f"{STATES[reader.state].title}: {detail(reader)}"


def prediction(summary: Mapping[str, Any]) -> str | None:
    """Return what replays with other loads and costs came to, for what the SLO limits; None without replays."""
    reader = SummaryReader(summary)
    result = summary.get("prediction")
    if not result:
        return None
    keys = dict.fromkeys((*reader.slo, "ttft_s", "tpot_s"))
    known = {key: ends for key in keys if (ends := reader.predicted(key, "p99")) is not None}
    intervals = listed([f"p99 {SHORT[key]} is {span(*ends)}" for key, ends in known.items()])
    n = int(result["replays"])
    of_all = " over all classes" if len(reader.classes) > 1 else ""
    confidence = f"{result['confidence'] * 100:.0f}% prediction interval{of_all}"
    text = f"Allowing for load and cost-model error ({n} perturbed replays), {intervals} ({confidence})."
    n_met, chance = number(result.get("n_met")), number(result.get("slo_probability"))
    if n_met is not None:
        text += f" {count(n_met)} of {plural(n, 'replay')} meet the SLO"
        text += "." if chance is None else f"; the probability for a window like this is {probability(chance)}."
    return text


def detail(reader: SummaryReader) -> str:
    """Return all but the decision; with classes it is about the one that fares worst."""
    text = _of_worst(reader)
    if reader.queue_state == "undetermined" and reader.state in ("met", "edge", "missed", "none"):
        return f"{text} The run is too short to tell whether the queue is steady."
    return text


def _of_worst(reader: SummaryReader) -> str:
    state, worst = reader.state, reader.judged_class
    if worst is None or state not in ("met", "edge", "few", "missed"):
        return STATES[state].sentence(reader)
    shares = [own.attainment for own in reader.classes.values() if own.attainment is not None]
    if len(shares) == 1:
        return STATES[state].sentence(reader.judged)
    if len(set(shares)) == 1:
        return f"{len(shares)} classes fare alike; of {worst}, {STATES[state].sentence(reader.judged)}"
    return f"of {len(shares)} classes, {worst} fares worst: {STATES[state].sentence(reader.judged)}"


def _met(reader: SummaryReader) -> str:
    goodput = f"Goodput is {rate(reader.number('goodput', 'per_s'))} req/s on {reader.gpus}"
    return f"{_attained(reader)}; the goal is {GOAL}. {goodput}{_margin(reader)}."


def _edge(reader: SummaryReader) -> str:
    why = f"The interval contains the goal of {GOAL}"
    off_frac = number((reader.answer or {}).get("load_off_frac")) or 0.0
    if abs(off_frac) > LOAD_TOLERANCE_FRAC:
        why = f"A load {against(off_frac)} the nominal one cannot show that the goal of {GOAL} is met"
    more = "add seeds (--replications 10)" if reader.replications is None else "add seeds"
    if reader.reservation:
        return f"{_attained(reader)}. {why}. Make the run longer or {more}. {reserved(reader)}."
    return f"{_attained(reader)}. {why}. Make the run longer, {more}, or add capacity."


def _few(reader: SummaryReader) -> str:
    return f"{_attained(reader)}. Offer some hundreds of requests at least, better 1,000."


def _missed(reader: SummaryReader) -> str:
    return f"{_attained(reader)}, below the goal of {GOAL}. {advice(reader)}{in_the_end(reader)}."


def _none(reader: SummaryReader) -> str:
    ttft, tpot = (seconds(reader.number(key, "p99")) for key in ("ttft_s", "tpot_s"))
    served = f"{count(reader.n('finished'))} of {plural(reader.n('arrived'), 'request')} finished"
    at_rate = f"{rate(reader.number('requests_per_s'))} req/s"
    return (
        f"{served}, {at_rate}, with a p99 TTFT of {ttft} and a p99 TPOT of {tpot}. "
        f"{f'{reserved(reader)}. ' if reader.reservation else ''}"
        "Add an slo to the scenario, such as {ttft_s: 0.5, tpot_s: 0.05}, for attainment and goodput."
    )


def _saturated(reader: SummaryReader) -> str:
    offered, served = rate(reader.number("offered_per_s")), rate(reader.number("served_per_s"))
    what = "attempts" if reader.has_retries else "requests"
    return (
        f"{offered} {what}/s arrived and {served} were served, so the queue grew as long as requests came. "
        "Latencies reflect the length of the run, not the cluster. "
        f"{reserved(reader) or f'Stay below {served} requests/s{replicas_needed(reader)}'}."
    )


def _critical(reader: SummaryReader) -> str:
    served = rate(reader.number("served_per_s"))
    return (
        f"{rate(reader.number('offered_per_s'))} requests/s arrived and {served} were served, but the queue hardly "
        "ever emptied. At capacity it grows with the square root of time, so latencies reflect the length of the run. "
        f"{reserved(reader) or f'Stay well below {served} requests/s{replicas_needed(reader)}'}."
    )


def _near(reader: SummaryReader) -> str:
    return (
        f"{_attained(reader)}, but {_against_capacity(reader)}. Costs within their error decide whether the queue "
        f"grows. {_stay_below(reader)}"
    )


def _beyond(reader: SummaryReader) -> str:
    attained = f" The run attained {share(reader.attainment)}, but the queue grows with time." if reader.slo else ""
    return f"{_against_capacity(reader)}.{attained} {_stay_below(reader)}"


def _against_capacity(reader: SummaryReader) -> str:
    """`32.0 req/s exceed the capacity of 33.5 req/s (90% prediction interval 30.1–37.2) with a probability of 24%`."""
    chance, near = reader.beyond_frac or 0.0, reader.summary.get("near_capacity")
    if not near:
        return f"the load exceeds capacity with a probability of {probability(chance)}"
    ends = f"{rate(near['low_per_s'])}–{rate(near['high_per_s'])}"
    return (
        f"{rate(near['offered_per_s'])} req/s exceed the capacity of {rate(near['capacity_per_s'])} req/s "
        f"({near['confidence']:.0%} prediction interval {ends}) with a probability of {probability(chance)}"
    )


def _stay_below(reader: SummaryReader) -> str:
    near = reader.summary.get("near_capacity")
    if reader.reservation:
        return f"{reserved(reader)}."
    return f"Stay below {rate(near['low_per_s'])} req/s, or add capacity." if near else "Offer less, or add capacity."


def _nothing(reader: SummaryReader) -> str:
    if reader.reasons:
        return f"none of {reader.requested} in the window was answered in full{lost(reader)}."
    fates = {"rejected": "rejected", "timed_out": "timed out", "failed": "failed", "unfinished": "unfinished"}
    text = listed([f"{count(reader.n(fate))} {words}" for fate, words in fates.items() if reader.n(fate)])
    refused = reader.n("rejected") * 2 > reader.n("arrived")
    act = (
        "See status_reason in requests.parquet, then shorten the prompts or give the cluster more KV memory"
        if refused
        else "Lower the load or raise workload.drain_limit_s, and see status_reason in requests.parquet"
    )
    return f"none of {plural(reader.n('arrived'), 'request')} in the window was answered in full ({text}). {act}."


def _unmeasured(reader: SummaryReader) -> str:
    return (
        "no request arrived after the warm-up. Shorten measure.warmup_s (or warmup_requests), or make the run longer."
    )


def _attained(reader: SummaryReader) -> str:
    """`96.4% (95% CI 94.6–98.4%) of requests meet TTFT ≤ 500 ms at the nominal 14.4 req/s`."""
    answer, ends = reader.answer or {}, reader.attainment_interval
    sure = f" (95% CI {interval(*ends)})" if ends else ""
    what = "attempts" if reader.has_retries else "requests"
    of = f"{count(reader.n('arrived'))} {what}" if answer.get("basis") == "run" else what
    return f"{share(reader.attainment)}{sure} of {of} meet {slo_terms(reader.slo)}{at_load(reader)}"


def _margin(reader: SummaryReader) -> str:
    """Return how close the tightest goal is; an ITL goal binds the largest gap, so its pooled p99 says little."""
    p99s = {key: reader.number(key, "p99") for key in reader.slo if key != "itl_s"}
    used = {key: p99 / reader.slo[key] for key, p99 in p99s.items() if p99 is not None}
    if not used:
        return ""
    key = max(used, key=lambda name: used[name])
    if reader.is_far_below:
        return f"; there is room for more load. The highest {SHORT[key]} is less than half of its limit"
    room = "there is room for more load" if used[key] < 0.7 else "expect little room for more load"
    return f"; {room}. p99 {SHORT[key]} is {used[key] * 100:.0f}% of its limit"


class State(NamedTuple):
    """A decision in a few words, and in sentences."""

    title: str
    sentence: Callable[[SummaryReader], str]


STATES = {
    "met": State("Meets the SLO", _met),
    "edge": State("On the edge of the SLO", _edge),
    "few": State("Too few requests to tell", _few),
    "missed": State("Misses the SLO", _missed),
    "none": State("No SLO to meet", _none),
    "saturated": State("Saturated", _saturated),
    "critical": State("At capacity", _critical),
    "near": State("Near capacity", _near),
    "beyond": State("Beyond capacity", _beyond),
    "nothing": State("Nothing finished", _nothing),
    "unmeasured": State("Nothing was measured", _unmeasured),
}
"""Every decision, by `SummaryReader.state`."""
