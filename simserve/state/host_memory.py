"""HostMemory: host memory and disk of a replica, with swapped-out requests and copies of prefixes."""

from collections import OrderedDict

from simserve.state.prefix_cache import Chain


class HostMemory:
    """Host blocks of one replica, of the size of its GPU blocks.

    Blocks of swapped-out requests stay until these return. The rest holds copies of prefixes by id, and the disk holds
    ids evicted from the host: an id is on at most one of the two. Both evict the least recently used id. Using an id
    uses all ids before it, the last ones first (`keep`), so no id is present without those before it, and the host ids
    of a chain precede its disk ids.

    Invariant: swapped_blocks + ids on the host <= total_blocks; no id is on host and disk.
    """

    __slots__ = ("_disk", "_host", "_most_on_disk", "swapped_blocks", "total_blocks")

    def __init__(self, total_blocks: int, disk_blocks: int = 0) -> None:
        self.total_blocks = total_blocks
        self.swapped_blocks = 0
        """Blocks of swapped-out requests."""
        self._host: OrderedDict[int, None] = OrderedDict()
        self._disk: OrderedDict[int, None] = OrderedDict()
        self._most_on_disk = disk_blocks

    @property
    def n_host_ids(self) -> int:
        """Ids in host memory."""
        return len(self._host)

    @property
    def n_disk_ids(self) -> int:
        """Ids on disk."""
        return len(self._disk)

    def has_room(self, n_blocks: int) -> bool:
        """Return whether a request of n_blocks can be swapped out; prefixes are evicted for it."""
        return self.swapped_blocks + n_blocks <= self.total_blocks

    def swap_out(self, n_blocks: int) -> int:
        """Store the blocks of a request. Return how many ids moved to the disk to make room."""
        self.swapped_blocks += n_blocks
        return self._shrink()

    def swap_in(self, n_blocks: int) -> None:
        """Free the blocks of a returning request."""
        self.swapped_blocks -= n_blocks

    def match(self, chain: Chain, most: int) -> tuple[int, int]:
        """Return how many of the first `most` ids are in host memory, and how many there or on disk. O(log n)."""
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
        """Mark the first n ids as used, and keep them in host memory as far as they fit, from the first on.

        The last n_from_disk were just read from disk. Return how many ids the GPU wrote to the host, and how many moved
        from the host to disk.
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
        held_blocks = self.swapped_blocks + len(self._host)
        assert 0 <= held_blocks <= self.total_blocks, (held_blocks, self.total_blocks)
        assert not self._host.keys() & self._disk.keys(), "an id is on host and disk"
        assert len(self._disk) <= self._most_on_disk, (len(self._disk), self._most_on_disk)

    @property
    def _most_on_host(self) -> int:
        return self.total_blocks - self.swapped_blocks

    def _shrink(self) -> int:
        """Evict what no longer fits; return how many ids moved to disk."""
        host, disk, n_down = self._host, self._disk, 0
        while len(host) > self._most_on_host:
            block, _ = host.popitem(last=False)
            if self._most_on_disk:
                disk[block] = None
                n_down += 1
        while len(disk) > self._most_on_disk:
            disk.popitem(last=False)
        return n_down
