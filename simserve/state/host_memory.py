"""HostMemory: what lies beside the GPUs of a replica: requests that are swapped out, copies of prefixes, a disk."""

from collections import OrderedDict

from simserve.state.prefix_cache import Chain


class HostMemory:
    """Host blocks of one replica, as large as its own.

    Blocks of requests that are swapped out stay until these come back. The rest holds copies of prefixes, by the ids of
    what they hold, and so does the disk, of ids that the host has given up: an id is on one of the two at most. Each
    gives up first what was used longest ago. Whoever uses an id uses all before it, and the last ones first (`keep`),
    so no id is here without those before it, and the ids of a chain that the host has come before those on disk.

    Invariant: swapped_blocks + blocks_per_id * ids on the host <= total_blocks; no id is on host and disk.
    """

    __slots__ = ("_disk", "_host", "_most_on_disk", "blocks_per_id", "swapped_blocks", "total_blocks")

    def __init__(self, total_blocks: int, blocks_per_id: int = 1, disk_blocks: int = 0) -> None:
        self.total_blocks = total_blocks
        self.blocks_per_id = blocks_per_id
        self.swapped_blocks = 0
        """Blocks of requests that are swapped out."""
        self._host: OrderedDict[int, None] = OrderedDict()
        self._disk: OrderedDict[int, None] = OrderedDict()
        self._most_on_disk = disk_blocks // blocks_per_id

    @property
    def n_host_ids(self) -> int:
        """Ids in host memory."""
        return len(self._host)

    @property
    def n_disk_ids(self) -> int:
        """Ids on disk."""
        return len(self._disk)

    def has_room(self, n_blocks: int) -> bool:
        """A request of so many blocks can be swapped out; prefixes make way."""
        return self.swapped_blocks + n_blocks <= self.total_blocks

    def swap_out(self, n_blocks: int) -> int:
        """Take the blocks of a request in. Returns how many ids went on to the disk to make room."""
        self.swapped_blocks += n_blocks
        return self._shrink()

    def swap_in(self, n_blocks: int) -> None:
        """The request takes its blocks back."""
        self.swapped_blocks -= n_blocks

    def match(self, chain: Chain, most: int) -> tuple[int, int]:
        """How many of the first `most` ids are in host memory, and how many there or on disk. O(log n)."""
        host, disk = self._host, self._disk
        low, high = 0, min(most, len(chain))
        while low < high:  # fast: as in PrefixCache.match
            middle = (low + high) // 2
            if chain[middle] in host:
                low = middle + 1
            else:
                high = middle
        n_host, high = low, min(most, len(chain))
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in disk:
                low = middle + 1
            else:
                high = middle
        return n_host, low

    def keep(self, chain: Chain, n: int, n_from_disk: int = 0) -> tuple[int, int]:
        """The first n ids are used, and kept in host memory as far as they fit there from the beginning.

        The last n_from_disk have just been read from the disk. Returns how many the GPU has written to the host, and
        how many went from there to the disk.
        """
        host, disk = self._host, self._disk
        n_written = 0
        for i in reversed(range(min(n, self._most_on_host))):
            block = chain[i]
            if block in host:
                host.move_to_end(block)
                continue
            disk.pop(block, None)
            host[block] = None
            n_written += i < n - n_from_disk
        return n_written, self._shrink()

    def check(self) -> None:
        """Assert the invariant."""
        held_blocks = self.swapped_blocks + self.blocks_per_id * len(self._host)
        assert 0 <= held_blocks <= self.total_blocks, (held_blocks, self.total_blocks)
        assert not self._host.keys() & self._disk.keys(), "an id is on host and disk"
        assert len(self._disk) <= self._most_on_disk, (len(self._disk), self._most_on_disk)

    @property
    def _most_on_host(self) -> int:
        return (self.total_blocks - self.swapped_blocks) // self.blocks_per_id

    def _shrink(self) -> int:
        """Give up what no longer fits; returns how many ids went to the disk."""
        host, disk, n_down = self._host, self._disk, 0
        while len(host) > self._most_on_host:
            block, _ = host.popitem(last=False)
            if self._most_on_disk:
                disk[block] = None
                n_down += 1
        while len(disk) > self._most_on_disk:
            disk.popitem(last=False)
        return n_down
