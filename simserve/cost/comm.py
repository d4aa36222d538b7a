"""Communication between GPUs by the data sheets: latency and bandwidth terms by the number of GPUs."""

from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from simserve.catalog.specs import GpuSpec

NIC_LATENCY_S = 10e-6
"""A small message to another node: RDMA takes 2 to 3 µs, the library call the rest."""

FLAGGED_S = 29e-6
"""A small all-reduce over nodes besides its messages between them: the launch, and the way through the GPUs of a node.
With two of these it is 39 µs, the median of nine published nccl-tests of two nodes (docs/validation.md)."""

FLAGGED_HOP_S = 5e-6
"""A message of it to another node, with a flag beside every word (NCCL, graph/tuning.cc, LL: 5 µs over a network)."""

FLAGGED_BYTES_PER_S = 12e9
"""Bytes that it reduces per second (the same tests; NCCL, graph/tuning.cc: 11 or 20 GB/s, by the processor)."""

CHUNKED_S = 36e-6
"""A large all-reduce over nodes besides its bytes and messages (the same tests)."""

CHUNKED_HOP_S = 28e-6
"""A chunk of it to another node (NCCL, graph/tuning.cc, Simple: 28 µs over a network)."""

RING_S = 35e-6
"""A small all-gather or reduce-scatter over two nodes of eight GPUs, by a ring of all GPUs (median of six published
nccl-tests, docs/validation.md)."""

RING_BYTES_PER_S = 40e9
"""Bytes that it gathers per second (the same tests)."""

CHUNKED_RING_S = 84e-6
"""A large one besides its bytes (the same tests)."""

RING_HOPS = 15
"""Hops of these rings."""


@dataclass(frozen=True)
class NodeLink:
    """A GPU's link to GPUs of other nodes, one direction."""

    bytes_per_s: float
    latency_s: float = NIC_LATENCY_S


def all_reduce_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Return the seconds to sum n_bytes (a scalar or an array) over n_gpus: a latency, and 2 (G - 1) / G of the bytes.

    The bandwidth term is that of a ring and of any bandwidth-optimal algorithm without in-network reduction
    (Thakur, Rabenseifner and Gropp 2005).
    """
    if n_gpus == 1:
        return 0.0 * n_bytes
    once_s = gpu.link_latency_s + 2 * (n_gpus - 1) / n_gpus * n_bytes / gpu.group_bytes_per_s(n_gpus)
    return gpu.n_crossings * once_s


def pass_s(gpu: GpuSpec, n_gpus: int, n_bytes: Any) -> Any:
    """Return the seconds of an all-gather or reduce-scatter of n_bytes: half an all-reduce, (G - 1) / G of them."""
    if n_gpus == 1:
        return 0.0 * n_bytes
    return gpu.n_crossings * (gpu.link_latency_s + (n_gpus - 1) / n_gpus * n_bytes / gpu.group_bytes_per_s(n_gpus))


def all_reduce_over_nodes_s(gpu: GpuSpec, link: NodeLink, n_nodes: int, n_bytes: Any) -> Any:
    """Return the seconds to sum n_bytes (a scalar or an array) over all GPUs of n_nodes, as NCCL does: up and down a
    tree of nodes, small messages with flags beside their words, large ones in chunks, whichever is faster.

    The constants hold for network adapters with RDMA; a link with a higher latency than theirs adds the rest.
    """
    n_near, n_hops = gpu.gpus_per_node, 2 * log2(n_nodes)
    near_s = all_reduce_s(gpu, n_near, n_bytes) - all_reduce_s(gpu, n_near, 0)
    bytes_s = near_s + 2 * (n_nodes - 1) / n_nodes * (n_bytes / n_near) / link.bytes_per_s
    late_s = n_hops * max(0.0, link.latency_s - NIC_LATENCY_S)
    flagged_s = FLAGGED_S + n_hops * FLAGGED_HOP_S + np.maximum(n_bytes / FLAGGED_BYTES_PER_S, 2 * bytes_s)
    chunked_s = CHUNKED_S + n_hops * CHUNKED_HOP_S + bytes_s
    return late_s + np.minimum(flagged_s, chunked_s)


def gather_over_nodes_s(gpu: GpuSpec, link: NodeLink, n_nodes: int, n_bytes: Any) -> Any:
    """Return the seconds to gather n_bytes (a scalar or an array, of all GPUs together) on every GPU of n_nodes, or to
    sum and scatter them, as NCCL does: around a ring of all GPUs, small messages with flags, large ones in chunks."""
    n_near = gpu.gpus_per_node
    near_s = pass_s(gpu, n_near, n_bytes) - pass_s(gpu, n_near, 0)
    bytes_s = near_s + (n_nodes - 1) / n_nodes * (n_bytes / n_near) / link.bytes_per_s
    late_s = (n_nodes - 1) * max(0.0, link.latency_s - NIC_LATENCY_S)
    longer = (n_nodes * n_near - 1) / RING_HOPS
    flagged_s = RING_S * longer + np.maximum(n_bytes / RING_BYTES_PER_S, 2 * bytes_s)
    return late_s + np.minimum(flagged_s, CHUNKED_RING_S * longer + bytes_s)


def between_nodes_s(link: NodeLink, n_nodes: int, n_bytes: Any) -> Any:
    """Return the seconds of an all-gather or reduce-scatter over n_nodes where each GPU has n_bytes and works with the
    GPUs at its place of the other nodes; 0 for one node. Inside the nodes it comes on top."""
    if n_nodes == 1:
        return 0.0 * n_bytes
    return link.latency_s + (n_nodes - 1) / n_nodes * n_bytes / link.bytes_per_s


def send_s(gpu: GpuSpec, n_bytes: Any, link: NodeLink | None = None) -> Any:
    """Return the seconds to send n_bytes to one other GPU, of the same node or over a link to another one."""
    if link is not None:
        return link.latency_s + n_bytes / link.bytes_per_s
    return gpu.n_crossings * (gpu.link_latency_s + n_bytes / gpu.group_bytes_per_s(2))
