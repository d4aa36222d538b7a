"""Fleet: a scenario with other replicas or a scaled load, and whether its seeds differ; what its cluster costs."""

import dataclasses
import weakref
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import numpy as np

from simserve.errors import Problem, ScenarioError, SimserveError
from simserve.metrics.answers.parts import StudiedFleet
from simserve.metrics.lifetimes import Lifetimes
from simserve.scenario import Scenario
from simserve.workload.load import offered_load
from simserve.workload.size import check_size, expected_requests


def with_replicas(scenario: Scenario, replicas: Mapping[int, int]) -> Scenario:
    """Return the scenario with other numbers of replicas, by the index of their pool. Raises ScenarioError."""
    check_fixed(scenario, replicas)
    data = scenario.to_dict()
    for place, n in replicas.items():
        data["cluster"]["pools"][place]["replicas"] = n
    return Scenario.from_dict(data)


def check_fixed(scenario: Scenario, pools: Iterable[int]) -> None:
    """Check that none of these pools has an autoscaler, which decides how many replicas there are. Raises
    ScenarioError."""
    for place in pools:
        if scenario.setups[place].autoscaler is not None:
            key, also = f"cluster.pools.{place}.autoscaler", ", or use simserve autoscale"
            if scenario.cluster.pools[place].autoscaler is None:
                key, also = "cluster.autoscaler", ""
            rule = "changes the number of replicas, which this command looks for"
            raise ScenarioError([Problem(key, rule, None, f"add --set {key}=null{also}")])


def of_any_size(scenario: Scenario) -> str:
    """Return a digest of the scenario but for the replicas of its first pool."""
    first, *others = scenario.cluster.pools
    pools = (first.model_copy(update={"replicas": 1}), *others)
    cluster = scenario.cluster.model_copy(update={"pools": pools})
    return scenario.model_copy(update={"cluster": cluster}).digest


def gains_by_replicas(scenario: Scenario) -> bool:
    """Return whether more replicas never make an SLO worse: of one pool that waits for no batch, and requests that
    nothing ties to a replica, such as a prefix that is cached there or the session's last turn."""
    setup, *others = scenario.setups
    try:
        load = offered_load(scenario.workload, scenario.seed, scenario.base_dir)
    except SimserveError:  # a run says it
        return False
    return not (
        others
        or setup.scheduler.runs_to_completion
        or load.trace.prefixes is not None
        or load.trace.dependencies is not None
    )


def mean_fleet(lives: Lifetimes) -> StudiedFleet:
    """Return the GPUs of a fleet that changed, on average over its run, with their price and power."""
    pools = lives.facts.pools
    gpus = lives.gpus_by_pool((0.0, lives.facts.end_s)).tolist()
    return StudiedFleet(
        n_gpus=max(1, round(sum(gpus))),
        usd_per_hour=sum(n * pool.price_per_gpu_hour_usd for n, pool in zip(gpus, pools, strict=True)),
        kw=sum(n * pool.tdp_w for n, pool in zip(gpus, pools, strict=True)) / 1000,
    )


def fleet_of(scenario: Scenario) -> StudiedFleet:
    """Return the GPUs, their price by the catalog, and their power by the data sheets."""
    pools = [(setup.n_replicas * setup.gpus_per_replica, setup.gpu) for setup in scenario.setups]
    return StudiedFleet(
        n_gpus=sum(n for n, _ in pools),
        usd_per_hour=sum(n * gpu.price_per_hour_usd for n, gpu in pools),
        kw=sum(n * gpu.tdp_w for n, gpu in pools) / 1000,
    )


RATES = ("rate_per_s", "rates_per_s")
"""Rate arguments of arrival processes; lengths, dwells and periods stay."""


def at_scale(scenario: Scenario, scale: float) -> Scenario:
    """Return the scenario with all its rates times scale. Raises ScenarioError where its load has no rate, and
    TooManyArrivals where a run may not have so many requests.

    A load that ends with its last request ends sooner at a higher rate. Its warm-up shrinks alike, so that every scale
    measures the same requests.
    """
    workload = scenario.workload
    if workload.trace is not None and workload.is_replayed:
        trace = workload.trace.model_copy(update={"rate_scale": workload.trace.rate_scale * scale})
        update: dict[str, Any] = {"trace": trace}
    elif workload.arrivals is not None and any(name in workload.arrivals for name in RATES):
        arrivals = {key: _scaled(value, scale) if key in RATES else value for key, value in workload.arrivals.items()}
        update = {"arrivals": arrivals}
        if scale > 1:
            of = f"{scenario.name}: workload.arrivals at {scale:.3g} times its rate"
            check_size(expected_requests(workload.model_copy(update=update)), of)
    else:
        rule = "needs a rate to search over: arrivals with rate_per_s or rates_per_s, or a trace"
        instead = "--replicas" if workload.client is None else "--concurrency or --replicas"
        raise ScenarioError([Problem(f"{scenario.name}: workload", rule, None, f"search over {instead} instead")])
    whole: dict[str, Any] = {"workload": workload.model_copy(update=update)}
    warmup_s = scenario.measure.warmup_s
    if isinstance(warmup_s, float) and workload.duration_s is None:
        whole["measure"] = scenario.measure.model_copy(update={"warmup_s": warmup_s / scale})
    return scenario.model_copy(update=whole)


def _scaled(value: Any, scale: float) -> Any:
    return [each * scale for each in value] if isinstance(value, list) else value * scale


NOTE = "nothing is drawn, so every seed gives the same run: one run of each load, and no interval over seeds"

HEAD = 64
"""Requests that are compared first."""


def is_deterministic(scenario: Scenario) -> bool:
    """Return whether nothing of a run is drawn: no acceptance, no backoff, no replica, and two seeds offer one load.
    Reads or draws that load twice. Raises TraceError, PolicyError as `simulate` does."""
    if _server_draws(scenario):
        return False
    head = _head(scenario)
    return (head is None or _is_same_load(head)) and _is_same_load(scenario)


def check_not_deterministic(scenario: Scenario, option: str, value: object) -> None:
    """Raise SimserveError where seeds are requested and all give the same run."""
    if is_deterministic(scenario):
        rule = "needs runs that differ from seed to seed"
        remedy = "leave it out, or draw something: arrivals, lengths, or spread: uniform of a trace with coarse stamps"
        raise SimserveError(f"{option}: {rule}, got {value} of {scenario.name}, of which nothing is drawn; {remedy}")


def _server_draws(scenario: Scenario) -> bool:
    """Return whether a server or a client draws, whatever the load."""
    retries = scenario.workload.retries
    if retries is not None and retries.jitter > 0:
        return True
    guesses = [setup.speculation.rates for setup in scenario.setups if setup.speculation is not None]
    if any(0 < rate < 1 for rates in guesses for rate in rates):
        return True
    routers = (scenario.build_router(), scenario.build_decode_router())
    return any(_may_draw(router) for router in routers if router is not None)


def _may_draw(router: Any) -> bool:
    """Return whether a router draws from its stream, or keeps it to do so."""
    stream = Random(0)
    before, kept = stream.getstate(), weakref.ref(stream)
    router.begin(stream)
    has_drawn = stream.getstate() != before
    del stream
    return has_drawn or kept() is not None


def _head(scenario: Scenario) -> Scenario | None:
    """Return the scenario with its first requests only; None for a load that is read whole."""
    workload = scenario.workload
    if workload.trace is not None or workload.client is not None:
        return None
    few = workload.model_copy(update={"n_requests": HEAD, "duration_s": None})
    return scenario.model_copy(update={"workload": few})


def _is_same_load(scenario: Scenario) -> bool:
    loads = (offered_load(scenario.workload, scenario.seed + i, scenario.base_dir) for i in range(2))
    return _is_same(*(dataclasses.replace(load, draw_more=None, drawn=None) for load in loads))


def _is_same(one: Any, other: Any) -> bool:
    """Compare value by value; NaN equals NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        names = [field.name for field in dataclasses.fields(one)]
        return all(_is_same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)
