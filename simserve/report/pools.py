"""Pools of a run: their GPUs, the names of their schedulers' arguments, and what they are in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.formats import listed, plural, rate


def has_changed(pool: Mapping[str, Any]) -> bool:
    """Return whether replicas of a pool joined or left during the window."""
    return pool.get("mean_gpus") not in (None, pool["n_replicas"] * pool["gpus_per_replica"])


def gpus_of(pool: Mapping[str, Any]) -> float:
    """Return the GPUs of a pool; if it changed, the mean over the window."""
    return float(pool["mean_gpus"]) if has_changed(pool) else int(pool["n_replicas"]) * int(pool["gpus_per_replica"])


def slots_argument(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return what the scheduler calls the most running requests."""
    return next((name for pool in pools if (name := pool.get("slots_argument"))), "max_num_seqs")


def budget_argument(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return what the scheduler calls the most tokens of a step, or of requests where it has no such limit."""
    return next((name for pool in pools if (name := pool.get("budget_argument"))), slots_argument(pools))


def pools_words(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return `2 replicas of llama-3.1-8b on 4 × h100-sxm each, with 2 schedulers (...).`, see `engine_words`."""
    return f"{listed(list(map(_pool, pools)))}."


def _pool(pool: Mapping[str, Any]) -> str:
    n_gpus, n_ranks = int(pool["gpus_per_replica"]), int(pool["ranks_per_replica"])
    gpus = f"{n_gpus} × {pool['gpu']}" if n_gpus > 1 else str(pool["gpu"])
    gpus += " each" if n_gpus > 1 and int(pool["n_replicas"]) > 1 else ""
    gpus += f", with {n_ranks} schedulers" if n_ranks > 1 else ""
    role = f"{pool['role']}: " if pool.get("role", "both") != "both" else ""
    replicas = plural(int(pool["n_replicas"]), "replica")
    replicas += f" at the start ({rate(gpus_of(pool))} GPUs on average)" if has_changed(pool) else ""
    return f"{role}{replicas} of {pool['model']} on {gpus} ({engine_words(pool)})"


def engine_words(pool: Mapping[str, Any]) -> str:
    """`vllm 0.19, chunked; costs of h100-sxm/vllm 0.24.0`; files of earlier versions lack some of it."""
    version = pool.get("engine_version") or "any"
    engine = str(pool["engine"]) if version == "any" else f"{pool['engine']} {version}"
    costs = f"; costs of {pool['calibration'] or 'the data sheet'}" if "calibration" in pool else ""
    return f"{engine}, {str(pool['scheduler']).lower()}{costs}"
