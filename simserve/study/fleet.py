"""Fleet: GPUs, price and power of a scenario."""

from simserve.scenario import Scenario


def fleet_of(scenario: Scenario) -> dict[str, float]:
    """Return the GPUs, their price by the catalog, and their power by the data sheets."""
    pools = [(setup.n_replicas * setup.gpus_per_replica, setup.gpu) for setup in scenario.setups]
    return {
        "n_gpus": sum(n for n, _ in pools),
        "usd_per_hour": sum(n * gpu.price_per_hour_usd for n, gpu in pools),
        "kw": sum(n * gpu.tdp_w for n, gpu in pools) / 1000,
    }
