"""Summary: the contents of summary.json, documented in docs/outputs.md."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from simserve.metrics.answer import run_answer
from simserve.metrics.classes import FATES, class_cautions
from simserve.metrics.drawn_load import ArrivalRates, drawn_load, load_warning
from simserve.metrics.goal import GOAL_FRAC
from simserve.metrics.goodput import attainment, good_tokens, goodput
from simserve.metrics.kv import kv_use, preemptions, reservation
from simserve.metrics.lifetimes import Lifetimes
from simserve.metrics.mechanisms import Measured, mechanisms
from simserve.metrics.reasons import reasons
from simserve.metrics.reliability import cautions, reliability
from simserve.metrics.reservation import reservation_warnings
from simserve.metrics.slowest import time_split
from simserve.metrics.stats import Distribution, level_name
from simserve.metrics.steadiness import steadiness
from simserve.metrics.throughput import throughput
from simserve.metrics.utilization import Shares
from simserve.tables.facts import PoolFacts
from simserve.tables.pieces import release
from simserve.tables.schema import SCHEMA
from simserve.version import __version__


def summary(
    run: Measured, latencies: Mapping[str, Distribution], arrivals: ArrivalRates | None = None
) -> dict[str, Any]:
    """Collect all numbers that are reported of a run; NaN where a number could not be measured."""
    requests, facts, window = run.requests, run.facts, run.window
    fates = {fate: int(np.count_nonzero(requests["status"].is_(fate) & window.has)) for fate in FATES}
    release(requests)
    attained = attainment(requests, window, run.met)
    release(requests)
    lives = Lifetimes(facts)
    there_frac = lives.lived_frac((window.start_s, window.end_s))
    queue = steadiness(requests, run.steps, window, facts.replica_pool, there_frac)
    release(requests)
    result = reliability(facts, window, queue, fates["finished"])
    text = mechanisms(run)
    rates = throughput(requests, window)
    release(requests)
    load = drawn_load(window, arrivals, rates["offered_per_s"])
    kv = kv_use(facts) | {"reservation": reservation(run.requests, run.steps, facts, window)}
    release(requests)
    warnings = (
        facts.warnings,
        reservation_warnings([{"kv": kv}]),
        load_warning(load),
        cautions(result, facts, window, fates["finished"]),
        class_cautions(text["classes"]),
    )
    of_good = attained and goodput(attained["n_met"], window, facts) | good_tokens(requests, window, run.met)
    release(requests)
    numbers = {
        "schema": SCHEMA,
        "version": __version__,
        "name": facts.name,
        "seed": facts.seed,
        "digest": facts.digest,
        "simulated_s": facts.end_s,
        "wall_s": facts.wall_s,
        "window": {
            "start_s": window.start_s,
            "end_s": window.end_s,
            "duration_s": window.duration_s,
            "ends_with": window.ends_with,
            "settled": window.settled,
        },
        "requests": {"offered": len(requests["arrival_s"]), "arrived": window.n_requests, **fates}
        | {"reasons": reasons(requests, window)},
        "slo": dict(facts.slo),
        "slo_classes": facts.slo_classes,
        **{name: _latency(found_in) for name, found_in in latencies.items()},
        **rates,
        "load": load,
        "slo_attainment": attained,
        "goodput": of_good,
        "time_split": time_split(requests, window, facts),
        "preemptions": preemptions(requests, window),
        **text,
        "kv": kv,
        "gpu_seconds": lives.gpu_seconds(),
        "fleet": {
            "starting_gpu_s": lives.gpu_seconds(until="ready_s"),
            "serving_gpu_s": lives.gpu_seconds("ready_s", "draining_s"),
            "draining_gpu_s": lives.gpu_seconds("draining_s"),
        },
        **vars(run.use.whole),
        "pools": [
            _pool(*each) for each in zip(facts.pools, run.use.by_pool, lives.gpus_by_pool(window.span_s), strict=True)
        ],
        "trust": result,
        "notes": list(facts.notes),
        "warnings": list(chain(*warnings)),
    }
    return numbers | {"answer": run_answer(numbers, GOAL_FRAC)}


def _latency(result: Distribution) -> dict[str, Any]:
    percentiles = {level_name(level): value for level, value in result.percentiles.items()}
    numbers = {"n": result.n, "mean": result.mean, "std": result.std, **percentiles, "max": result.highest}
    return numbers | {"intervals": dict(result.intervals)}


def _pool(pool: PoolFacts, use: Shares, mean_gpus: float) -> dict[str, Any]:
    left_out = {"work", "speculation", "reserving"}
    how = pool.speculation and {name: value for name, value in vars(pool.speculation).items() if name != "draft"}
    facts = {name: value for name, value in vars(pool).items() if name not in left_out}
    return facts | {"speculation": how, "mean_gpus": mean_gpus} | vars(use)
