"""HostTierSpec: how many KV blocks lie beside the GPUs of a replica, and how long one takes there or back."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HostTierSpec:
    """How much a replica keeps beside its GPUs, and how fast it gets there and back. Sizes are in blocks of its own."""

    n_blocks: int
    """In host memory."""
    block_s: float
    """A block over the link between GPU and host, which carries one thing after another, whichever way."""
    swaps: bool = False
    """Who is preempted while it decodes goes there."""
    offloads: bool = False
    """Prefixes are kept there."""
    disk_blocks: int = 0
    disk_block_s: float = 0.0
    """A block to the disk, or from it; one after another."""
