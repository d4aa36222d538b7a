"""What lies between replicas: the link that carries KV blocks, and how old a router's view of replicas is."""

from typing import Annotated, Literal

from pydantic import Field

from simserve.catalog.types import Section


class KvLink(Section):
    """The link that carries KV blocks from prefill to decode replicas, and from those that leave to others."""

    bytes_per_s: Annotated[float, Field(ge=1e8)]
    """[bytes/s] Bandwidth of each replica's port, in and out; at least that of 1 Gb/s Ethernet."""
    latency_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    """[s] Latency of a transfer, added once."""
    shared: bool = False
    """Whether all replicas share one port."""
    how: Literal["pull", "push"] = "pull"
    """`pull`: the decode side fetches finished KV blocks (vLLM's NixlConnector); `push`: it allocates blocks first and
    receives them (SGLang, Mooncake)."""
    transfer: Literal["whole", "by_chunk", "by_layer"] = "whole"
    """Unit of a transfer: the `whole` prompt, or `by_chunk` or `by_layer`, which overlap with prefill and need `how:
    push`."""


class Views(Section):
    """What routers see of replicas, where it is not the current state."""

    refresh_s: Annotated[float, Field(ge=1e-6, le=3600)]
    """[s] Refresh interval: routers see the state at its last multiple; inference gateways refresh every 0.05 s."""
    counts_own_sends: bool = False
    """Whether a router adds the requests that it has sent since the last refresh."""
