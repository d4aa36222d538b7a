"""The answer in one sentence that a planner can act on, and the short table; shared by the page and the terminal."""

from collections.abc import Mapping
from typing import Any

from simserve.metrics.goal import GOAL_FRAC
from simserve.report.advice import in_the_end, lost, remedy, replicas_needed
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
from simserve.report.summary_reader import Answers

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

SURENESS = "95 %"
"""What a row of intervals is called."""

LEVELS = ("p50", "p90", "p95", "p99", "p99.9")
GOAL = f"{GOAL_FRAC * 100:.4g} %"


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence: the answer, the number behind it, and what to do about it."""
    answers = Answers(summary)
    return f"{HEADLINES[answers.state]}: {detail(answers)}"


def prediction(summary: Mapping[str, Any]) -> str | None:
    """How far the costs of steps are known, said of what the SLO limits; None where nothing was replayed."""
    answers = Answers(summary)
    found = summary.get("prediction")
    if not found:
        return None
    keys = [key for key in (*answers.slo, "ttft_s", "tpot_s") if answers.predicted(key, "p99") is not None]
    said = [f"p99 {SHORT[key]} {between(answers.predicted(key, 'p99'))}" for key in dict.fromkeys(keys)]
    chance = number(found.get("slo_probability"))
    sure = "" if chance is None else f"; the SLO is met with a probability of {chance * 100:.0f} %"
    n = plural(int(found["replays"]), "replay")
    of_all = " over all classes" if len(answers.classes) > 1 else ""
    sureness = f"{found['confidence'] * 100:.0f} % prediction{of_all}"
    return f"As far as step costs are known ({n}), {sureness}: {listed(said)}{sure}."


def between(ends: tuple[float, float] | None) -> str:
    """`279 to 385 ms`, as seconds are written."""
    return "" if ends is None else f"{seconds(ends[0])} to {seconds(ends[1])}"


def terminal_table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Percentiles of each latency as text; the first row names the columns, the last column is the SLO, if any."""
    answers = Answers(summary)
    rows: list[tuple[str, ...]] = [("", *LEVELS, *(["SLO"] if answers.slo else []))]
    for key in LATENCIES:
        rows.append((SHORT[key], *latency_cells(answers, key)))
        rows += [(SURENESS, *cells) for cells in sureness_cells(answers, key)]
    return rows


def latency_cells(answers: Answers, key: str) -> list[str]:
    """The percentiles of a latency as text, guesses marked, and its goal where the scenario has goals."""
    cells = [_marked(seconds(answers.percentile(key, level)), answers.is_guess(level)) for level in LEVELS]
    return [*cells, goal(answers.slo.get(key))] if answers.slo else cells


def sureness_cells(answers: Answers, key: str) -> list[list[str]]:
    """A row with where each percentile lies as far as chance goes; none where nothing is known of any."""
    ends = [answers.sureness(key, level) for level in LEVELS]
    if not any(ends):
        return []
    return [[NONE if each is None else span(*each) for each in ends]]


def how_sure(answers: Answers) -> str:
    """What the rows of intervals are, and what marks a guess; nothing where there are neither."""
    said = []
    if any(answers.sureness(key, level) for key in LATENCIES for level in LEVELS):
        where = f"Means over {over_runs(answers)}; " if answers.replications else ""
        said.append(f"{where}{SURENESS}: where the value of endless runs lies, as far as chance goes")
        said.append("≥: too short a run to say where it ends")
    guesses = [level for level in LEVELS if answers.is_guess(level) and answers.n("finished")]
    if guesses:
        least = listed([f"{count(FEWEST[level])} for a {level}" for level in guesses])
        said.append(f"~: a guess, with fewer requests than {least}")
    return f"{'. '.join(said)}." if said else ""


def over_runs(answers: Answers) -> str:
    """`10 runs (seeds 0 to 9)`."""
    found = answers.replications or {"seeds": [0]}
    return f"{len(found['seeds'])} runs (seeds {found['seeds'][0]} to {found['seeds'][-1]})"


def _marked(cell: str, is_guess: bool) -> str:
    return f"~{cell}" if is_guess and cell != NONE else cell


def detail(answers: Answers) -> str:
    """The rest of the verdict's sentence; with classes it is about the one that fares worst."""
    said = _of_worst(answers)
    if answers.queue_state == "undetermined" and answers.state in ("met", "edge", "missed", "none"):
        return f"{said.removesuffix('.')}; whether the queue is steady, so short a run cannot tell."
    return said


def _of_worst(answers: Answers) -> str:
    state, worst = answers.state, answers.judged_class
    if worst is None or state not in ("met", "edge", "few", "missed"):
        return _SENTENCES[state](answers)
    shares = [own.attainment for own in answers.classes.values() if own.attainment is not None]
    if len(shares) == 1:
        return _SENTENCES[state](answers.judged)
    if len(set(shares)) == 1:
        return f"{len(shares)} classes fare alike; of {worst}, {_SENTENCES[state](answers.judged)}"
    return f"of {len(shares)} classes, {worst} fares worst: {_SENTENCES[state](answers.judged)}"


def _met(answers: Answers) -> str:
    goodput = f"a goodput of {rate(answers.number('goodput', 'per_s'))} requests/s on {plural(answers.n_gpus, 'GPU')}"
    return f"{_attained(answers)}, {goodput}{_margin(answers)}."


def _edge(answers: Answers) -> str:
    what = "these runs" if answers.replications else "this run"
    return (
        f"{_attained(answers)}, too close to {GOAL} to tell from {what}; "
        "make it longer, run it with more seeds (--replications), or add a little capacity, before you rely on it."
    )


def _few(answers: Answers) -> str:
    return f"{_attained(answers)}; offer some hundreds at least, better 1,000, before you rely on it."


def _missed(answers: Answers) -> str:
    only = "only " if answers.attainment else ""
    return f"{only}{_attained(answers)}, where {GOAL} should; {remedy(answers)}{in_the_end(answers)}."


def _none(answers: Answers) -> str:
    ttft, tpot = (seconds(answers.percentile(key, "p99")) for key in ("ttft_s", "tpot_s"))
    served = f"{count(answers.n('finished'))} of {plural(answers.n('arrived'), 'request')} finished"
    at_rate = f"{rate(answers.number('requests_per_s'))} a second"
    return (
        f"{served}, {at_rate}, with a p99 TTFT of {ttft} and a p99 TPOT of {tpot}; "
        "give the scenario an slo, such as {ttft_s: 0.5, tpot_s: 0.05}, to learn its attainment and goodput."
    )


def _saturated(answers: Answers) -> str:
    offered, served = rate(answers.number("offered_per_s")), rate(answers.number("served_per_s"))
    what = "attempts" if answers.has_retries else "requests"
    return (
        f"{offered} {what}/s arrived and {served} were served, so the queue grew as long as requests came, and "
        f"latencies tell how long the run was rather than how good the cluster is; stay below {served} requests/s"
        f"{replicas_needed(answers)}."
    )


def _critical(answers: Answers) -> str:
    served = rate(answers.number("served_per_s"))
    return (
        f"{rate(answers.number('offered_per_s'))} requests/s arrived and {served} were served, but the queue hardly "
        "ever emptied: at capacity it grows with the square root of time, and latencies tell how long the run was; "
        f"stay well below {served} requests/s{replicas_needed(answers)}."
    )


def _nothing(answers: Answers) -> str:
    if answers.reasons:
        return f"none of {answers.asked} in the window was answered in full{lost(answers)}."
    fates = {"rejected": "rejected", "timed_out": "timed out", "unfinished": "unfinished"}
    said = listed([f"{count(answers.n(fate))} {words}" for fate, words in fates.items() if answers.n(fate)])
    refused = answers.n("rejected") * 2 > answers.n("arrived")
    act = (
        "see status_reason in requests.parquet, then shorten the prompts or give the cluster more KV memory"
        if refused
        else "lower the load or raise workload.drain_limit_s, and see status_reason in requests.parquet"
    )
    return f"none of {plural(answers.n('arrived'), 'request')} in the window was answered in full ({said}); {act}."


def _unmeasured(answers: Answers) -> str:
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


def _attained(answers: Answers) -> str:
    """`96.2 % of 16,000 requests had TTFT ≤ 500 ms (95 % interval 95.1–97.2 %)`."""
    ends = answers.attainment_interval
    sure = f" (95 % interval {interval(*ends)})" if ends else ""
    return f"{share(answers.attainment)} of {answers.asked} had {slo_terms(answers.slo)}{sure}"


def _margin(answers: Answers) -> str:
    """How close the tightest goal is; an ITL goal binds the largest gap, so its pooled p99 says little."""
    p99s = {key: answers.percentile(key, "p99") for key in answers.slo if key != "itl_s"}
    used = {key: p99 / answers.slo[key] for key, p99 in p99s.items() if p99 is not None}
    if not used:
        return ""
    key = max(used, key=lambda name: used[name])
    if answers.is_far_below:
        return f"; there is room for more load, as even the highest {SHORT[key]} takes less than half of its limit"
    room = "there is room for more load" if used[key] < 0.7 else "expect little room for more load"
    return f"; {room}, as the p99 {SHORT[key]} takes {used[key] * 100:.0f} % of its limit"
