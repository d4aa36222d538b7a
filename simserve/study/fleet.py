"""Fleet: a scenario with other numbers of replicas; its GPUs, price and power."""

from collections.abc import Iterable, Mapping

from simserve.errors import Problem, ScenarioError, SimserveError
from simserve.metrics.answers.parts import StudiedFleet
from simserve.metrics.lifetimes import Lifetimes
from simserve.scenario import Scenario
from simserve.workload.load import offered_load


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
