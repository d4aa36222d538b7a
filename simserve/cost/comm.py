"""Data between GPUs as the data sheets have it: latency and bandwidth terms by the number of GPUs."""

from typing import Any

from simserve.catalog.specs import GpuSpec

NIC_LATENCY_S = 10e-6
"""A small message to another node: RDMA takes 2 to 3 µs, and the library that starts it the rest."""


def all_reduce_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Seconds to sum n_bytes (a scalar or an array) over n_gpus: a latency, and 2 (G - 1) / G of the bytes each way.

    The bandwidth term is that of a ring and of any other bandwidth-optimal algorithm without in-network reduction
    (Thakur, Rabenseifner and Gropp 2005).
    """
    if n_gpus == 1:
        return 0.0 * n_bytes
    return gpu.link_latency_s + 2 * (n_gpus - 1) / n_gpus * n_bytes / gpu.link_bytes_per_s


def pass_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Seconds of an all-gather or a reduce-scatter of n_bytes: half an all-reduce, (G - 1) / G of them."""
    if n_gpus == 1:
        return 0.0 * n_bytes
    return gpu.link_latency_s + (n_gpus - 1) / n_gpus * n_bytes / gpu.link_bytes_per_s


def send_s(gpu: GpuSpec, n_bytes: Any, *, to_other_node: bool) -> Any:
    """Seconds to hand n_bytes to one other GPU."""
    if to_other_node:
        return NIC_LATENCY_S + n_bytes / gpu.nic_bytes_per_s
    return gpu.link_latency_s + n_bytes / gpu.link_bytes_per_s
