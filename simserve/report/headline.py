"""The answer in one sentence that a planner can act on; shared by the page and the terminal."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simserve.metrics.goal import CAP, GOAL_FRAC, probability
from simserve.metrics.summary_schema import DecisionJson
from simserve.report.advice import advice, in_the_end, lost, replicas_needed, reserved
from simserve.report.formats import SHORT, count, interval, listed, plural, rate, seconds, share, slo_terms
from simserve.report.nominal_load import at_load
from simserve.report.run_view import RunView

if TYPE_CHECKING:  # imports numpy
    from simserve.metrics.figures import Summary

GOAL = f"{GOAL_FRAC * 100:.4g}%"

DECIDED = ("met", "likely_meets", "edge", "likely_misses", "missed")
"""States that the margin decides."""

SURE = 0.97
"""Probability above which no more is said: a decision is looked at up to three times."""

RARE_FRAC, RAREST_FRAC = 0.001, 1e-5
"""Shares of misses below which they are given in 100,000 rather than as a share of what meets; and counted."""

LARGEST = CAP * (1 - 1e-9)
"""Ratio from which it is no longer known."""

CALIBRATE = "simserve calibrate --logs LOG --scenario SCENARIO --out DIR"
"""The command that makes cost error smaller."""


def headline(summary: "Summary") -> str:
    """Return the decision, the number behind it, the cause and what to do about it."""
    return f"{STATES[(reader := RunView(summary)).state].title}: {detail(reader)}"


def detail(reader: RunView) -> str:
    """Return all but the decision; with classes it is about the one that fares worst."""
    text = _of_worst(reader)
    if reader.queue_state == "undetermined" and reader.state in (*DECIDED[1:], "none"):
        return f"{text} The run is too short to tell whether the queue is steady."
    return text


def _of_worst(reader: RunView) -> str:
    state, worst = reader.state, reader.judged_class
    if worst is None or state not in DECIDED:
        return STATES[state].sentence(reader)
    n_judged = sum(own.attainment is not None for own in reader.classes.values())
    of = f"of {n_judged} classes, {worst} has the least margin: " if n_judged > 1 else ""
    return f"{of}{STATES[state].sentence(reader.judged)}"


def _met(reader: RunView) -> str:
    goodput = f"Goodput is {rate(reader.number('goodput.per_s'))} req/s on {reader.gpus}"
    decision = reader.decision
    first = ""
    if decision is not None and decision.first_limit and decision.break_even:
        first = f"{SHORT[decision.first_limit]} fails first, at {decision.break_even:.3g} times the simulated. "
    return f"{ratio(decision)}. {first}{_attained(reader)}. {goodput}."


def _edge(reader: RunView) -> str:
    decision = reader.decision or DecisionJson(word="edge")
    start = f"{ratio(decision)}. {_attained(reader)}"
    if decision.edge_by == "cost":
        holds = ""
        if decision.first_limit and decision.break_even:
            limit = f"your server's {SHORT[decision.first_limit]}"
            holds = f": the SLO holds while {limit} is at most {decision.break_even:.3g} times the simulated"
        return f"{start}. Cost error decides{holds}. Calibrate with a log: {CALIBRATE}."
    cause = f"Sampling noise decides after {plural(decision.n_runs, 'run')}"
    cause = "Few independent bursts decide" if decision.edge_by == "load" else cause
    more = "raise --budget-runs, or make the run longer" if decision.n_runs > 1 else "make the run longer"
    if reader.reservation:
        more += f". {reserved(reader)}"
    elif (decision.r or 0.0) > 1:
        more += ", or add capacity"
    return f"{start}. {cause}: {more}."


def _missed(reader: RunView) -> str:
    return f"{ratio(reader.decision)}. {_attained(reader)}. {advice(reader)}{in_the_end(reader)}."


def ratio(decision: DecisionJson | None) -> str:
    """Return `the p99 of latency/limit is 0.72 (95% CI 0.66–0.80; with cost error 0.55–0.99), P 96%`."""
    if decision is None or decision.r is None or decision.r_noise is None or decision.r_total is None:
        return f"The goal is {GOAL}"
    level, chance = f"the {level_of(decision)} of latency/limit is", chance_text(decision)
    if decision.r_noise[0] >= LARGEST:
        return f"{level} above {CAP:g}, P {chance}"
    costs = f"; with cost error {ratio_span(decision.r_total)}" if decision.n_draws else ""
    return f"{level} {ratio_text(decision.r)} (95% CI {ratio_span(decision.r_noise)}{costs}), P {chance}"


def chance_text(decision: DecisionJson) -> str:
    """Return `98%`, or `>97%`."""
    return probability(decision.probability or 0.0, SURE)


def level_of(decision: DecisionJson) -> str:
    """Return `p99`, the percentile that a goal of 99% speaks of."""
    return f"p{(decision.goal or GOAL_FRAC) * 100:.4g}"


def ratio_span(ends: Sequence[float]) -> str:
    """Return `0.66–0.80`."""
    return f"{ratio_text(ends[0])}–{ratio_text(ends[1])}"


def ratio_text(r: float) -> str:
    """Return `0.72`, or `>16`."""
    return f">{CAP:g}" if r >= LARGEST else f"{r:.2f}"


def _none(reader: RunView) -> str:
    ttft, tpot = (seconds(reader.number(f"{key}.p99")) for key in ("ttft_s", "tpot_s"))
    served = f"{count(reader.n('finished'))} of {plural(reader.n('arrived'), 'request')} finished"
    at_rate = f"{rate(reader.number('requests_per_s'))} req/s"
    return (
        f"{served}, {at_rate}, with a p99 TTFT of {ttft} and a p99 TPOT of {tpot}. "
        f"{f'{reserved(reader)}. ' if reader.reservation else ''}"
        "Add an slo to the scenario, such as {ttft_s: 0.5, tpot_s: 0.05}, for attainment and goodput."
    )


def _saturated(reader: RunView) -> str:
    offered, served = rate(reader.number("offered_per_s")), rate(reader.number("served_per_s"))
    what = "attempts" if reader.has_retries else "requests"
    return (
        f"{offered} {what}/s arrived and {served} were served, so the queue grew as long as requests came. "
        "Latencies reflect the length of the run, not the cluster. "
        f"{reserved(reader) or f'Stay below {served} requests/s{replicas_needed(reader)}'}."
    )


def _critical(reader: RunView) -> str:
    served = rate(reader.number("served_per_s"))
    return (
        f"{rate(reader.number('offered_per_s'))} requests/s arrived and {served} were served, but the queue hardly "
        "ever emptied. At capacity it grows with the square root of time, so latencies reflect the length of the run. "
        f"{reserved(reader) or f'Stay well below {served} requests/s{replicas_needed(reader)}'}."
    )


def _near(reader: RunView) -> str:
    return (
        f"{_attained(reader)}, but {_against_capacity(reader)}. Costs within their error decide whether the queue "
        f"grows. {_stay_below(reader)}"
    )


def _beyond(reader: RunView) -> str:
    attained = f" The run attained {share(reader.attainment)}, but the queue grows with time." if reader.slo else ""
    return f"{_against_capacity(reader)}.{attained} {_stay_below(reader)}"


def _against_capacity(reader: RunView) -> str:
    """`32.0 req/s exceed the capacity of 33.5 req/s (90% prediction interval 30.1–37.2) with a probability of 24%`."""
    chance, near = reader.summary.probability_beyond_capacity or 0.0, reader.summary.near_capacity
    if not near:
        return f"the load exceeds capacity with a probability of {probability(chance)}"
    ends = f"{rate(near.low_per_s)}–{rate(near.high_per_s)}"
    return (
        f"{rate(near.offered_per_s)} req/s exceed the capacity of {rate(near.capacity_per_s)} req/s "
        f"({near.confidence:.0%} prediction interval {ends}) with a probability of {probability(chance)}"
    )


def _stay_below(reader: RunView) -> str:
    near = reader.summary.near_capacity
    if reader.reservation:
        return f"{reserved(reader)}."
    return f"Stay below {rate(near.low_per_s)} req/s, or add capacity." if near else "Offer less, or add capacity."


def _nothing(reader: RunView) -> str:
    if reader.summary.requests.reasons:
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


def _unmeasured(reader: RunView) -> str:
    return (
        "no request arrived after the warm-up. Shorten measure.warmup_s (or warmup_requests), or make the run longer."
    )


def _attained(reader: RunView) -> str:
    """Return `Of 96,442 requests in 8 runs, 106 in 100,000 miss TTFT ≤ 500 ms and TPOT ≤ 50 ms at 14.4 req/s`."""
    decision, what = reader.decision, "attempts" if reader.has_retries else "requests"
    terms = f"{slo_terms(reader.slo)}{at_load(reader)}"
    if decision is None or decision.n_requests is None or decision.n_missed is None:
        ends = reader.attainment_interval
        sure = f" (95% CI {interval(*ends)})" if ends else ""
        return f"{share(reader.attainment)}{sure} of {count(reader.n('arrived'))} {what} meet {terms}"
    of = f"{count(decision.n_requests)} {what}" + (f" in {decision.n_runs} runs" if decision.n_runs > 1 else "")
    missed_frac = decision.n_missed / decision.n_requests
    if missed_frac >= RARE_FRAC:
        return f"{share(1 - missed_frac)} of {of} meet {terms}"
    few = f"{round(missed_frac * 100_000):,} in 100,000 miss" if decision.n_missed else "none misses"
    if 0 < missed_frac < RAREST_FRAC:
        few = f"{count(decision.n_missed)} {'misses' if decision.n_missed == 1 else 'miss'}"
    return f"Of {of}, {few} {terms}"


class State(NamedTuple):
    """A decision in a few words, and in sentences."""

    title: str
    sentence: Callable[[RunView], str]


STATES = {
    "met": State("Meets the SLO", _met),
    "likely_meets": State("Likely meets the SLO", _edge),
    "edge": State("On the edge of the SLO", _edge),
    "likely_misses": State("Likely misses the SLO", _edge),
    "missed": State("Misses the SLO", _missed),
    "none": State("No SLO to meet", _none),
    "saturated": State("Saturated", _saturated),
    "critical": State("At capacity", _critical),
    "near": State("Near capacity", _near),
    "beyond": State("Beyond capacity", _beyond),
    "nothing": State("Nothing finished", _nothing),
    "unmeasured": State("Nothing was measured", _unmeasured),
}
"""Every decision, by `RunView.state`."""
