"""Fleet: a scenario with other numbers of replicas; its GPUs, price and power."""

from collections.abc import Mapping

from simserve.metrics.answers.parts import StudiedFleet
from simserve.scenario import Scenario


def with_replicas(scenario: Scenario, replicas: Mapping[int, int]) -> Scenario:
    """Return the scenario with other numbers of replicas, by the index of their pool."""
    data = scenario.to_dict()
    for place, n in replicas.items():
        data["cluster"]["pools"][place]["replicas"] = n
    return Scenario.from_dict(data)


def fleet_of(scenario: Scenario) -> StudiedFleet:
    """Return the GPUs, their price by the catalog, and their power by the data sheets."""
    pools = [(setup.n_replicas * setup.gpus_per_replica, setup.gpu) for setup in scenario.setups]
    return StudiedFleet(
        n_gpus=sum(n for n, _ in pools),
        usd_per_hour=sum(n * gpu.price_per_hour_usd for n, gpu in pools),
        kw=sum(n * gpu.tdp_w for n, gpu in pools) / 1000,
    )
