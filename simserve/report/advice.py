"""What would help a run that misses its SLO, from where the time and the requests went: the end of the verdict."""

import math

from simserve.report.formats import SHORT, count, goal, listed, plural, rate, seconds, share
from simserve.report.summary_reader import Answers

HELD_UP = {
    "link": "with most of the waiting for the link: raise kv_link.bytes_per_s, or compute shorter prompts elsewhere",
    "decode": "with most of the waiting for seats and KV of decode replicas: add decode replicas or give them more KV",
}
"""Why requests that were handed over are late, by what binds."""

REFUSED = "refused: "
"""How the reasons of admission policies begin."""


def remedy(answers: Answers) -> str:
    """What fails and what would help, from the p99s and where their time went."""
    n_lost = sum(answers.n(fate) for fate in ("rejected", "timed_out", "unfinished"))
    if n_lost * 2 > (1 - (answers.attainment or 0.0)) * answers.n("arrived"):
        return f"{plural(n_lost, 'attempt' if answers.has_retries else 'request')} got no full answer{lost(answers)}"
    worst = answers.worst_slo
    if worst is None:
        return "no single goal is to blame: look at the bursts in the timeline, smooth them or add replicas"
    if worst == "itl_s":
        return (
            "single gaps between tokens are too long: lower max_num_batched_tokens, or avoid preemptions with more KV"
        )
    against = f"p99 {seconds(answers.percentile(worst, 'p99'))} against {goal(answers.slo[worst])}"
    return f"{SHORT[worst]} fails most ({against}), {_cause(answers, worst)}"


def lost(answers: Answers) -> str:
    """Why requests got no full answer, and what would give them one."""
    reasons = answers.reasons
    if not reasons:
        return ": read status_reason in requests.parquet first"
    said = listed([f"{count(n)} “{reason}”" for reason, n in reasons.items()])
    most = max((fate for fate in ("rejected", "timed_out", "unfinished")), key=answers.n)
    refused = sum(n for reason, n in reasons.items() if reason.startswith(REFUSED))
    if most == "timed_out":
        act = "add replicas, lower the rate, or refuse what cannot be answered in time (cluster.admission)"
    elif most == "rejected" and refused * 2 > answers.n("rejected"):
        act = "add replicas, lower the rate, or let cluster.admission take more"
    elif most == "rejected":
        act = "shorten the prompts or give the cluster more KV memory"
    else:
        act = "lower the load or raise workload.drain_limit_s"
    return f" ({said}): {act}"


def in_the_end(answers: Answers) -> str:
    """What came of it for those who asked again."""
    succeeded, n = answers.number("retries", "succeeded_frac"), answers.number("retries", "requests")
    if not answers.has_retries or succeeded is None or n is None:
        return ""
    return f"; after retries, {share(succeeded)} of {plural(n, 'request')} were answered in the end"


def _uneven(answers: Answers) -> str:
    """Replicas are not short, but badly used."""
    mean, spread = rate(answers.mean_outstanding), rate(answers.number("routing", "outstanding_std"))
    return (
        f"mostly time in the queue of some replicas while others have far fewer requests ({mean} requests at each on "
        f"average, standard deviation {spread}): take another router or give it fresher views before you add replicas"
    )


def _cause(answers: Answers, key: str) -> str:
    """Where the time of a failing latency goes, and what shortens it."""
    if key in ("ttft_s", "e2e_s") and any(pool.get("streamed") is False for pool in answers.pools):
        return "as answers leave whole with their batch: take a continuous or chunked scheduler, or set stream: true"
    queue_s, total_s = answers.percentile("queue_s", "p99"), answers.percentile(key, "p99")
    if key in ("ttft_s", "e2e_s") and queue_s is not None and total_s is not None and queue_s >= 0.5 * total_s:
        if answers.binds in HELD_UP:
            return HELD_UP[answers.binds]
        if answers.is_uneven:
            return _uneven(answers)
        more = "prefill replicas" if answers.binds else "replicas"
        return f"mostly time in the queue: add {more}, lower the rate or smooth the bursts"
    if key == "ttft_s":
        return "mostly the prefill itself: raise tensor parallelism, take a faster GPU or shorten the prompts"
    if answers.binds in HELD_UP:
        return HELD_UP[answers.binds]
    preempted = answers.preempted_frac
    if preempted is not None and preempted > 0.01:
        return f"with {share(preempted)} of requests preempted for want of KV: add KV memory or allow fewer seats"
    return "because decode steps are long: lower max_num_batched_tokens, add replicas or raise tensor parallelism"


def replicas_needed(answers: Answers) -> str:
    """How many replicas the offered load takes, if what is served grows with their number."""
    offered, served = answers.number("offered_per_s"), answers.number("served_per_s")
    if answers.binds:
        return " or raise kv_link.bytes_per_s" if answers.binds == "link" else f" or add {answers.binds} replicas"
    if len(answers.pools) != 1 or not offered or not served:
        return " or add replicas"
    n_replicas = int(answers.pools[0]["n_replicas"])
    needed = max(math.ceil(n_replicas * offered / served), n_replicas + 1)
    return f" or use about {plural(needed, 'replica')} instead of {n_replicas}"
