"""Advice for a run that misses its SLO, from where the time and the requests went: the end of the headline."""

import math

from simserve.metrics.reservation import cause_and_remedy
from simserve.report.formats import SHORT, count, goal, listed, plural, rate, seconds, share
from simserve.report.summary_reader import SummaryReader, has_changed

HELD_UP = {
    "link": "mostly waiting for the link. Raise kv_link.bytes_per_s, or prefill shorter prompts locally",
    "decode": "mostly waiting for slots and KV of decode replicas. Add decode replicas or give them more KV",
}
"""Why requests that were handed over are late, by what binds."""

FATES = ("rejected", "timed_out", "failed", "unfinished")
"""How requests end without a full answer."""

REFUSED = "refused: "
"""How the reasons of admission policies begin."""


def advice(reader: SummaryReader) -> str:
    """Return what fails and what would help, from the p99s and where their time went."""
    n_lost = sum(reader.n(fate) for fate in FATES)
    if n_lost * 2 > (1 - (reader.attainment or 0.0)) * reader.n("arrived"):
        return f"{plural(n_lost, 'attempt' if reader.has_retries else 'request')} got no full answer{lost(reader)}"
    worst = reader.worst_slo
    if worst is None:
        return "No single goal is to blame. Look at the bursts in the timeline, smooth them or add replicas"
    if worst == "itl_s":
        act = f"Lower {reader.budget_argument}, or avoid preemptions with more KV"
        return f"Single gaps between tokens are too long. {act}"
    return f"{SHORT[worst]} fails most ({_how_much(reader, worst)}), {_cause(reader, worst)}"


def _how_much(reader: SummaryReader, key: str) -> str:
    """Return the p99 where it is over the limit, else the share of requests that miss in all runs of the answer."""
    p99, met = reader.percentile(key, "p99"), reader.met_frac(key)
    if met is None or p99 is None or p99 > reader.slo[key]:
        return f"p99 {seconds(p99)}, limit {goal(reader.slo[key])}"
    n_runs = int((reader.answer or {}).get("n_runs", 1))
    return f"{share(1 - met)} of requests" + (f" over {n_runs} runs" if n_runs > 1 else "")


def lost(reader: SummaryReader) -> str:
    """Return why requests got no full answer, and what would give them one."""
    reasons = reader.reasons
    if not reasons:
        return ". Read status_reason in requests.parquet first"
    text = listed([f"{count(n)} “{reason}”" for reason, n in reasons.items()])
    most = max(FATES, key=reader.n)
    refused = sum(n for reason, n in reasons.items() if reason.startswith(REFUSED))
    if most == "failed":
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


def in_the_end(reader: SummaryReader) -> str:
    """Return what became of retried requests."""
    succeeded, n = reader.number("retries", "succeeded_frac"), reader.number("retries", "requests")
    if not reader.has_retries or succeeded is None or n is None:
        return ""
    return f". After retries, {share(succeeded)} of {plural(n, 'request')} were answered in the end"


def _uneven(reader: SummaryReader) -> str:
    """Advise another router: replicas are not too few, but unevenly used."""
    mean, spread = rate(reader.mean_outstanding), rate(reader.number("routing", "outstanding_std"))
    return (
        f"mostly queueing at some replicas while others have far fewer requests (mean {mean}, standard deviation "
        f"{spread}). Take another router or give it fresher views before you add replicas"
    )


def _cause(reader: SummaryReader, key: str) -> str:
    """Return where the time of a failing latency goes, and what shortens it."""
    queue_s, total_s = reader.percentile("queue_s", "p99"), reader.percentile(key, "p99")
    is_late = key in ("ttft_s", "e2e_s")
    is_queued = is_late and queue_s is not None and total_s is not None and queue_s >= 0.5 * total_s
    if is_queued and reader.reservation:
        return f"mostly in the queue. {reserved(reader)}"
    if is_late and any(pool.get("streamed") is False for pool in reader.pools):
        return "as answers leave whole with their batch. Take a continuous or chunked scheduler, or set stream: true"
    if is_queued:
        if reader.binds in HELD_UP:
            return HELD_UP[reader.binds]
        if reader.is_uneven:
            return _uneven(reader)
        more = "prefill replicas" if reader.binds else "replicas"
        return f"mostly in the queue. Add {more}, lower the rate or smooth the bursts"
    if key == "ttft_s":
        return "mostly in the prefill itself. Raise tensor parallelism, take a faster GPU or shorten the prompts"
    if reader.binds in HELD_UP:
        return HELD_UP[reader.binds]
    preempted = reader.preempted_frac
    if preempted is not None and preempted > 0.01:
        lacking = f"with {share(preempted)} of requests preempted for lack of KV"
        return f"{lacking}. Add KV memory or lower {reader.slots_argument}"
    return f"because decode steps are long. Lower {reader.budget_argument}, add replicas or raise tensor parallelism"


def reserved(reader: SummaryReader) -> str:
    """Return what requests reserve, and the keys to set, where that keeps others waiting; else nothing."""
    return "" if reader.reservation is None else cause_and_remedy(reader.reservation)


def replicas_needed(reader: SummaryReader) -> str:
    """Return how many replicas the offered load needs, if throughput grows with their number."""
    offered, served = reader.number("offered_per_s"), reader.number("served_per_s")
    if reader.binds:
        return " or raise kv_link.bytes_per_s" if reader.binds == "link" else f" or add {reader.binds} replicas"
    if len(reader.pools) != 1 or has_changed(reader.pools[0]) or not offered or not served:
        return " or add replicas"
    n_replicas = int(reader.pools[0]["n_replicas"])
    needed = max(math.ceil(n_replicas * offered / served), n_replicas + 1)
    return f" or use about {plural(needed, 'replica')} instead of {n_replicas}"
