"""Pools in words, and the names of their schedulers' arguments."""

from collections.abc import Sequence

from simserve.metrics.answers.pools import PoolJson, StudiedPool
from simserve.report.formats import listed, plural, rate


def slots_argument(pools: Sequence[PoolJson]) -> str:
    """Return what the scheduler calls the most running requests."""
    return next((pool.slots_argument for pool in pools if pool.slots_argument), "max_num_seqs")


def budget_argument(pools: Sequence[PoolJson]) -> str:
    """Return what the scheduler calls the most tokens of a step, or of requests where it has no such limit."""
    return next((pool.budget_argument for pool in pools if pool.budget_argument), slots_argument(pools))


def pools_words(pools: Sequence[StudiedPool]) -> str:
    """Return `2 replicas of llama-3.1-8b on 4 × h100-sxm each, with 2 schedulers (...).`, see `engine_words`."""
    return f"{listed(list(map(_pool, pools)))}."


def _pool(pool: StudiedPool) -> str:
    n_gpus, n_ranks = pool.gpus_per_replica, pool.ranks_per_replica or 1
    gpus = f"{n_gpus} × {pool.gpu}" if n_gpus > 1 else pool.gpu
    gpus += " each" if n_gpus > 1 and pool.n_replicas > 1 else ""
    gpus += f", with {n_ranks} schedulers" if n_ranks > 1 else ""
    role = f"{pool.role}: " if pool.role not in (None, "both") else ""
    replicas = plural(pool.n_replicas, "replica")
    replicas += f" at the start ({rate(pool.n_gpus)} GPUs on average)" if pool.has_changed else ""
    return f"{role}{replicas} of {pool.model} on {gpus} ({engine_words(pool)})"


def engine_words(pool: StudiedPool) -> str:
    """`vllm 0.19, chunked; costs of h100-sxm/vllm 0.24.0`; files of earlier versions lack some of it."""
    version = pool.engine_version or "any"
    engine = str(pool.engine) if version == "any" else f"{pool.engine} {version}"
    costs = f"; costs of {pool.calibration or 'the data sheet'}" if "calibration" in pool.model_fields_set else ""
    return f"{engine}, {str(pool.scheduler).lower()}{costs}"
