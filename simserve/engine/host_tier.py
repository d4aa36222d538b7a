"""HostTier: host memory and disk of a replica, and the copies between them and its GPUs; HostStore: those of a pool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from simserve.cost.memory import HostTierSpec
from simserve.engine.alarm import Clock
from simserve.engine.link import Port
from simserve.state.host_memory import HostMemory, SharedMemory
from simserve.state.id_runs import Chain
from simserve.state.request import Request
from simserve.tables.facts import HostFacts
from simserve.units import to_ps, to_s


@dataclass
class HostCounts:
    """Blocks copied between tiers, and the time steps waited."""

    swapped_out: int = 0
    swapped_in: int = 0
    dropped: int = 0
    """Blocks of returning requests that were still on the GPU."""
    discarded: int = 0
    """Blocks of swapped requests that did not return."""
    written: int = 0
    """Prefix blocks, from GPU to host."""
    read: int = 0
    """Prefix blocks, to the GPU from host and disk."""
    disk_written: int = 0
    disk_read: int = 0
    wait_ps: int = 0
    """Time that steps waited for copies."""
    read_ps: int = 0
    """Time that requests waited for their prefixes, while others went on."""


class Channel:
    """A copy link, one for both directions."""

    def __init__(self, block_s: float) -> None:
        self.awaited_blocks = 0
        """Blocks to copy that the next step waits for, before any others."""
        self.background_blocks = 0
        """Blocks to copy after all others."""
        self._block_s = block_s
        self.port = Port()

    def carry(self, n_blocks: int, now_ps: int) -> int:
        """Copy blocks after all earlier ones; return when the last is there."""
        return self.port.through_ps(to_ps(n_blocks * self._block_s), now_ps) if n_blocks else now_ps


@dataclass(slots=True, eq=False)
class Read:
    """A prefix on its way to the GPU, for one request."""

    request: Request
    n_ids: int
    """Ids of its hit; it holds meanwhile what is on the GPU."""
    missing: dict[int, None]
    """Blocks that are read."""
    from_disk: Chain
    """Blocks of these that are read from disk."""
    end_ps: int = 0


class HostTier:
    """Host memory and disk of one replica, or its access to those of its pool.

    Copies requested at a step boundary start after all earlier ones, on the link and on the disk. The step that begins
    waits for swaps, in or out, and for prefix reads unless these overlap; then come reads that only their own request
    waits for, and prefix writes, which run in the background.
    """

    def __init__(self, spec: HostTierSpec, store: "HostStore | None" = None) -> None:
        self.memory = HostMemory(spec.n_blocks, spec.disk_blocks) if store is None else store.memory
        self.counts = HostCounts()
        self.store = store
        """What it shares with others, if anything."""
        self.is_shared = store is not None
        """Other replicas find what this one writes."""
        self.is_planning = False
        """Its replica plans, after those before it."""
        self._in_copy: list[int] = []
        """Ids in the store that pending copies read or write."""
        self.overlaps = spec.overlaps
        """Prefixes are read while others go on."""
        self._link, self._disk = Channel(spec.block_s), Channel(spec.disk_block_s)
        if store is not None:
            self._disk.port = store.disk
        self._reads: list[Read] = []

    def share_links(self, other: "HostTier") -> None:
        """Queue on the link and the disk of another lane of a pipeline: each GPU holds a part of all lanes' blocks."""
        self._link.port, self._disk.port = other._link.port, other._disk.port

    def swap_out(self, n_blocks: int) -> None:
        """Copy the blocks of a request to the host."""
        self._demote(self.memory.swap_out(n_blocks))
        self.counts.swapped_out += n_blocks
        self._link.awaited_blocks += n_blocks

    def swap_in(self, n_blocks: int, n_found: int = 0) -> None:
        """Copy the blocks of a request back, except those still on the GPU."""
        self.memory.swap_in(n_blocks)
        self.counts.swapped_in += n_blocks - n_found
        self.counts.dropped += n_found
        self._link.awaited_blocks += n_blocks - n_found

    def discard(self, n_blocks: int) -> None:
        """Free the blocks of a swapped request that does not return."""
        self.memory.swap_in(n_blocks)
        self.counts.discarded += n_blocks

    def read(self, n_blocks: int, n_from_disk: int) -> None:
        """Copy prefix blocks to the GPU through the host, some of them from disk, before the next step."""
        self._count_read(n_blocks, n_from_disk)
        self._link.awaited_blocks += n_blocks
        self._disk.awaited_blocks += n_from_disk

    def read_ahead(self, read: Read) -> None:
        """Copy prefix blocks to the GPU while steps go on."""
        self._count_read(len(read.missing), len(read.from_disk))
        self._reads.append(read)

    def _count_read(self, n_blocks: int, n_from_disk: int) -> None:
        self.counts.read += n_blocks
        self.counts.disk_read += n_from_disk

    def hold(self, blocks: Chain) -> None:
        """Keep ids that are about to be read."""
        self.memory.hold(blocks, self._in_copy)

    def keep(self, chain: Chain, n: int, from_disk: Chain = ()) -> None:
        """Mark the first n ids of a chain as used; those of from_disk were just read from there."""
        n_written, n_down = self.memory.keep(chain, n, from_disk, self._in_copy)
        self.counts.written += n_written
        self._link.background_blocks += n_written
        self._demote(n_down)
        if self.store is not None:
            self.store.note_lost(self)

    def _demote(self, n_blocks: int) -> None:
        """Write blocks evicted from host memory to disk."""
        self.counts.disk_written += n_blocks
        self._disk.background_blocks += n_blocks

    def copy(self, now_ps: int) -> int:
        """Start the pending copies; return how long the step that begins now must wait."""
        link, disk = self._link, self._disk
        if not (link.awaited_blocks or link.background_blocks or self._reads or disk.background_blocks):
            return 0  # fast: nearly always
        wait_ps = max(link.carry(link.awaited_blocks, now_ps), disk.carry(disk.awaited_blocks, now_ps)) - now_ps
        end_ps = now_ps + wait_ps
        for read in self._reads:
            there_ps = link.carry(len(read.missing), now_ps), disk.carry(len(read.from_disk), now_ps)
            read.end_ps = max(*there_ps, now_ps + 1)
            self.counts.read_ps += read.end_ps - now_ps
            end_ps = max(end_ps, read.end_ps)
        self._reads.clear()
        end_ps = max(end_ps, link.carry(link.background_blocks, now_ps))
        disk.carry(disk.background_blocks, now_ps)
        for channel in (link, disk):
            channel.awaited_blocks = channel.background_blocks = 0
        self.counts.wait_ps += wait_ps
        if self.store is not None and self._in_copy:
            self.store.begin(Copies(max(end_ps, now_ps + 1), self, self._in_copy))
            self._in_copy = []
        return wait_ps

    def fail(self) -> None:
        """Cut the copies in flight short; the store keeps what is complete."""
        if self.store is not None:
            self.store.cut_short(self, self._in_copy)
            self._in_copy = []


@dataclass(order=True)
class Copies:
    """Copies between a replica and the store, all of one step boundary; they are complete together."""

    end_ps: int
    tier: HostTier = field(compare=False)
    blocks: list[int] = field(compare=False)
    """Ids that are read or written."""


@dataclass
class Sharer:
    """A replica that uses a store."""

    id: int
    tier: HostTier
    on_change: Callable[[int], None]
    """Called with an instant when it may find other ids from then on: its head of the queue may need other blocks."""


class HostStore:
    """Host memory and disk that the replicas of a pool share.

    Each GPU reaches the memory over its own link; the disk is one for all. Replicas of one instant use it in their
    order.
    """

    def __init__(self, spec: HostTierSpec, clock: Clock) -> None:
        self.memory = SharedMemory(spec.n_blocks, spec.disk_blocks)
        self.disk = Port()
        self.sharers: list[Sharer] = []
        self._copies: list[Copies] = []
        """A heap of the copies in flight."""
        self._n_lost = 0
        self._clock = clock
        self.due_ps: int | None = None
        """When the first of the copies in flight is over; None: there is none."""

    def begin(self, copies: Copies) -> None:
        """Let others find what is being written when the copies are over."""
        heappush(self._copies, copies)
        self.due_ps = self._copies[0].end_ps

    def note_lost(self, by: HostTier) -> None:
        """Let others plan again if ids are no longer here: those that plan after a replica which does, at once."""
        if self.memory.n_lost == self._n_lost:
            return
        self._n_lost, now_ps = self.memory.n_lost, self._clock.now_ps
        has_planned = by.is_planning
        for sharer in self.sharers:
            if sharer.tier is by:
                has_planned = False
            else:
                sharer.on_change(now_ps + has_planned)

    def cut_short(self, tier: HostTier, pending: list[int]) -> None:
        """Lose the copies of a replica that are in flight, and those that have not begun."""
        self.memory.lose(pending)
        for copies in self._copies:
            if copies.tier is tier:
                self.memory.lose(copies.blocks)
                copies.blocks = []

    def take(self, now_ps: int) -> None:
        """End the copies that are over by now."""
        while self._copies and self._copies[0].end_ps <= now_ps:
            self.memory.complete(heappop(self._copies).blocks)
        self.due_ps = self._copies[0].end_ps if self._copies else None
        for sharer in self.sharers:
            sharer.on_change(now_ps)


def host_facts(tiers_of: Sequence[HostTier | None], block_bytes: Sequence[float]) -> HostFacts | None:
    """Sum the tiers of all replicas, `(n_replicas,)`; None if no replica has one.

    block_bytes: `(n_replicas,)`, bytes of a block over all GPUs of a replica.
    """
    tiers = [(tier, n_bytes) for tier, n_bytes in zip(tiers_of, block_bytes, strict=True) if tier is not None]
    if not tiers:
        return None

    def bytes_of(name: str) -> float:
        return float(sum(getattr(tier.counts, name) * n_bytes for tier, n_bytes in tiers))

    return HostFacts(
        swapped_out_bytes=bytes_of("swapped_out"),
        swapped_in_bytes=bytes_of("swapped_in"),
        dropped_bytes=bytes_of("dropped"),
        left_bytes=float(sum(tier.memory.swapped_blocks * n_bytes for tier, n_bytes in tiers)),
        written_bytes=bytes_of("written"),
        read_bytes=bytes_of("read"),
        disk_written_bytes=bytes_of("disk_written"),
        disk_read_bytes=bytes_of("disk_read"),
        wait_s=to_s(sum(tier.counts.wait_ps for tier, _ in tiers)),
        read_s=to_s(sum(tier.counts.read_ps for tier, _ in tiers)),
    )
