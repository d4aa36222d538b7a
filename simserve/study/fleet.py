"""Fleet: GPUs, price and power of a scenario."""

from simserve.scenario import Scenario


def fleet_of(scenario: Scenario) -> dict[str, float]:
    """Return the GPUs, their price by the catalog, and their power by the data sheets."""
    result = [(setup.n_replicas * setup.gpus_per_replica, setup.gpu) for setup in scenario.setups]
    return {
        "n_gpus": sum(n for n, _ in result),
        "usd_per_hour": sum(n * gpu.price_per_hour_usd for n, gpu in result),
        "kw": sum(n * gpu.tdp_w for n, gpu in result) / 1000,
    }
