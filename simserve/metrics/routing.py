"""Routing: load balance over replicas, and session affinity."""

import math
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.summary_schema import Measured, Share
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.facts import RunFacts


class RoutingJson(TypedDict, total=False):
    """Balance of replicas."""

    busiest_frac: Share | None
    outstanding_std: Measured
    session_kept_frac: Share | None


def routing(requests: Columns, window: Window, facts: RunFacts) -> RoutingJson | None:
    """Return the balance of the replicas that the router chooses among; None without a choice."""
    entries = np.array([pool.role != "decode" for pool in facts.pools_by_replica])
    n = int(np.count_nonzero(entries))
    if n < 2:
        return None
    prefilled: Ints = requests["prefill_replica"]
    served: Ints = requests["replica"]
    replica = np.where(prefilled >= 0, prefilled, served)
    routed = np.append(entries, False)[replica]  # excludes choices of the decode router; -1 (no replica) is the last
    counts = np.bincount(replica[window.has & routed], minlength=len(entries))[entries]
    n_routed = int(counts.sum())
    is_fixed = bool((Lifetimes(facts).lived_frac((window.start_s, window.end_s)) == 1).all())
    return {
        "busiest_frac": float(counts.max() / n_routed) if n_routed else None,
        "outstanding_std": _outstanding_std(requests, replica, routed, window, n) if is_fixed else None,
        "session_kept_frac": _kept_frac(requests["session_id"], replica, routed, window.has),
    }


def _outstanding_std(requests: Columns, replica: Ints, routed: Flags, window: Window, n_replicas: int) -> float:
    """Return the spread between replicas: the root of the time-averaged variance of their outstanding requests. A
    request leaves when it is answered, handed over to a decode replica, or given up."""
    handed_over: Flags = requests["prefill_replica"] >= 0
    first_token_s: Floats = requests["first_token_s"]
    finish_s: Floats = requests["finish_s"]
    leave_s = np.fmin(np.where(handed_over, first_token_s, finish_s), requests["gave_up_s"])
    leave_s = np.clip(np.where(np.isnan(leave_s), math.inf, leave_s), window.start_s, window.end_s)
    come_s = np.clip(requests["arrival_s"], window.start_s, window.end_s)
    length_s = window.end_s - window.start_s
    if not length_s > 0:
        return math.nan
    times_s = np.concatenate([come_s[routed], leave_s[routed]])
    changes = np.repeat([1, -1], np.count_nonzero(routed))
    where = np.tile(replica[routed], 2)
    each = _squares(times_s, changes, where)
    together = _squares(times_s, changes, np.zeros_like(where))
    return math.sqrt(max(each / n_replicas - together / n_replicas**2, 0.0) / length_s)


def _squares(times_s: Floats, changes: Ints, where: Ints) -> float:
    """Integrate the squared number present over time, summed over replicas; all requests leave in the end."""
    order = np.lexsort((times_s, where))
    at_s, n_there = times_s[order], np.cumsum(changes[order])
    # Between the last change of one replica and the first of the next, the number is zero.
    return float((n_there[:-1].astype(np.float64) ** 2 * np.diff(at_s)).sum())


def _kept_frac(sessions: Any, replica: Ints, routed: Flags, has: Flags) -> float | None:
    """Return the share of follow-up requests in the window that went to the replica of their predecessor."""
    if sessions is None:
        return None
    last: dict[str, int] = {}
    n_kept = n_following = 0
    known = routed & (sessions != "")
    for session, place, counts in zip(sessions[known], replica[known].tolist(), has[known].tolist(), strict=True):
        before = last.get(session)
        if before is not None and counts:
            n_following += 1
            n_kept += place == before
        last[session] = place
    return n_kept / n_following if n_following else None
