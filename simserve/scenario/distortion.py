"""Distortion: a pool with perturbed costs, to measure what cost-model error does to an answer."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.scenario.setup import PoolSetup

HOST = ("step_host_s", "request_host_s", "exposed_step_s", "eager_kernel_s", "gap_s")
FRONT_END = ("receive_s", "receive_token_s", "respond_s")


@dataclass(frozen=True)
class Distortion:
    """Factors on times and on the number of KV blocks; 1 is the prediction."""

    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    host: float = 1.0
    front_end: float = 1.0
    kv_blocks: float = 1.0


def distorted(setup: "PoolSetup", by: Distortion) -> "PoolSetup":
    """Return the pool with GPU, engine and memory perturbed; a block count that the user gave stays."""
    gpu = replace(
        setup.gpu,
        flop_per_s={dtype: flop_per_s / by.compute for dtype, flop_per_s in setup.gpu.flop_per_s.items()},
        hbm_bytes_per_s=setup.gpu.hbm_bytes_per_s / by.memory,
        link_bytes_per_s=setup.gpu.link_bytes_per_s / by.link,
        nic_bytes_per_s=setup.gpu.nic_bytes_per_s / by.link,
        link_latency_s=setup.gpu.link_latency_s * by.link,
    )
    node_link = replace(setup.node_link, bytes_per_s=setup.node_link.bytes_per_s / by.link)
    factors = dict.fromkeys(HOST, by.host) | dict.fromkeys(FRONT_END, by.front_end)
    given = {name: each for name in factors if (each := getattr(setup.engine, name)) is not None}
    engine = replace(setup.engine, **{name: each * factors[name] for name, each in given.items()})
    ledger = setup.ledger
    if not ledger.verified:
        least = ledger.n_lanes * ledger.layout.blocks.most(setup.max_model_len)
        ledger = replace(ledger, n_blocks=max(least, round(ledger.n_blocks * by.kv_blocks)))
    tier = setup.host_tier and replace(setup.host_tier, block_s=setup.host_tier.block_s * by.link)
    return replace(setup, gpu=gpu, node_link=node_link, engine=engine, ledger=ledger, host_tier=tier)
