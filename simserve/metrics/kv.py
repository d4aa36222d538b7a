"""KV: blocks in total, peak use, hits of caches, the cost of preemption, reservations that keep requests waiting."""

import math
from typing import Any

import numpy as np

from simserve.metrics import kv_json
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import PoolFacts, ReservingFacts, RunFacts
from simserve.tables.pieces import pieces

NEAR_LIMIT_FRAC = 0.9
"""Peak share of KV blocks above which their number decides the result, so it should be a measured one."""

LEAST_FRAC = 0.01
"""Share of the time with reservations for which these must keep requests waiting to be named as a cause."""


def kv_use(facts: RunFacts, reserved: kv_json.ReservationJson | None) -> kv_json.KvUseJson:
    """Return blocks and tokens of the whole cluster, a mean over the run, and the peak of the replica closest to its
    limit."""
    pools = facts.pools_by_replica
    lived = Lifetimes(facts).lived_frac((0.0, facts.end_s)).tolist()
    pairs = [(pool.n_blocks * frac, pool) for pool, frac in zip(pools, lived, strict=True)]
    fracs = [peak / pool.n_blocks for peak, pool in zip(facts.peak_kv_blocks, pools, strict=True) if pool.n_blocks]
    return kv_json.KvUseJson(
        blocks=round(sum(n_blocks for n_blocks, _ in pairs)),
        tokens=round(sum(n / pool.blocks_per_tokens * pool.block_size for n, pool in pairs if pool.blocks_per_tokens)),
        peak_blocks=max(facts.peak_kv_blocks, default=0),
        peak_frac=max(fracs, default=None),
        reservation=reserved,
    )


def unverified_peak_frac(facts: RunFacts) -> float:
    """Return the peak share of KV blocks in pools with an estimated number of blocks; 0 without such pools."""
    peaks = zip(facts.pools_by_replica, facts.peak_kv_blocks, strict=True)
    return max((peak / pool.n_blocks for pool, peak in peaks if pool.n_blocks and not pool.kv_verified), default=0.0)


def preemptions(requests: Columns, window: Window) -> kv_json.PreemptionsJson:
    """Return the preemptions of the window's requests and the tokens they recomputed."""
    times = requests["n_preemptions"][window.has]
    n_requests = int(np.count_nonzero(times))
    return kv_json.PreemptionsJson(
        n=int(times.sum()),
        requests=n_requests,
        requests_frac=n_requests / len(times) if len(times) else None,
        recomputed_tokens=int(requests["n_recomputed_tokens"][window.has].sum()),
    )


def reservation(requests: Columns, steps: Columns, facts: RunFacts, window: Window) -> kv_json.ReservationJson | None:
    """Return what requests reserve and use, where others wait for blocks that are reserved rather than used. None where
    use or slots keep them out, where none waits, and where policies reserve nothing."""
    known = next(filter(None, (pool.reserving for pool in facts.pools_by_replica)), None)
    if known is None:
        return None
    chosen = window.finished(requests) & facts.in_pools(requests["replica"], lambda pool: pool.reserving)
    if not chosen.any():
        return None
    prompts, outputs = (requests[name][chosen] for name in ("prompt_tokens", "output_tokens"))
    waits_frac, at_once = _waits(steps, facts, window, int((prompts + outputs).max()))
    if not waits_frac >= LEAST_FRAC:
        return None
    limits, most = requests["max_tokens"], known.longest_tokens - prompts
    if limits is not None:
        most = np.minimum(np.ma.filled(limits[chosen], known.longest_tokens), most)
    given: Any = [] if limits is None else np.ma.compressed(limits[chosen])
    reserved = prompts + (most if known.most_output_tokens is None else np.minimum(most, known.most_output_tokens))
    return kv_json.ReservationJson(
        waits_frac=waits_frac,
        is_estimate=known.most_output_tokens is not None,
        at_once=max(1, round(at_once)),
        reserved_tokens=int(np.median(reserved)),
        used_tokens=round(float((prompts + outputs).mean())),
        longest_output_tokens=int(outputs.max()),
        max_tokens=int(np.median(given)) if len(given) else None,
        without=known.without,
    )


def _waits(steps: Columns, facts: RunFacts, window: Window, longest_tokens: int) -> tuple[float, float]:
    """Return the share of the time with reservations in which these keep requests waiting, and the mean number of
    requests that run then. Where a policy only counts on blocks, it keeps all unused ones free, if these would hold the
    longest request."""
    pools = facts.pools_by_replica
    longest = np.array([_blocks_counted_on(pool, longest_tokens) for pool in pools])
    totals = np.array([pool.n_blocks for pool in pools])
    slots = np.array([_slots(pool.reserving) for pool in pools])
    reserved_s = waits_s = decode_s = running_s = 0.0
    for part in pieces(steps):
        replica, starts_s, used = part["replica"], part["start_s"], part["kv_blocks_used"]
        unused = totals[replica] - used
        reserved = np.where(unused >= longest[replica], unused, part["kv_blocks_reserved"])
        n = part["decode_requests"].astype(np.int64)
        held = used + part["kv_blocks_reserved"]
        next_fits = held * (n + 1) <= totals[replica] * n  # one more like those that run
        is_full = part["blocked_by"].is_("blocks") | ((n > 0) & (n < slots[replica]) & ~next_fits)
        lasts_s = (part["end_s"] - starts_s) * ((starts_s >= window.start_s) & (starts_s <= window.end_s))
        held_s = lasts_s * (reserved > used) * (part["queue_len"] > 0) * is_full
        reserved_s += float((lasts_s * (reserved > 0)).sum())
        waits_s += float(held_s.sum())
        only_decodes_s = held_s * (part["prefill_tokens"] == 0)
        decode_s += float(only_decodes_s.sum())
        running_s += float((only_decodes_s * n).sum())
    return waits_s / reserved_s if reserved_s else 0.0, running_s / decode_s if decode_s else 1.0


def _blocks_counted_on(pool: PoolFacts, longest_tokens: int) -> float:
    """Return the blocks of the longest request, where a policy counts on blocks that it does not reserve."""
    if pool.reserving is None or pool.reserving.most_output_tokens is None:
        return math.inf
    return longest_tokens / pool.block_size * pool.blocks_per_tokens or 1.0


def _slots(reserving: ReservingFacts | None) -> float:
    """Return the slots of a replica; none of one that reserves nothing."""
    return 0 if reserving is None else math.inf if reserving.slots is None else reserving.slots


def prefix_cache(requests: Columns, window: Window) -> kv_json.PrefixHitsJson:
    """Return the hits of the window's requests, without those after a preemption."""
    cached, prompts = requests["cached_tokens"][window.has], requests["prompt_tokens"][window.has]
    n_tokens = int(prompts.sum())
    return kv_json.PrefixHitsJson(
        hit_tokens=int(cached.sum()),
        hit_frac=float(cached.sum() / n_tokens) if n_tokens else None,
        requests_frac=float(np.count_nonzero(cached) / len(cached)) if len(cached) else None,
    )


def host_tier(requests: Columns, window: Window, facts: RunFacts) -> kv_json.HostTierJson | None:
    """Return swaps and hits of the window's requests, bytes and waits of the whole run; None without a host tier."""
    if facts.host_tier is None:
        return None
    n_swaps = requests["n_swaps"][window.has]
    cached, on_host, on_disk = (
        int(requests[f"{where}cached_tokens"][window.has].sum()) for where in ("", "host_", "disk_")
    )
    return kv_json.HostTierJson(
        n_swaps=int(n_swaps.sum()),
        requests_frac=float(np.count_nonzero(n_swaps) / len(n_swaps)) if len(n_swaps) else None,
        hit_tokens=kv_json.HitTokensJson(gpu=cached - on_host - on_disk, host=on_host, disk=on_disk),
        **vars(facts.host_tier),
    )
