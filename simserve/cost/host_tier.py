"""HostTierSpec: the KV blocks in host memory of a replica or a pool, and the time to copy one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HostTierSpec:
    """Size and speed of a host tier. Sizes are in blocks of a replica, or of the store that replicas share."""

    n_blocks: int
    """Blocks in host memory."""
    block_s: float
    """Time per block over the link between GPU and host; both directions share it, one copy at a time."""
    swaps: bool = False
    """Whether preempted decoding requests are swapped there."""
    offloads: bool = False
    """Whether prefixes are kept there."""
    disk_blocks: int = 0
    disk_block_s: float = 0.0
    """Time per block to or from the disk, one at a time."""
    overlaps: bool = False
    """Whether a prefix is read while others go on, rather than before the step that needs it."""
    store: str | None = None
    """Name of the memory and disk that replicas share; None: each has its own."""
