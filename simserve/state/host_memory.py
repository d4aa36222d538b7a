"""HostMemory: host memory and disk of a replica, with swapped-out requests and copies of prefixes; SharedMemory: those
of a pool."""

from collections import OrderedDict, deque
from collections.abc import Iterable

from simserve.state.id_runs import Chain
from simserve.state.recent_ids import RecentIds


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
        self._host, self._disk = RecentIds(), RecentIds()
        self._most_on_disk = disk_blocks

    @property
    def n_host_ids(self) -> int:
        """Ids in host memory."""
        return self._host.n

    @property
    def n_disk_ids(self) -> int:
        """Ids on disk."""
        return self._disk.n

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
        """Return how many of the first `most` ids are in host memory, and how many there or on disk."""
        last = min(most, len(chain))
        n_host = self._host.n_leading(chain, 0, last)
        return n_host, self._disk.n_leading(chain, n_host, last)

    def hits(self, chain: Chain, n_here: int, most: int) -> int:
        """Return how many of the first `most` ids are on the GPU, which has n_here of them, or here."""
        return max(n_here, self.match(chain, most)[1])

    def has(self, block: int) -> bool:
        """Return whether an id is here."""
        return block in self._host or block in self._disk

    def on_disk(self, blocks: Chain) -> Chain:
        """Return those of some ids, all found, that are to be read from disk."""
        return [block for block in blocks if block not in self._host]

    def hold(self, blocks: Chain, in_copy: list[int]) -> None:
        """Keep ids that are being read; append them to in_copy."""

    def keep(self, chain: Chain, n: int, from_disk: Chain, in_copy: list[int]) -> tuple[int, int]:
        """Mark the first n ids as used, and keep them in host memory as far as they fit, from the first on.

        Those of from_disk were just read from there. Return how many ids the GPU wrote to the host, and how many moved
        from the host to disk; append to in_copy what must stay until its copies are over.
        """
        n_used, n_read = min(n, self._most_on_host), 0
        if from_disk:
            n_read = len({block for block in chain[:n_used] if block not in self._host}.intersection(from_disk))
        self._disk.forget(chain, n_used)
        return self._host.use(chain, n_used) - n_read, self._shrink()

    @property
    def _most_on_host(self) -> int:
        return self.total_blocks - self.swapped_blocks

    def _shrink(self) -> int:
        """Evict what no longer fits; return how many ids moved to disk."""
        host, disk, n_down = self._host, self._disk, 0
        while host.n > self._most_on_host:
            first, n = host.pop(host.n - self._most_on_host)
            if self._most_on_disk:
                disk.add(first, n)
                n_down += n
        while disk.n > self._most_on_disk:
            disk.pop(disk.n - self._most_on_disk)
        return n_down


WRITING = -1
"""Instead of its number of readers: the copy of an id in host memory is not complete yet."""


class SharedMemory(HostMemory):
    """Host memory and disk that replicas share, with copies of prefixes; requests are not swapped there.

    What one replica writes, all find as soon as its copy is complete; until then it is found on disk, if it is there.
    An id stays in host memory while it is written or read. Replicas may hold parts of a chain on their GPUs, and their
    copies may be lost, so an id may be here without those before it. The order of eviction is that of uses, and not of
    the ends of copies. Sources: vLLM V1, v1/kv_offload/lru_manager.py (ref_cnt, is_ready); Mooncake Store, PutStart and
    PutEnd, leases of what is read.

    Invariant: as HostMemory, but that an id may be on disk too while it is written.
    """

    __slots__ = ("_n_in_copy", "_on_disk", "_readers", "n_lost")

    def __init__(self, total_blocks: int, disk_blocks: int = 0) -> None:
        super().__init__(total_blocks, disk_blocks)
        self._readers: OrderedDict[int, int] = OrderedDict()
        """Readers of each id in host memory, or WRITING; the longest unused first."""
        self._on_disk: OrderedDict[int, None] = OrderedDict()
        """Ids on disk, the longest unused first."""
        self._n_in_copy = 0
        """Ids in host memory that are written or read."""
        self.n_lost = 0
        """Ids evicted that are now neither in host memory nor on disk."""

    @property
    def n_host_ids(self) -> int:
        """Ids in host memory."""
        return len(self._readers)

    @property
    def n_disk_ids(self) -> int:
        """Ids on disk."""
        return len(self._on_disk)

    def hits(self, chain: Chain, n_here: int, most: int) -> int:
        """Return how many of the first `most` ids are on the GPU, which has n_here of them, or here. O(n)."""
        host, disk, last = self._readers, self._on_disk, min(most, len(chain))
        n = n_here
        while n < last and (host.get(chain[n], WRITING) != WRITING or chain[n] in disk):
            n += 1
        return n

    def has(self, block: int) -> bool:
        """Return whether all of an id is here."""
        return self._readers.get(block, WRITING) != WRITING or block in self._on_disk

    def on_disk(self, blocks: Chain) -> Chain:
        """Return those of some ids, all found, that are to be read from disk."""
        return [block for block in blocks if self._readers.get(block, WRITING) == WRITING]

    def hold(self, blocks: Chain, in_copy: list[int]) -> None:
        """Keep ids that are being read; append them to in_copy."""
        for block in blocks:
            n_readers = self._readers.get(block, WRITING)
            if n_readers != WRITING:
                self._n_in_copy += not n_readers
                self._readers[block] = n_readers + 1
                in_copy.append(block)

    def keep(self, chain: Chain, n: int, from_disk: Chain, in_copy: list[int]) -> tuple[int, int]:
        """Mark the first n ids as used, and begin to write those that are not in host memory as far as they fit, from
        the first on; see HostMemory."""
        host, used = self._readers, chain[:n]
        n_staying = self._n_in_copy + sum(not host.get(block, WRITING) for block in used)
        new = [block for block in used if block not in host][: self.total_blocks - n_staying]
        host.update(dict.fromkeys(new, WRITING))
        self._n_in_copy += len(new)
        in_copy += new
        deque(map(host.move_to_end, filter(host.__contains__, reversed(used))), maxlen=0)
        return len(set(new).difference(from_disk)), self._shrink()

    def complete(self, in_copy: Iterable[int]) -> None:
        """Note that copies of ids are over."""
        for block in in_copy:
            n_readers = self._readers[block]
            if n_readers == WRITING:
                self._on_disk.pop(block, None)
            self._readers[block] = max(0, n_readers - 1)
            self._n_in_copy -= n_readers in (WRITING, 1)

    def lose(self, in_copy: Iterable[int]) -> None:
        """Note that copies of ids have been cut short: what was being written is lost."""
        for block in in_copy:
            n_readers = self._readers[block]
            if n_readers == WRITING:
                del self._readers[block]
            else:
                self._readers[block] = n_readers - 1
            self._n_in_copy -= n_readers in (WRITING, 1)

    def _shrink(self) -> int:
        """Evict what no longer fits and is not in use; return how many ids moved to disk."""
        host, disk, n_down = self._readers, self._on_disk, 0
        n_over = len(host) - self.total_blocks
        oldest: list[int] = []
        for block, n_readers in host.items() if n_over > 0 else ():
            if not n_readers:
                oldest.append(block)
                if len(oldest) == n_over:
                    break
        for block in oldest:
            del host[block]
            if self._most_on_disk:
                disk[block] = None
                n_down += 1
            else:
                self.n_lost += 1
        while len(disk) > self._most_on_disk:
            block, _ = disk.popitem(last=False)
            self.n_lost += 1
        return n_down
