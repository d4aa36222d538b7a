"""Routing: how requests spread over replicas, and what it costs to hand them over from prefill to decode replicas."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from simserve.metrics.answers.struct import Figures
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.stats import LatencyJson, distribution
from simserve.metrics.summary_schema import Count, Measured, Share
from simserve.metrics.utilization import Utilization
from simserve.metrics.window import Window
from simserve.tables.columns import Columns, Flags, Floats, Ints
from simserve.tables.facts import LinkFacts, RunFacts
from simserve.tables.run_tables import prefilled_at


class RoutingJson(Figures):
    """Balance of replicas."""

    busiest_frac: Share | None = None
    """[share] The largest share of the window's requests at one replica."""
    outstanding_std: Measured = None
    """Standard deviation of outstanding requests across replicas, root mean square over the window; null if replicas
    joined or left."""
    session_kept_frac: Share | None = None
    """[share] Requests sent to the same replica as the one before in their session, of those that follow one; null
    without sessions."""


class WaitsJson(Figures):
    """Mean waits of a hand-off."""

    prefill: Measured = None
    """[s] Wait for the prefill, of all requests of the window."""
    link: Measured = None
    """[s] Time on the link and in its queue."""
    decode: Measured = None
    """[s] Wait for room on the decode side."""


Bottleneck = Literal["prefill", "link", "decode"]


class TransferJson(LatencyJson):
    """Hand-offs from prefill to decode: `transfer_s` of the requests that were handed off, and the bottleneck."""

    apart_frac: Share | None = None
    """[share] The window's requests with a prompt that went to a prefill replica, except those of `kept_frac`."""
    kept_frac: Share | None = None
    """[share] Requests that a prefill replica also answered."""
    bytes: Measured = None
    """[bytes] KV that was sent."""
    found_tokens: Count = 0
    """[tokens] Prompt tokens that the decode side already had."""
    link_busy_frac: Measured = None
    """[share] Busy time of the busiest port, over the whole run."""
    mean_wait_s: WaitsJson = WaitsJson.model_construct()
    """[s] Mean waits."""
    binds: Bottleneck | None = None
    """The bottleneck of hand-offs; null if there is none."""


WORTH_NAMING_S = 1e-3
"""Mean wait below which there is no bottleneck."""

FULL_FRAC = 0.95
"""Share of KV blocks above which a prefill replica has no room for prompts."""

BUSY_FRAC = 0.9
"""Share of busy time above which prefill replicas are saturated."""


def routing(requests: Columns, window: Window, facts: RunFacts) -> RoutingJson | None:
    """Return the balance of the replicas that the router chooses among; None without a choice."""
    entries = np.array([pool.role != "decode" for pool in facts.pools_by_replica])
    n = int(np.count_nonzero(entries))
    if n < 2:
        return None
    replica = prefilled_at(requests)
    routed = facts.in_pools(replica, lambda pool: pool.role != "decode")  # excludes choices of the decode router
    counts = np.bincount(replica[window.has & routed], minlength=len(entries))[entries]
    n_routed = int(counts.sum())
    is_fixed = bool((Lifetimes(facts).lived_frac((window.start_s, window.end_s)) == 1).all())
    return RoutingJson(
        busiest_frac=float(counts.max() / n_routed) if n_routed else None,
        outstanding_std=_outstanding_std(requests, replica, routed, window, n) if is_fixed else None,
        session_kept_frac=_kept_frac(requests["session_id"], replica, routed, window.has),
    )


def _outstanding_std(requests: Columns, replica: Ints, routed: Flags, window: Window, n_replicas: int) -> float:
    """Return the spread between replicas: the root of the time-averaged variance of their outstanding requests. A
    request leaves when it is answered, handed over to a decode replica, or given up."""
    answered_s = np.where(requests["prefill_replica"] >= 0, requests["first_token_s"], requests["finish_s"])
    leave_s = np.fmin(answered_s, requests["gave_up_s"])
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


def transfer(requests: Columns, window: Window, facts: RunFacts, use: Utilization) -> TransferJson | None:
    """Return the hand-offs of the window's requests; None without prefill and decode pools."""
    if facts.link is None:
        return None
    handed = window.has & (requests["prefill_replica"] >= 0)
    total_s = requests["transfer_s"][handed]
    totals = distribution(total_s)
    waits_s = _mean_waits(requests, window, handed, is_pushed=facts.link.how == "push")
    step_s = _mean(requests["tpot_s"][handed])
    apart_frac, kept_frac = _shares(requests, window, facts)
    is_backed_up = not kept_frac and _is_backed_up(facts, use)  # else local decodes may fill them
    return TransferJson(
        apart_frac=apart_frac,
        kept_frac=kept_frac,
        **totals.numbers,
        bytes=float(_sent_tokens(requests, handed, facts.link).sum()) * facts.link.kv_bytes_per_token,
        found_tokens=int(requests["decode_cached_tokens"][handed].sum()),
        link_busy_frac=_busiest_frac(requests, facts.link, facts),
        mean_wait_s=WaitsJson(**waits_s),
        binds=_binds(waits_s, step_s, is_backed_up=is_backed_up) if totals.n else None,
    )


def _mean_waits(requests: Columns, window: Window, handed: Flags, *, is_pushed: bool) -> dict[str, float]:
    """Return the mean waits for the prefill side, for the link, and for room on the decode side, which is the first of
    the three with push."""
    queue_s, room_s, total_s = (requests[name] for name in ("queue_s", "transfer_wait_s", "transfer_s"))
    if is_pushed:
        queue_s = queue_s - room_s
    else:
        total_s = total_s - room_s
    return {"prefill": _mean(queue_s[window.has]), "link": _mean(total_s[handed]), "decode": _mean(room_s[handed])}


def _shares(requests: Columns, window: Window, facts: RunFacts) -> tuple[float | None, float | None]:
    """Return the shares of the window's requests that were disaggregated, and that a prefill replica kept after the
    first token. An answer of one token needs no hand-off and counts as disaggregated."""
    handed, computed_at = requests["prefill_replica"] >= 0, prefilled_at(requests)
    placed = window.has & (computed_at >= 0)
    if not placed.any():
        return None, None
    goes_on = ~np.isnan(requests["first_token_s"]) & (requests["output_tokens"] > 1)
    went = facts.in_pools(computed_at[placed], lambda pool: pool.role == "prefill")
    kept = went & (goes_on & ~handed)[placed]
    return float((went & ~kept).mean()), float(kept.mean())


def _binds(waits_s: Mapping[str, float], step_s: float, *, is_backed_up: bool) -> Bottleneck | None:
    """Name the bottleneck, the longest wait. A handed-over request waits for the next step anyway, so that does not
    count; nor does the queue of prefill replicas that are blocked."""
    held_s: dict[Bottleneck, float] = {"link": waits_s["link"], "decode": waits_s["decode"] - step_s}
    if not is_backed_up:
        held_s["prefill"] = waits_s["prefill"]
    longest = max(held_s, key=lambda name: held_s[name])
    return longest if held_s[longest] > WORTH_NAMING_S else None


def _is_backed_up(facts: RunFacts, use: Utilization) -> bool:
    """Tell whether prompts that wait for transfer fill a prefill pool that is not busy."""
    peaks = zip(facts.replica_pool, facts.peak_kv_blocks, strict=True)
    full = {pool for pool, peak in peaks if peak >= FULL_FRAC * facts.pools[pool].n_blocks}
    return any(facts.pools[pool].role == "prefill" and use.by_pool[pool].busy_frac < BUSY_FRAC for pool in full)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _sent_tokens(requests: Columns, handed: Flags, link: LinkFacts) -> Ints:
    """Return the prompt tokens that crossed the link, as if in all layers: those not in the prefix cache of the decode
    replica."""
    prompt_tokens = requests["prompt_tokens"][handed]
    sent: Ints = link.sizes.sent_tokens(requests["decode_cached_tokens"][handed], prompt_tokens, prompt_tokens)
    return sent


def _busiest_frac(requests: Columns, link: LinkFacts, facts: RunFacts) -> float:
    """Return the busy share of the busiest port over the whole run; lanes of a pipeline share one."""
    handed = (requests["prefill_replica"] >= 0) & (requests["transfer_s"] > 0)
    busy_s = _sent_tokens(requests, handed, link) * (link.kv_bytes_per_token / link.bytes_per_s)
    if link.shared:
        most_s = float(busy_s.sum())
    else:
        members = enumerate(Lifetimes(facts).members)
        port = np.array([i if each.first_lane is None else each.first_lane for i, each in members], np.int64)
        sides = (port[requests["prefill_replica"][handed]], port[requests["replica"][handed]])
        most_s = max(float(np.bincount(side, busy_s).max(initial=0.0)) for side in sides)
    return min(most_s / facts.end_s, 1.0) if facts.end_s > 0 else 0.0
