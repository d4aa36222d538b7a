"""KV: blocks in total, peak use, and the cost of preemption."""

from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.window import Window
from simserve.tables.columns import Columns
from simserve.tables.facts import RunFacts

if TYPE_CHECKING:
    from simserve.metrics.summary_schema import KvUseJson, PreemptionsJson

NEAR_LIMIT_FRAC = 0.9
"""Peak share of KV blocks above which their number decides the result, so it should be a measured one."""


def kv_use(facts: RunFacts) -> "KvUseJson":
    """Return blocks and tokens of the whole cluster, a mean over the run, and the peak of the replica closest to its
    limit."""
    totals = [facts.pools[pool].n_blocks for pool in facts.replica_pool]
    lived = Lifetimes(facts).lived_frac((0.0, facts.end_s)).tolist()
    pairs = [
        (total * frac, facts.pools[pool]) for total, frac, pool in zip(totals, lived, facts.replica_pool, strict=True)
    ]
    fracs = [peak / total for peak, total in zip(facts.peak_kv_blocks, totals, strict=True) if total]
    return {
        "blocks": round(sum(n_blocks for n_blocks, _ in pairs)),
        "tokens": round(sum(n_blocks / pool.blocks_per_tokens * pool.block_size for n_blocks, pool in pairs)),
        "peak_blocks": max(facts.peak_kv_blocks, default=0),
        "peak_frac": max(fracs, default=None),
    }


def unverified_peak_frac(facts: RunFacts) -> float:
    """Return the peak share of KV blocks in pools with an estimated number of blocks; 0 without such pools."""
    peaks = zip(facts.replica_pool, facts.peak_kv_blocks, strict=True)
    estimated = [(facts.pools[pool], peak) for pool, peak in peaks if not facts.pools[pool].kv_verified]
    return max((peak / pool.n_blocks for pool, peak in estimated if pool.n_blocks), default=0.0)


def preemptions(requests: Columns, window: Window) -> "PreemptionsJson":
    """Return the preemptions of the window's requests and the tokens they recomputed."""
    times = requests["n_preemptions"][window.has]
    n_requests = int(np.count_nonzero(times))
    return {
        "n": int(times.sum()),
        "requests": n_requests,
        "requests_frac": n_requests / len(times) if len(times) else None,
        "recomputed_tokens": int(requests["n_recomputed_tokens"][window.has].sum()),
    }
