"""KV: blocks in total, peak use, and the cost of preemption."""

from typing import Any

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts

NEAR_LIMIT_FRAC = 0.9
"""Peak share of KV blocks above which their number decides the result, so it should be a measured one."""


def kv_use(facts: RunFacts) -> dict[str, Any]:
    """Return blocks and tokens of the whole cluster, and the peak of the replica closest to its limit."""
    totals = [facts.pools[pool].n_blocks for pool in facts.replica_pool]
    sizes = [facts.pools[pool].block_size for pool in facts.replica_pool]
    fracs = [peak / total for peak, total in zip(facts.peak_kv_blocks, totals, strict=True) if total]
    return {
        "blocks": sum(totals),
        "tokens": sum(total * size for total, size in zip(totals, sizes, strict=True)),
        "peak_blocks": max(facts.peak_kv_blocks, default=0),
        "peak_frac": max(fracs, default=None),
    }


def unverified_peak_frac(facts: RunFacts) -> float:
    """Return the peak share of KV blocks in pools with an estimated number of blocks; 0 without such pools."""
    peaks = zip(facts.replica_pool, facts.peak_kv_blocks, strict=True)
    estimated = [(facts.pools[pool], peak) for pool, peak in peaks if not facts.pools[pool].kv_verified]
    return max((peak / pool.n_blocks for pool, peak in estimated if pool.n_blocks), default=0.0)


def preemptions(requests: Columns, window: Window) -> dict[str, Any]:
    """Return the preemptions of the window's requests and the tokens they recomputed."""
    times = requests["n_preemptions"][window.has]
    n_requests = int(np.count_nonzero(times))
    return {
        "n": int(times.sum()),
        "requests": n_requests,
        "requests_frac": n_requests / len(times) if len(times) else None,
        "recomputed_tokens": int(requests["n_recomputed_tokens"][window.has].sum()),
    }
