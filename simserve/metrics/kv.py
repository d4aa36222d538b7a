"""KV: how many blocks there are, how many were ever held, and what preemption cost."""

from typing import Any

import numpy as np

from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts

NEAR_LIMIT_FRAC = 0.9
"""Above this share the number of blocks decides the result, so it should be a number that was measured."""


def kv_use(facts: RunFacts) -> dict[str, Any]:
    """Blocks and tokens of the whole cluster, and the peak of the replica that came nearest to its limit."""
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
    """The highest share of KV blocks held in pools whose number of blocks was estimated, not given; 0 if none."""
    peaks = zip(facts.replica_pool, facts.peak_kv_blocks, strict=True)
    estimated = [(facts.pools[pool], peak) for pool, peak in peaks if not facts.pools[pool].kv_verified]
    return max((peak / pool.n_blocks for pool, peak in estimated if pool.n_blocks), default=0.0)


def preemptions(requests: Columns, window: Window) -> dict[str, Any]:
    """Preemptions of the window's requests and what they had to compute again."""
    times = requests["n_preemptions"][window.has]
    n_requests = int(np.count_nonzero(times))
    return {
        "n": int(times.sum()),
        "requests": n_requests,
        "requests_frac": n_requests / len(times) if len(times) else None,
        "recomputed_tokens": int(requests["n_recomputed_tokens"][window.has].sum()),
    }
