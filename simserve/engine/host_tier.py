"""HostTier: the host memory and the disk of a replica, and the copies between them and its GPUs."""

from dataclasses import dataclass

from simserve.cost.host_tier import HostTierSpec
from simserve.engine.link import Port
from simserve.state.host_memory import HostMemory
from simserve.state.prefix_cache import Chain
from simserve.units import to_ps


@dataclass
class HostCounts:
    """Blocks that have gone from one place to another, and what that took."""

    swapped_out: int = 0
    swapped_in: int = 0
    dropped: int = 0
    """Of requests that came back and found them on the GPU."""
    written: int = 0
    """Of prefixes, from GPU to host."""
    read: int = 0
    """Of prefixes, to the GPU from host and disk."""
    disk_written: int = 0
    disk_read: int = 0
    wait_ps: int = 0
    """How long steps waited for copies."""


class Channel:
    """One way to and fro: first what the next step waits for, then what goes beside it."""

    def __init__(self, block_s: float) -> None:
        self.awaited_blocks = 0
        self.beside_blocks = 0
        self._block_s = block_s
        self._port = Port()

    def copy(self, now_ps: int) -> int:
        """Begin what has been asked for, after all that was before; returns how long the next step waits for it."""
        wait_ps = 0
        if self.awaited_blocks:
            wait_ps = self._port.through_ps(to_ps(self.awaited_blocks * self._block_s), now_ps) - now_ps
            self.awaited_blocks = 0
        if self.beside_blocks:
            self._port.through_ps(to_ps(self.beside_blocks * self._block_s), now_ps)
            self.beside_blocks = 0
        return wait_ps


class HostTier:
    """What lies beside the GPUs of one replica.

    What a boundary between two steps asks for goes over the link after all that was asked for before, and likewise to
    or from the disk. The step that begins waits for who is swapped, in or out, and for prefixes that are read; prefixes
    that are to be kept go after these, and beside the step.
    """

    def __init__(self, spec: HostTierSpec, blocks_per_id: int = 1) -> None:
        self.memory = HostMemory(spec.n_blocks, blocks_per_id, spec.disk_blocks)
        self.counts = HostCounts()
        self._link, self._disk = Channel(spec.block_s), Channel(spec.disk_block_s)

    def swap_out(self, n_blocks: int) -> None:
        """The blocks of a request go to the host."""
        self._down(self.memory.swap_out(n_blocks))
        self.counts.swapped_out += n_blocks
        self._link.awaited_blocks += n_blocks

    def swap_in(self, n_blocks: int, n_found: int = 0) -> None:
        """The blocks of a request come back, but for those that it finds on the GPU."""
        self.memory.swap_in(n_blocks)
        self.counts.swapped_in += n_blocks - n_found
        self.counts.dropped += n_found
        self._link.awaited_blocks += n_blocks - n_found

    def read(self, n_blocks: int, n_from_disk: int) -> None:
        """Blocks of a prefix come to the GPU, some of them from the disk, through the host."""
        self.counts.read += n_blocks
        self.counts.disk_read += n_from_disk
        self._link.awaited_blocks += n_blocks
        self._disk.awaited_blocks += n_from_disk

    def keep(self, chain: Chain, n: int, n_from_disk: int = 0) -> None:
        """The first n ids of a chain are used, of which the last n_from_disk have just been read from the disk."""
        n_written, n_down = self.memory.keep(chain, n, n_from_disk)
        n_blocks = n_written * self.memory.blocks_per_id
        self.counts.written += n_blocks
        self._link.beside_blocks += n_blocks
        self._down(n_down)

    def _down(self, n_ids: int) -> None:
        """Ids that the host has given up go to the disk."""
        n_blocks = n_ids * self.memory.blocks_per_id
        self.counts.disk_written += n_blocks
        self._disk.beside_blocks += n_blocks

    def copy(self, now_ps: int) -> int:
        """Begin what has been asked for since the last time; returns how long the step that begins now must wait."""
        wait_ps = max(self._link.copy(now_ps), self._disk.copy(now_ps))
        self.counts.wait_ps += wait_ps
        return wait_ps
