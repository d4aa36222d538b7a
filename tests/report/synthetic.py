"""Results made by hand for the report: the contract's columns and a summary that follows from them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.metrics.reduction import Contents
from simserve.metrics.results import Results
from simserve.tables.facts import PoolFacts, RunFacts, WorkFacts
from tests.summaries import summary_of

LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
SLO = {"ttft_s": 0.5, "tpot_s": 0.05}


def synthetic(
    n_requests: int = 4000,
    *,
    slo: Mapping[str, float] | None = None,
    seed: int = 0,
    n_replicas: int = 2,
    pools: tuple[str, ...] = ("serve",),
    share_answered: float = 1.0,
    duration_s: float = 900.0,
    prompt_tokens: int | None = None,
    **summary: Any,
) -> Results:
    """A bursty run; `summary` overrides keys of the summary, `share_answered` cuts the last requests off."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(_bursty(rng, n_requests, duration_s))
    is_burst = np.sin(arrival_s / duration_s * 40) > 0.8
    prompt = np.clip(rng.lognormal(6.2, 0.9, n_requests), 4, 8192).round()
    prompt = np.full(n_requests, prompt_tokens, float) if prompt_tokens else prompt
    queue_s = rng.exponential(np.where(is_burst, 0.4, 0.02))
    ttft_s = queue_s + 0.015 + 2.5e-5 * prompt
    output = 1 + rng.poisson(200, n_requests)
    tpot_s = np.where(output > 1, 0.012 + rng.gamma(3, 0.003, n_requests) * (1 + is_burst), np.nan)
    answered = np.arange(n_requests) < round(share_answered * n_requests)
    for column in (ttft_s, tpot_s, queue_s):
        column[~answered] = np.nan
    e2e_s = ttft_s + np.nan_to_num(tpot_s) * (output - 1)
    goals = SLO if slo is None else slo
    columns = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2e_s": e2e_s, "queue_s": queue_s, "itl_s": tpot_s}
    met = np.logical_and.reduce([answered, *(np.nan_to_num(columns[key], nan=0) <= goals[key] for key in goals)])
    requests = columns | {
        "arrival_s": arrival_s,
        "finish_s": arrival_s + e2e_s,
        "prompt_tokens": prompt.astype(np.int64),
        "output_tokens": output,
        "replica": np.where(answered, np.arange(n_requests) % (n_replicas * len(pools)), -1).astype(np.int32),
        "prefill_replica": np.full(n_requests, -1, np.int32),
        "n_preemptions": (rng.random(n_requests) < 0.002).astype(np.int32),
        "in_window": arrival_s >= 0.05 * duration_s,
        "slo_met": met,
    }
    series = _series(rng, duration_s, arrival_s, n_replicas * len(pools))
    facts = _facts(goals, pools, n_replicas, duration_s)
    text = _summary(requests, facts) | summary
    contents = Contents({"requests": requests, "timeseries": series}, summary_of(text), {})
    return Results(facts, "schema: simserve/1\nname: synthetic\n", contents)


def _bursty(rng: np.random.Generator, n: int, duration_s: float) -> np.ndarray[Any, Any]:
    """Arrivals whose rate swings fourfold."""
    clock = np.linspace(0, duration_s, 2001)
    rate = np.where(np.sin(clock / duration_s * 40) > 0.8, 4.0, 1.0)
    return np.interp(rng.random(n), np.cumsum(rate) / rate.sum(), clock)


def _series(
    rng: np.random.Generator, duration_s: float, arrival_s: np.ndarray[Any, Any], n_replicas: int
) -> dict[str, np.ndarray[Any, Any]]:
    n_intervals = max(int(duration_s), 1)
    load = np.bincount(np.minimum(arrival_s, duration_s - 1e-6).astype(int), minlength=n_intervals) / n_replicas
    smooth = np.convolve(load, np.exp(-np.arange(20) / 5), "full")[:n_intervals]
    grid = smooth[None, :] * rng.uniform(0.8, 1.2, (n_replicas, n_intervals))
    start_s = np.tile(np.arange(n_intervals, dtype=float), n_replicas)
    flat = grid.ravel()
    return {
        "replica": np.repeat(np.arange(n_replicas), n_intervals),
        "start_s": start_s,
        "end_s": start_s + 1.0,
        "queue_len": np.maximum(flat - np.median(flat), 0.0),
        "running": flat,
        "kv_frac": np.minimum(flat / (flat.max() or 1.0) * 0.7, 1.0),
        "prefill_tokens_per_s": flat * 130,
        "output_tokens_per_s": flat * 55,
        "busy_frac": np.minimum(flat / (np.median(flat) or 1.0) * 0.5, 1.0),
    }


def _facts(goals: Mapping[str, float], pools: tuple[str, ...], n_replicas: int, duration_s: float) -> RunFacts:
    n = n_replicas * len(pools)
    return RunFacts(
        name="synthetic",
        seed=0,
        digest="0123abcd",
        pools=tuple(_pool(name, n_replicas) for name in pools),
        replica_pool=tuple(i // n_replicas for i in range(n)),
        peak_kv_blocks=(700,) * n,
        slo=dict(goals),
        measure={"warmup_s": 0.05 * duration_s},
        last_arrival_s=duration_s,
        end_s=duration_s,
        wall_s=0.31,
    )


def _summary(requests: Mapping[str, np.ndarray[Any, Any]], facts: RunFacts) -> dict[str, Any]:
    duration_s, goals = facts.end_s, facts.slo
    inside = requests["in_window"]
    n_arrived = int(inside.sum())
    n_finished = int((~np.isnan(requests["e2e_s"][inside])).sum())
    frac = float(requests["slo_met"][inside].mean()) if n_arrived else None
    start_s = 0.05 * duration_s
    per_s = 1 / (duration_s - start_s)
    latencies = {key: _percentiles(requests[key][inside]) for key in ("ttft_s", "tpot_s", "e2e_s", "queue_s")}
    return latencies | {
        "name": "synthetic",
        "itl_s": latencies["tpot_s"],
        "seed": 0,
        "digest": "0123abcd",
        "version": "0.1.0",
        "window": {"start_s": start_s, "end_s": duration_s, "duration_s": duration_s - start_s},
        "requests": {
            "arrived": n_arrived,
            "finished": n_finished,
            "rejected": n_arrived - n_finished,
            "timed_out": 0,
            "unfinished": 0,
        },
        "slo": dict(goals),
        "slo_attainment": _attained(requests, goals, frac) if n_arrived >= 64 else {"frac": frac},
        "goodput": {"per_s": (frac or 0) * n_arrived * per_s, "per_gpu_s": (frac or 0) * n_arrived * per_s / 2},
        "offered_per_s": n_arrived * per_s,
        "served_per_s": n_finished * per_s,
        "requests_per_s": n_finished * per_s,
        "input_tokens_per_s": 3120.4,
        "output_tokens_per_s": 880.0,
        "trust": {"saturated": False},
        "pools": [{name: value for name, value in vars(pool).items() if name != "work"} for pool in facts.pools],
        "preemptions": {"n": 7, "requests_frac": 0.001, "recomputed_tokens": 8123},
        "kv": {"peak_frac": 0.7, "tokens": 32_000},
        "busy_frac": 0.55,
        "mfu": 0.21,
        "mbu": 0.48,
        "gpu_seconds": 1800.0,
        "simulated_s": 912.2,
        "wall_s": 0.31,
        "warnings": [],
    }


def _percentiles(values: np.ndarray[Any, Any]) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    return {name: float(np.quantile(known, level)) if len(known) else None for name, level in LEVELS.items()}


def _attained(
    requests: Mapping[str, np.ndarray[Any, Any]], goals: Mapping[str, float], frac: float | None
) -> dict[str, Any] | None:
    if frac is None or not goals:
        return None
    inside = requests["in_window"]
    by_slo = {key: float((requests[key][inside] <= goal).mean()) for key, goal in goals.items()}
    return {"frac": frac, "low_frac": max(frac - 0.004, 0.0), "high_frac": min(frac + 0.004, 1.0), "by_slo": by_slo}


def _pool(name: str, n_replicas: int) -> PoolFacts:
    return PoolFacts(
        name=name,
        role="both",
        n_replicas=n_replicas,
        gpus_per_replica=1,
        ranks_per_replica=1,
        gpu="h100-sxm",
        model="llama-3.1-8b",
        engine="vllm",
        scheduler="Chunked",
        slots_argument="max_num_seqs",
        budget_argument="max_num_batched_tokens",
        calibration=None,
        calibrated=False,
        kv_verified=False,
        n_blocks=1000,
        block_size=16,
        streamed=True,
        price_per_gpu_hour_usd=3.0,
        tdp_w=700,
        work=WorkFacts(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    )
