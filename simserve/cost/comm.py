"""Communication between GPUs by the data sheets: latency and bandwidth terms by the number of GPUs."""

from typing import Any

from simserve.catalog.specs import GpuSpec

NIC_LATENCY_S = 10e-6
"""A small message to another node: RDMA takes 2 to 3 µs, the library call the rest."""


def all_reduce_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Return the seconds to sum n_bytes (a scalar or an array) over n_gpus: a latency, and 2 (G - 1) / G of the bytes.

    The bandwidth term is that of a ring and of any bandwidth-optimal algorithm without in-network reduction
    (Thakur, Rabenseifner and Gropp 2005).
    """
    if n_gpus == 1:
        return 0.0 * n_bytes
    return gpu.link_latency_s + 2 * (n_gpus - 1) / n_gpus * n_bytes / gpu.link_bytes_per_s


def pass_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Return the seconds of an all-gather or reduce-scatter of n_bytes: half an all-reduce, (G - 1) / G of them."""
    if n_gpus == 1:
        return 0.0 * n_bytes
    return gpu.link_latency_s + (n_gpus - 1) / n_gpus * n_bytes / gpu.link_bytes_per_s


def send_s(gpu: GpuSpec, n_bytes: Any, *, to_other_node: bool) -> Any:
    """Return the seconds to send n_bytes to one other GPU."""
    if to_other_node:
        return NIC_LATENCY_S + n_bytes / gpu.nic_bytes_per_s
    return gpu.link_latency_s + n_bytes / gpu.link_bytes_per_s
