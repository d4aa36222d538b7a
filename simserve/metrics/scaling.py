"""Scaling: what happened to a fleet that changed, and whether its autoscaler oscillates by itself."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from simserve.metrics.answers.struct import Figures
from simserve.metrics.goodput import all_met
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.summary_schema import Count, Measured
from simserve.tables.columns import Columns, Flags, Floats
from simserve.tables.facts import RunFacts
from simserve.tables.why import MemberFacts, Reason, Why

NOT_SCALED = (Why.START, Why.RESTARTED, Why.REPLACES, Why.ROLLED_OUT)
"""Why replicas join without scaling, as spares do unless they sleep."""

BIN_S = 15.0
"""Least length of an interval of arrivals; each has LEAST_ARRIVALS on average."""
LEAST_ARRIVALS = 20
LOW_FRAC = 0.9
"""Share of an interval's requests below which it counts as time below the SLO."""

LEAST_CYCLES = 3
MOST_SPREAD = 0.25
"""A limit cycle repeats this often, with periods that differ by no more than this (standard deviation / mean)."""
MOST_LOAD_CHANGE = 0.1
"""Where arrivals in its low and high phases differ by more, the load is the cause."""


class ScalingJson(Figures):
    """What happened to a fleet that changed."""

    mean_gpus: Measured = None
    """GPUs on average, those included of replicas that start or drain."""
    gpu_hours: Measured = None
    """[h] GPU time of the whole run."""
    most_replicas: Count
    """Replicas that were ready at a time, at most; data-parallel ranks count one by one."""
    n_scalings: Count
    """Instants at which replicas were added or removed, without those that replace others."""
    n_reversals: Count
    """Times that a removal followed additions, or an addition removals."""
    cycle_s: Measured = None
    """[s] Period of a limit cycle: scaling up and down again and again while the load stays; null without one."""
    n_failures: Count
    """Replicas that failed, data-parallel ranks one by one; those that are cut at the end of their grace are none."""
    n_slowed: Count
    """Times that a replica, or a link between prefill and decode replicas, had a part of its speed or none."""
    below_s: Measured = None
    """[s] Time in which fewer than 90% of the arriving requests met the SLO; null without an SLO."""
    longest_below_s: Measured = None
    """[s] The longest such time at a stretch, such as from a step of the load until replicas have started for it."""
    rollout_s: Measured = None
    """[s] Time from the start of a roll-out until its last replica was ready and the last old one gone; null: it has
    not ended, or there is none."""
    rollout_attained_frac: Measured = None
    """[share] Requests that met the SLO among those that arrived meanwhile; null without a roll-out or an SLO."""


def scaling(requests: Columns, facts: RunFacts, met: Mapping[str, Flags]) -> ScalingJson | None:
    """Return what happened to the fleet; None where it did not change."""
    if not facts.changes:
        return None
    lives = Lifetimes(facts)
    events = [_events(facts, pool) for pool in range(len(facts.pools))]
    turns = [*map(_turns, events)]
    cycles_s = [cycle_s for each in turns if (cycle_s := _cycle_s(each, requests["arrival_s"])) is not None]
    gpu_seconds = lives.gpu_seconds()
    below_s, longest_s = _below(requests, met)
    start_s, end_s = _rollout(facts) or (math.inf, math.nan)
    meanwhile, is_met = (requests["arrival_s"] >= start_s) & (requests["arrival_s"] < end_s), all_met(met)
    return ScalingJson(
        mean_gpus=gpu_seconds / facts.end_s if facts.end_s else None,
        gpu_hours=gpu_seconds / 3600,
        most_replicas=_most_ready(facts.members),
        n_scalings=sum(map(len, events)),
        n_reversals=sum(max(0, len(each) - 1) for each in turns),
        cycle_s=min(cycles_s, default=None),
        n_failures=sum(member.has(Why.FAILED) for member in facts.members),
        n_slowed=len(_slowed(facts)),
        below_s=below_s,
        longest_below_s=longest_s,
        rollout_s=end_s - start_s,
        rollout_attained_frac=float(is_met[meanwhile].mean()) if is_met is not None and meanwhile.any() else None,
    )


def _slowed(facts: RunFacts) -> list[tuple[int | None, Reason]]:
    """Return when each replica, by its number, and each link, None, was slow."""
    why = ((number, reason) for number, member in enumerate(facts.members) for reason in member.reasons)
    return [*dict.fromkeys((number if each.kind == Why.SLOW else None, each) for number, each in why if each.window_s)]


def _slow_warnings(requests: Columns, facts: RunFacts) -> Iterator[str]:
    """Yield how long replicas were slow, and links, for how many requests, and the first three times."""
    replica, prefill, sent_s = requests["replica"], requests["prefill_replica"], requests["first_token_s"]
    served_s = requests["scheduled_s"], np.fmin(requests["finish_s"], requests["gave_up_s"])
    for kind, (from_s, to_s) in {Why.SLOW: served_s, Why.LINK: (sent_s, sent_s + requests["transfer_s"])}.items():
        is_link, slow = kind == Why.LINK, [(number, each) for number, each in _slowed(facts) if each.kind == kind]
        is_touched, lasted_s = np.zeros(len(sent_s), np.bool_), 0.0
        for number, each in slow:
            start_s, end_s = each.window_s or (0.0, 0.0)
            end_s = facts.end_s if end_s is None else min(end_s, facts.end_s)
            lasted_s += max(0.0, end_s - start_s)
            pools = enumerate(facts.pools_by_replica)
            ids = [number] if number is not None else [at for at, pool in pools if each.of in ("", pool.name)]
            is_there = (np.isin(replica, ids) | np.isin(prefill, ids)) & ((prefill >= 0) | (not is_link))
            is_touched |= is_there & (from_s < end_s) & ~(to_s <= start_s)  # one without an end was there to the end
        texts = [each.words if number is None else f"replica {number} {each.words}" for number, each in slow]
        named = ", ".join([*texts[:3], *([f"and {len(texts) - 3} more"] if len(texts) > 3 else [])])
        n, n_slow = int(np.count_nonzero(is_touched)), len({number for number, _ in slow})
        windows, of = f"{len(slow)} window{'s' * (len(slow) != 1)}", f" of {n_slow} replica{'s' * (n_slow != 1)}"
        what, where = (f"links: {windows}", "in transfer") if is_link else (f"replicas: {windows}{of}", "there")
        if slow:
            touched = f"{n} request{'s' * (n != 1)} {where} meanwhile"
            yield f"slow {what}, {lasted_s:.3g} s in all, {touched}: {named}"


def scaling_warnings(scaling: ScalingJson | None, requests: Columns, facts: RunFacts) -> Iterator[str]:
    """Yield warnings of an autoscaler that oscillates, of a roll-out that has not ended, and of what was slow."""
    if scaling is not None and scaling.cycle_s is not None:
        period = f"every {scaling.cycle_s:.0f} s, {scaling.n_reversals} reversals in all"
        remedy = "widen its window for scaling down, or its distance between scaling up and down"
        yield f"the autoscaler oscillates in a limit cycle ({period}) while the load stays: {remedy}"
    if (rolled_s := _rollout(facts)) is not None and rolled_s[1] == math.inf:
        yield f"the roll-out of {rolled_s[0]:g} s had not ended when the run did: make the load longer"
    if facts.changes:
        yield from _slow_warnings(requests, facts)


def _events(facts: RunFacts, pool: int) -> list[tuple[float, int]]:
    """Return the instants at which replicas of a pool were added (1) or removed (-1), in order."""
    members = [each for each, own in zip(facts.members, facts.replica_pool, strict=True) if own == pool]
    added = {
        each.called_s
        for each in members
        if each.called_s and each.joined not in NOT_SCALED and each.reasons[0].of not in ("warm", "cold")
    }
    removed = {
        at_s
        for each in members
        if not each.has(Why.FAILED, Why.EVICTED, Why.ROLLED_OUT)
        for at_s in (each.draining_s if each.ready_s is not None else each.gone_s,)
        if at_s is not None
    }
    return sorted([*((at_s, 1) for at_s in added), *((at_s, -1) for at_s in removed)])


def _turns(events: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the first of each row of additions or removals."""
    return [event for event, before in zip(events, [(0.0, 0), *events], strict=False) if event[1] != before[1]]


def _cycle_s(turns: list[tuple[float, int]], arrival_s: Floats) -> float | None:
    """Return the period of a limit cycle; None without one, or where the load goes up and down alike."""
    ups = np.array([at_s for at_s, sign in turns if sign > 0])
    periods_s = np.diff(ups)
    if len(periods_s) < LEAST_CYCLES or periods_s.std() > MOST_SPREAD * periods_s.mean():
        return None
    edges_s = np.array([at_s for at_s, _ in turns])
    n_arrived = np.diff(np.searchsorted(np.sort(arrival_s), edges_s))
    lengths_s, is_high = np.diff(edges_s), np.array([sign > 0 for _, sign in turns[:-1]])
    high_per_s, low_per_s = (n_arrived[part].sum() / lengths_s[part].sum() for part in (is_high, ~is_high))
    is_steady = abs(high_per_s - low_per_s) <= MOST_LOAD_CHANGE * max(high_per_s, low_per_s)
    return float(periods_s.mean()) if is_steady else None


def _most_ready(members: tuple[MemberFacts, ...]) -> int:
    """Return the most replicas that were ready at a time."""
    starts = [(each.ready_s, 1) for each in members if each.ready_s is not None]
    ends = [(each.draining_s if each.draining_s is not None else each.gone_s, -1) for each in members]
    events = sorted([*starts, *((at_s, sign) for at_s, sign in ends if at_s is not None)])
    return int(np.cumsum([sign for _, sign in events]).max(initial=0))


def _rollout(facts: RunFacts) -> tuple[float, float] | None:
    """Return the start and end of a roll-out, inf where it has not ended; None without one."""
    members = [*zip(facts.members, facts.replica_pool, strict=True)] if facts.members else []
    touched = [(each, pool) for each, pool in members if each.has(Why.ROLLED_OUT)]
    if not touched:
        return None
    new = {pool for each, pool in touched if each.joined == Why.ROLLED_OUT}
    roles = {facts.pools[pool].role for pool in new}
    alike = {pool for pool, each in enumerate(facts.pools) if each.role in roles}
    old = {pool for _, pool in touched} - new or alike - new
    starts_s = (each.ordered_s if pool in new else each.draining_s or each.gone_s or 0.0 for each, pool in touched)
    waits = [each for each, pool in members if pool in old] + [each for each, _ in touched if each.ready_s is None]
    is_over = all(each.gone_s is not None for each in waits)
    ends_s = (at_s for each, _ in touched for at_s in (each.ready_s, each.gone_s) if at_s is not None)
    return min(starts_s), max(ends_s) if is_over else math.inf


def _below(requests: Columns, met: Mapping[str, Flags]) -> tuple[float | None, float | None]:
    """Return the time below the SLO, in all and the longest at a stretch; None without an SLO."""
    all_of_it, arrival_s = all_met(met), requests["arrival_s"]
    if all_of_it is None or not len(arrival_s):
        return None, None
    last_s = float(arrival_s.max())
    n_bins = max(1, int(min(last_s / BIN_S, len(arrival_s) / LEAST_ARRIVALS)))
    place = np.minimum((arrival_s / max(last_s, 1e-9) * n_bins).astype(np.int64), n_bins - 1)
    n_met, n = np.bincount(place, all_of_it, n_bins), np.bincount(place, minlength=n_bins)
    is_low = (n > 0) & (n_met < LOW_FRAC * n)
    longest = max((end - start for start, end in runs_of(is_low)), default=0)
    return float(is_low.sum()) * last_s / n_bins, longest * last_s / n_bins


def runs_of(flags: Flags) -> list[tuple[int, int]]:
    """Return the start and end of each row of true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
