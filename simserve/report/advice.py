"""What would help a run that misses its SLO, from where the time and the requests went: the end of the verdict."""

import math

from simserve.report.formats import SHORT, count, goal, listed, plural, rate, seconds, share
from simserve.report.summary_reader import SummaryReader

HELD_UP = {
    "link": "with most of the waiting for the link: raise kv_link.bytes_per_s, or compute shorter prompts elsewhere",
    "decode": "with most of the waiting for seats and KV of decode replicas: add decode replicas or give them more KV",
}
"""Why requests that were handed over are late, by what binds."""

REFUSED = "refused: "
"""How the reasons of admission policies begin."""


def advice(reader: SummaryReader) -> str:
    """What fails and what would help, from the p99s and where their time went."""
    n_lost = sum(reader.n(fate) for fate in ("rejected", "timed_out", "unfinished"))
    if n_lost * 2 > (1 - (reader.attainment or 0.0)) * reader.n("arrived"):
        return f"{plural(n_lost, 'attempt' if reader.has_retries else 'request')} got no full answer{lost(reader)}"
    worst = reader.worst_slo
    if worst is None:
        return "no single goal is to blame: look at the bursts in the timeline, smooth them or add replicas"
    if worst == "itl_s":
        return (
            "single gaps between tokens are too long: lower max_num_batched_tokens, or avoid preemptions with more KV"
        )
    against = f"p99 {seconds(reader.percentile(worst, 'p99'))} against {goal(reader.slo[worst])}"
    return f"{SHORT[worst]} fails most ({against}), {_cause(reader, worst)}"


def lost(reader: SummaryReader) -> str:
    """Why requests got no full answer, and what would give them one."""
    reasons = reader.reasons
    if not reasons:
        return ": read status_reason in requests.parquet first"
    text = listed([f"{count(n)} “{reason}”" for reason, n in reasons.items()])
    most = max((fate for fate in ("rejected", "timed_out", "unfinished")), key=reader.n)
    refused = sum(n for reason, n in reasons.items() if reason.startswith(REFUSED))
    if most == "timed_out":
        act = "add replicas, lower the rate, or refuse what cannot be answered in time (cluster.admission)"
    elif most == "rejected" and refused * 2 > reader.n("rejected"):
        act = "add replicas, lower the rate, or let cluster.admission take more"
    elif most == "rejected":
        act = "shorten the prompts or give the cluster more KV memory"
    else:
        act = "lower the load or raise workload.drain_limit_s"
    return f" ({text}): {act}"


def in_the_end(reader: SummaryReader) -> str:
    """What came of it for those who asked again."""
    succeeded, n = reader.number("retries", "succeeded_frac"), reader.number("retries", "requests")
    if not reader.has_retries or succeeded is None or n is None:
        return ""
    return f"; after retries, {share(succeeded)} of {plural(n, 'request')} were answered in the end"


def _uneven(reader: SummaryReader) -> str:
    """Replicas are not short, but badly used."""
    mean, spread = rate(reader.mean_outstanding), rate(reader.number("routing", "outstanding_std"))
    return (
        f"mostly time in the queue of some replicas while others have far fewer requests ({mean} requests at each on "
        f"average, standard deviation {spread}): take another router or give it fresher views before you add replicas"
    )


def _cause(reader: SummaryReader, key: str) -> str:
    """Where the time of a failing latency goes, and what shortens it."""
    if key in ("ttft_s", "e2e_s") and any(pool.get("streamed") is False for pool in reader.pools):
        return "as answers leave whole with their batch: take a continuous or chunked scheduler, or set stream: true"
    queue_s, total_s = reader.percentile("queue_s", "p99"), reader.percentile(key, "p99")
    if key in ("ttft_s", "e2e_s") and queue_s is not None and total_s is not None and queue_s >= 0.5 * total_s:
        if reader.binds in HELD_UP:
            return HELD_UP[reader.binds]
        if reader.is_uneven:
            return _uneven(reader)
        more = "prefill replicas" if reader.binds else "replicas"
        return f"mostly time in the queue: add {more}, lower the rate or smooth the bursts"
    if key == "ttft_s":
        return "mostly the prefill itself: raise tensor parallelism, take a faster GPU or shorten the prompts"
    if reader.binds in HELD_UP:
        return HELD_UP[reader.binds]
    preempted = reader.preempted_frac
    if preempted is not None and preempted > 0.01:
        return f"with {share(preempted)} of requests preempted for want of KV: add KV memory or allow fewer seats"
    return "because decode steps are long: lower max_num_batched_tokens, add replicas or raise tensor parallelism"


def replicas_needed(reader: SummaryReader) -> str:
    """How many replicas the offered load takes, if what is served grows with their number."""
    offered, served = reader.number("offered_per_s"), reader.number("served_per_s")
    if reader.binds:
        return " or raise kv_link.bytes_per_s" if reader.binds == "link" else f" or add {reader.binds} replicas"
    if len(reader.pools) != 1 or not offered or not served:
        return " or add replicas"
    n_replicas = int(reader.pools[0]["n_replicas"])
    needed = max(math.ceil(n_replicas * offered / served), n_replicas + 1)
    return f" or use about {plural(needed, 'replica')} instead of {n_replicas}"
