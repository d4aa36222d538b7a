"""HostMemory: host memory and disk of a replica, with swapped-out requests and copies of prefixes; SharedMemory: those
of a pool."""

from collections.abc import Iterable
from itertools import islice

from simserve.state.id_runs import Chain
from simserve.state.sent_prompts import RecentIds


class HostMemory:
    """Host blocks of one replica, of the size of its GPU blocks.

    Blocks of swapped-out requests stay until these return. The rest holds copies of prefixes by id, and the disk holds
    ids evicted from the host: an id is on at most one of the two. Both evict the least recently used id. Using an id
    uses all ids before it, the last ones first (`keep`), so no id is present without those before it, and the host ids
    of a chain precede its disk ids.

    Invariant: swapped_blocks + ids on the host <= total_blocks; no id is on host and disk.
    """

    def __init__(self, total_blocks: int, disk_blocks: int = 0) -> None:
        self.total_blocks = total_blocks
        self.swapped_blocks = 0
        """Blocks of swapped-out requests."""
        self._host, self._disk = RecentIds(), RecentIds()
        self._most_on_disk = disk_blocks

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

    Invariant: as HostMemory, but that an id may be on disk too while it is written; ids of `_readers` are on the host.
    """

    def __init__(self, total_blocks: int, disk_blocks: int = 0) -> None:
        super().__init__(total_blocks, disk_blocks)
        self._readers: dict[int, int] = {}
        """Readers of each id that is read, or WRITING."""
        self.n_lost = 0
        """Ids evicted that are now neither in host memory nor on disk."""

    def hits(self, chain: Chain, n_here: int, most: int) -> int:
        """Return how many of the first `most` ids are on the GPU, which has n_here of them, or here. O(n)."""
        n, last = n_here, min(most, len(chain))
        while n < last and self.has(chain[n]):
            n += 1
        return n

    def has(self, block: int) -> bool:
        """Return whether all of an id is here."""
        return self._is_whole(block) or block in self._disk

    def _is_whole(self, block: int) -> bool:
        return block in self._host and self._readers.get(block) != WRITING

    def on_disk(self, blocks: Chain) -> Chain:
        """Return those of some ids, all found, that are to be read from disk."""
        return [block for block in blocks if not self._is_whole(block)]

    def hold(self, blocks: Chain, in_copy: list[int]) -> None:
        """Keep ids that are being read; append them to in_copy."""
        for block in filter(self._is_whole, blocks):
            self._readers[block] = self._readers.get(block, 0) + 1
            in_copy.append(block)

    def keep(self, chain: Chain, n: int, from_disk: Chain, in_copy: list[int]) -> tuple[int, int]:
        """Mark the first n ids as used, and begin to write those that are not in host memory as far as they fit, from
        the first on; see HostMemory."""
        host, readers, used = self._host, self._readers, chain[:n]
        n_staying = len(readers) + sum(block in host and block not in readers for block in used)
        new = dict.fromkeys([block for block in used if block not in host][: self.total_blocks - n_staying], WRITING)
        for block in reversed(used):
            if block in host or block in new:
                host.add(block, 1)
        readers.update(new)
        in_copy += new
        return len(new.keys() - from_disk), self._shrink()

    def complete(self, in_copy: Iterable[int]) -> None:
        """Note that copies of ids are over."""
        for block in in_copy:
            if self._ended(block) == WRITING:
                self._disk.remove(block, 1)

    def lose(self, in_copy: Iterable[int]) -> None:
        """Note that copies of ids have been cut short: what was being written is lost."""
        for block in in_copy:
            if self._ended(block) == WRITING:
                self._host.remove(block, 1)

    def _ended(self, block: int) -> int:
        """Note that a copy of an id has ended; return the readers that it had."""
        n_readers = self._readers.pop(block)
        if n_readers > 1:
            self._readers[block] = n_readers - 1
        return n_readers

    def _shrink(self) -> int:
        """Evict what no longer fits and is not in use; return how many ids moved to disk."""
        n_over = max(0, self._host.n - self.total_blocks)
        oldest = list(islice((block for block in self._host if block not in self._readers), n_over))
        for block in oldest:
            self._host.remove(block, 1)
            if self._most_on_disk:
                self._disk.add(block, 1)
        n_gone = len(oldest)
        if self._most_on_disk:
            n_gone = max(0, self._disk.n - self._most_on_disk)
            for _ in range(n_gone):
                self._disk.pop(1)
        self.n_lost += n_gone
        return len(oldest) if self._most_on_disk else 0
