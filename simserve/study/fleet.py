"""Fleet: what the machines of a scenario come to."""

from simserve.scenario import Scenario


def fleet_of(scenario: Scenario) -> dict[str, float]:
    """GPUs, their price by the catalog, and the power that their data sheets allow."""
    result = [(setup.n_replicas * setup.gpus_per_replica, setup.gpu) for setup in scenario.setups]
    return {
        "n_gpus": sum(n for n, _ in result),
        "usd_per_hour": sum(n * gpu.price_per_hour_usd for n, gpu in result),
        "kw": sum(n * gpu.tdp_w for n, gpu in result) / 1000,
    }
