"""Advice for a run that misses its SLO, from where the time and the requests went: the end of the headline."""

import math

from simserve.metrics.kv_json import cause_and_remedy
from simserve.report.formats import SHORT, count, goal, listed, plural, rate, seconds, share
from simserve.report.mechanisms import mean_outstanding
from simserve.report.pools import budget_argument, slots_argument
from simserve.report.run_view import RunView

HELD_UP = {
    "link": "mostly waiting for the link. Raise kv_link.bytes_per_s, or prefill shorter prompts locally",
    "decode": "mostly waiting for slots and KV of decode replicas. Add decode replicas or give them more KV",
}
"""Why requests that were handed over are late, by what binds."""

FATES = ("rejected", "timed_out", "failed", "unfinished")
"""How requests end without a full answer."""

REFUSED = "refused: "
"""How the reasons of admission policies begin."""

UNEVEN = 3
"""Standard deviation over replicas, in roots of the mean (1 for random routing), above which a run is uneven."""


def advice(reader: RunView) -> str:
    """Return what fails and what would help, from the p99s and where their time went."""
    n_lost = sum(reader.n(fate) for fate in FATES)
    if n_lost * 2 > (1 - (reader.attainment or 0.0)) * reader.n("arrived"):
        return f"{plural(n_lost, 'attempt' if reader.has_retries else 'request')} got no full answer{lost(reader)}"
    scaling = reader.summary.scaling
    if scaling is not None and scaling.longest_below_s:
        act = "Scale up sooner, start replicas faster, or keep more of them"
        if scaling.n_slowed:
            act = "Find what slows its replicas or links, or keep more of them"
        return f"The fleet was too small for {seconds(scaling.longest_below_s)} at a stretch. {act}"
    worst = worst_slo(reader)
    if worst is None:
        return "No single goal is to blame. Look at the bursts in the timeline, smooth them or add replicas"
    if worst == "itl_s":
        act = f"Lower {budget_argument(reader.pools)}, or avoid preemptions with more KV"
        return f"Single gaps between tokens are too long. {act}"
    return f"{SHORT[worst]} fails most ({_how_much(reader, worst)}), {_cause(reader, worst)}"


def worst_slo(reader: RunView) -> str | None:
    """The goal that the most requests missed; None if none stands out as missed by its p99."""
    by_slo = {key: met for key in reader.slo if (met := _met_frac(reader, key)) is not None}
    if by_slo:
        return min(by_slo, key=lambda key: by_slo[key])
    used = {key: (reader.number(f"{key}.p99") or 0) / goal for key, goal in reader.slo.items() if key != "itl_s"}
    worst = max(used, key=lambda key: used[key], default=None)
    return worst if worst is not None and used[worst] > 1 else None


def _met_frac(reader: RunView, key: str) -> float | None:
    """Share of requests that met one goal, over all runs behind the answer."""
    answer = reader.answer
    if answer is None or answer.slo_class is not None or key not in answer.by_slo:
        return reader.met_frac(key)
    return answer.by_slo[key]


def _how_much(reader: RunView, key: str) -> str:
    """Return the p99 where it is over the limit, else the share of requests that miss in all runs of the answer."""
    p99, met = reader.number(f"{key}.p99"), _met_frac(reader, key)
    if met is None or p99 is None or p99 > reader.slo[key]:
        return f"p99 {seconds(p99)}, limit {goal(reader.slo[key])}"
    n_runs = reader.answer.n_runs if reader.answer else 1
    return f"{share(1 - met)} of requests" + (f" over {n_runs} runs" if n_runs > 1 else "")


def lost(reader: RunView) -> str:
    """Return why requests got no full answer, and what would give them one."""
    reasons = reader.summary.requests.reasons
    if not reasons:
        return ". Read status_reason in requests.parquet first"
    text = listed([f"{count(n)} “{reason}”" for reason, n in reasons.items()])
    most = max(FATES, key=reader.n)
    refused = sum(n for reason, n in reasons.items() if reason.startswith(REFUSED))
    if reader.number("retry_storm.metastable_s"):
        act = "Cap retries (workload.retries.budget_frac), or shed load (cluster.admission)"
    elif most == "failed":
        act = "Let clients retry (workload.retries)"
    elif reader.reservation and (most != "rejected" or refused * 2 > reader.n("rejected")):
        act = reserved(reader)
    elif most == "timed_out":
        act = "Add replicas, lower the rate, or refuse what cannot be answered in time (cluster.admission)"
    elif most == "rejected" and refused * 2 > reader.n("rejected"):
        act = "Add replicas, lower the rate, or let cluster.admission take more"
    elif most == "rejected":
        act = "Shorten the prompts or give the cluster more KV memory"
    else:
        act = "Lower the load or raise workload.drain_limit_s"
    return f" ({text}). {act}"


def in_the_end(reader: RunView) -> str:
    """Return what became of retried requests."""
    succeeded, n = reader.number("retries.succeeded_frac"), reader.number("retries.requests")
    if not reader.has_retries or succeeded is None or n is None:
        return ""
    return f". After retries, {share(succeeded)} of {plural(n, 'request')} were answered in the end"


def _cause(reader: RunView, key: str) -> str:
    """Return where the time of a failing latency goes, and what shortens it."""
    queue_s, total_s = reader.number("queue_s.p99"), reader.number(f"{key}.p99")
    is_late = key in ("ttft_s", "e2e_s")
    is_queued = is_late and queue_s is not None and total_s is not None and queue_s >= 0.5 * total_s
    if is_queued and reader.reservation:
        return f"mostly in the queue. {reserved(reader)}"
    if is_late and any(not pool.streamed for pool in reader.pools):
        return "as answers leave whole with their batch. Take a continuous or chunked scheduler, or set stream: true"
    if is_queued:
        if reader.binds in HELD_UP:
            return HELD_UP[reader.binds]
        mean, spread = mean_outstanding(reader), reader.number("routing.outstanding_std")
        if mean is not None and spread is not None and spread > UNEVEN * max(mean, 1) ** 0.5:
            return (
                f"mostly queueing at some replicas while others have far fewer requests (mean {rate(mean)}, standard "
                f"deviation {rate(spread)}). Take another router or give it fresher views before you add replicas"
            )
        more = "prefill replicas" if reader.binds else "replicas"
        return f"mostly in the queue. Add {more}, lower the rate or smooth the bursts"
    if key == "ttft_s":
        return "mostly in the prefill itself. Raise tensor parallelism, take a faster GPU or shorten the prompts"
    if reader.binds in HELD_UP:
        return HELD_UP[reader.binds]
    preempted = reader.number("preemptions.requests_frac")
    if preempted is not None and preempted > 0.01:
        lacking = f"with {share(preempted)} of requests preempted for lack of KV"
        return f"{lacking}. Add KV memory or lower {slots_argument(reader.pools)}"
    act = f"Lower {budget_argument(reader.pools)}, add replicas or raise tensor parallelism"
    return f"because decode steps are long. {act}"


def reserved(reader: RunView) -> str:
    """Return what requests reserve, and the keys to set, where that keeps others waiting; else nothing."""
    return "" if reader.reservation is None else cause_and_remedy(reader.reservation)


def replicas_needed(reader: RunView) -> str:
    """Return how many replicas the offered load needs, if throughput grows with their number."""
    offered, served = reader.number("offered_per_s"), reader.number("served_per_s")
    if reader.binds:
        return " or raise kv_link.bytes_per_s" if reader.binds == "link" else f" or add {reader.binds} replicas"
    if len(reader.pools) != 1 or reader.pools[0].has_changed or not offered or not served:
        return " or add replicas"
    n_replicas = reader.pools[0].n_replicas
    needed = max(math.ceil(n_replicas * offered / served), n_replicas + 1)
    return f" or use about {plural(needed, 'replica')} instead of {n_replicas}"
