"""Collectives: latency and bandwidth terms by the number of GPUs."""

from typing import Any

from simserve.catalog.specs import GpuSpec


def all_reduce_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Seconds to sum n_bytes (a scalar or an array) over n_gpus: a latency, and 2 (G - 1) / G of the bytes each way.

    The bandwidth term is that of a ring and of any other bandwidth-optimal algorithm without in-network reduction
    (Thakur, Rabenseifner and Gropp 2005).
    """
    if n_gpus == 1:
        return 0.0 * n_bytes
    return gpu.link_latency_s + 2 * (n_gpus - 1) / n_gpus * n_bytes / gpu.link_bytes_per_s
