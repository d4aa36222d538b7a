"""Host memory and disk of the oracle, in lists: contents and copies."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simserve.cost.memory import HostTierSpec
from simserve.state.request import Phase, Request
from simserve.units import to_ps
from tests.oracle_cache import Key
from tests.oracle_counters import came
from tests.oracle_layers import OracleLayers

if TYPE_CHECKING:
    from tests.oracle_replica import OracleReplica


@dataclass(eq=False)
class OracleRead:
    """A read for one request while others go on: what was on the GPU, what was not, and what of this is on disk."""

    request: Request
    here: list[Key]
    missing: list[Key]
    from_disk: list[Key]
    end_ps: int | None = None


@dataclass(eq=False)
class OracleCopies:
    """What a replica copies from and to a store that it shares, all of one boundary; None: it has not begun."""

    by: "OracleHost"
    end_ps: int | None = None
    reads: list[Key] = field(default_factory=list)
    writes: list[Key] = field(default_factory=list)


@dataclass(eq=False)
class OracleStore:
    """Host memory and disk that replicas share."""

    host: list[Key] = field(default_factory=list)
    disk: list[Key] = field(default_factory=list)
    disk_free_ps: list[int] = field(default_factory=lambda: [0])
    copies: list[OracleCopies] = field(default_factory=list)

    def is_written(self, block: Key) -> bool:
        return any(block in copies.writes for copies in self.copies)

    def is_in_copy(self, block: Key) -> bool:
        return self.is_written(block) or any(block in copies.reads for copies in self.copies)

    def of(self, host: "OracleHost") -> OracleCopies:
        """Return the copies of a replica that have not begun."""
        for copies in self.copies:
            if copies.by is host and copies.end_ps is None:
                return copies
        self.copies.append(OracleCopies(host))
        return self.copies[-1]

    def end_copies(self, now_ps: int) -> None:
        for copies in [each for each in self.copies if each.end_ps == now_ps]:
            self.copies.remove(copies)
            self.disk[:] = [block for block in self.disk if block not in copies.writes]

    def lose(self, host: "OracleHost") -> None:
        """Lose what a failed replica is writing."""
        for copies in [each for each in self.copies if each.by is host]:
            self.copies.remove(copies)
            self.host[:] = [block for block in self.host if block not in copies.writes]


def places(layers: OracleLayers, missing: list[Key], from_disk: list[Key]) -> list[str]:
    """Return where each id comes from of which blocks are read: disk if any of them does."""
    read, on_disk = ({number for key in keys for number in layers.ids(key)} for keys in (missing, from_disk))
    return ["disk" if number in on_disk else "host" for number in sorted(read)]


class OracleHost:
    """Host memory and disk of one replica."""

    def __init__(self, spec: HostTierSpec) -> None:
        self.spec = spec
        self.swapped: list[Request] = []
        self.n_discarded = 0
        self.swapped_blocks: dict[Request, int] = {}
        self.host: list[Key] = []
        self.disk: list[Key] = []
        """Blocks with an id, the least recently used first."""
        self.free_ps = {"link": [0], "disk": [0]}
        self.copies: list[tuple[str, int, bool]] = []
        """(link, blocks, whether the next step waits), requested since the last boundary."""
        self.hides_waiting = False
        self.has_been_out = 0
        self.reads: list[tuple[Request, list[Key], list[Key]]] = []
        self.ahead: list[OracleRead] = []
        """Reads that overlap the steps."""
        self.waiting: dict[Request, OracleRead] = {}
        """Requests that wait for one of them."""
        self.n_read = 0
        """Blocks read."""
        self.fetched: dict[Request, list[str]] = {}
        """Where the blocks came from that were read for each request."""
        self.store: OracleStore | None = None

    def share(self, store: OracleStore) -> None:
        """Keep prefixes in a store of several replicas, with one disk."""
        self.store, self.host, self.disk, self.free_ps["disk"] = store, store.host, store.disk, store.disk_free_ps

    def ids_that_fit(self) -> int:
        return self.spec.n_blocks - sum(self.swapped_blocks.values())

    def is_on_host(self, block: Key) -> bool:
        """Tell whether all of it is in host memory."""
        return block in self.host and not (self.store and self.store.is_written(block))

    def has(self, block: Key) -> bool:
        return self.is_on_host(block) or block in self.disk

    def overflow(self) -> None:
        while len(self.host) > self.ids_that_fit():
            block = next(block for block in self.host if not (self.store and self.store.is_in_copy(block)))
            self.host.remove(block)
            if self.spec.disk_blocks:
                self.disk.append(block)
                self.copies.append(("disk", 1, False))
        while len(self.disk) > self.spec.disk_blocks:
            self.disk.pop(0)

    def use(self, chain: list[Key], read_from_disk: list[Key]) -> None:
        """Use all of a chain, the last block first, so that the first is evicted last."""
        if self.store:
            self.use_store(self.store, chain, read_from_disk)
            return
        for block in reversed(chain[: self.ids_that_fit()]):
            if block in self.host:
                self.host.remove(block)
            else:
                if block in self.disk:
                    self.disk.remove(block)
                if block not in read_from_disk:
                    self.copies.append(("link", 1, False))
            self.host.append(block)
        self.overflow()

    def use_store(self, store: OracleStore, chain: list[Key], read_from_disk: list[Key]) -> None:
        """Use all of a chain that is in the store, and begin to write the rest, its first blocks first, into room that
        nothing needs which is used now."""
        staying = [block for block in self.host if block in chain or store.is_in_copy(block)]
        for block in chain:
            if block not in self.host and len(staying) < self.spec.n_blocks:
                staying.append(block)
                store.of(self).writes.append(block)
                if block not in read_from_disk:
                    self.copies.append(("link", 1, False))
        for block in reversed(chain):
            if block in staying:
                if block in self.host:
                    self.host.remove(block)
                self.host.append(block)
        self.overflow()

    def note_read(self, missing: list[Key]) -> None:
        """Let nothing evict from a store what is being read."""
        if self.store and missing:
            self.store.of(self).reads.extend(block for block in missing if self.is_on_host(block))

    def read(self, request: Request, chain: list[Key], missing: list[Key]) -> None:
        """Read the blocks of a chain that the GPU lacks, before anything here changes."""
        from_disk = [block for block in missing if not self.is_on_host(block)]
        self.note_read(missing)
        self.copies += [("link", 1, True) for _ in missing] + [("disk", 1, True) for _ in from_disk]
        self.reads.append((request, chain, from_disk))
        self.n_read += len(missing)

    def end_reads(self) -> None:
        for _, chain, from_disk in self.reads:
            self.use(chain, from_disk)
        self.reads.clear()

    def copy(self, now_ps: int) -> int:
        """Start the copies, awaited ones first, then reads that overlap; return how long a step that begins now
        waits."""
        end_ps = max(self.carry(over, self.pending(over, True), now_ps) for over in ("link", "disk"))
        ends_ps = [now_ps + 1, end_ps]
        for read in self.ahead:
            if read.end_ps is None:
                amounts = (("link", len(read.missing)), ("disk", len(read.from_disk)))
                read.end_ps = max([now_ps + 1, *(self.carry(over, n, now_ps) for over, n in amounts)])
                ends_ps.append(read.end_ps)
        ends_ps.append(self.carry("link", self.pending("link", False), now_ps))
        self.carry("disk", self.pending("disk", False), now_ps)
        self.copies.clear()
        for copies in self.store.copies if self.store else ():
            if copies.by is self and copies.end_ps is None:
                copies.end_ps = max(ends_ps)
        return end_ps - now_ps

    def pending(self, over: str, is_awaited: bool) -> int:
        return sum(n for where, n, awaited in self.copies if (where, awaited) == (over, is_awaited))

    def carry(self, over: str, n_blocks: int, now_ps: int) -> int:
        if not n_blocks:
            return now_ps
        block_s = self.spec.block_s if over == "link" else self.spec.disk_block_s
        free_ps = self.free_ps[over]
        free_ps[0] = max(free_ps[0], now_ps) + to_ps(n_blocks * block_s)
        return free_ps[0]

    # -- reads that overlap

    def must_wait(self, request: Request, replica: "OracleReplica") -> bool:
        """Tell whether a request that is to be admitted waits for blocks, and begin to read them."""
        assert replica.cache is not None
        found = request.prefilled_tokens
        hit = replica.keys(replica.chain(request), found // replica.block_size, found)
        missing = [block for block in hit if block not in replica.cache.copies]
        if not missing:
            return False
        for read in self.ahead:
            if missing[0] in read.missing:
                self.waiting[request] = read
                return True
        here = [block for block in hit if block not in missing]
        from_disk = [block for block in missing if not self.is_on_host(block)]
        self.note_read(missing)
        for block in here:
            replica.cache.hold(request, block)
        self.waiting[request] = OracleRead(request, here, missing, from_disk)
        self.ahead.append(self.waiting[request])
        self.n_read += len(missing)
        self.fetched.setdefault(request, []).extend(places(replica.layers, missing, from_disk))
        n_named = len(replica.named(request))
        self.use([key for key in hit if key[1] < n_named], from_disk)
        replica.shrink_cache()
        return True

    def end_ahead(self, replica: "OracleReplica", now_ps: int) -> None:
        """Let others find what has been read: for no request, until one is admitted with it."""
        for read in [read for read in self.ahead if read.end_ps == now_ps]:
            assert replica.cache is not None
            for block in read.missing:
                replica.cache.add(read.request, block)
            replica.cache.let_go(read.request, read.here + read.missing, 0)
            self.ahead.remove(read)
            self.waiting = {request: other for request, other in self.waiting.items() if other is not read}
            replica.must_plan = replica.must_plan or replica.step is None

    # -- swapping

    def can_take(self, n_blocks: int) -> bool:
        return self.spec.swaps and sum(self.swapped_blocks.values()) + n_blocks <= self.spec.n_blocks

    def take(self, request: Request, n_blocks: int) -> None:
        self.swapped.append(request)
        self.swapped_blocks[request] = n_blocks
        self.has_been_out += n_blocks
        self.copies.append(("link", n_blocks, True))
        self.overflow()

    def forget(self, request: Request) -> None:
        """Drop a request whose client has given up, and which is swapped or waits for what another reads."""
        self.waiting.pop(request, None)
        if request in self.swapped:
            self.swapped.remove(request)
            self.n_discarded += self.swapped_blocks.pop(request)

    def bring_back(self, replica: "OracleReplica", now_ps: int) -> None:
        self.hides_waiting = bool(self.swapped)
        if replica.growth() > replica.free_blocks():
            return  # a request must be preempted
        while self.swapped and len(replica.running) + len(replica.kept) < replica.n_slots:
            request = self.first_back(replica)
            life = replica.lives[request]
            chain = replica.chain(request) if replica.cache else []
            n_named = min(life.stored // replica.block_size, len(chain))
            n_here = replica.hits(chain, n_named, on_gpu=True)
            here, named = (replica.keys(chain, n, life.stored) for n in (n_here, n_named))
            held = [block for block in here if replica.cache and replica.cache.is_held(block)]
            n_needed = replica.blocks_of(request, replica.room(request)) - len(held)
            if n_needed > replica.free_blocks() - replica.growth():
                return
            self.swapped.remove(request)
            n_blocks = self.swapped_blocks.pop(request)
            self.copies.append(("link", n_blocks - len(here), True))
            self._resume(replica, request, (here, named), n_named)
            life.preempted_ps += now_ps - life.preempted_at_ps
            life.preempted_at_ps = -1
            life.moves.append((now_ps, "swapped_back"))

    def first_back(self, replica: "OracleReplica") -> Request:
        """Return the swapped request that left first, or the first in the policy's order."""
        if replica.policy == "priority":
            return sorted(self.swapped, key=lambda each: (each.priority, came(each)))[0]
        if replica.vtc is not None:
            counters = replica.vtc.counters
            return sorted(self.swapped, key=lambda each: (counters.get(each.tenant, 0.0), came(each)))[0]
        return self.swapped[0]

    def _resume(
        self, replica: "OracleReplica", request: Request, blocks: tuple[list[Key], list[Key]], n_named: int
    ) -> None:
        here, named = blocks
        cache, life = replica.cache, replica.lives[request]
        for block in here:
            assert cache is not None
            cache.hold(request, block)
        life.n_held_ids, life.keys = n_named, here
        replica.running[request] = None
        replica.decoding.append(request)
        request.phase = Phase.DECODE
        replica.setup.scheduler.on_resume(request)
        replica.shrink_cache()
        for block in named:  # the others have ids once they are in blocks, which may be where these ids were
            if block not in here:
                assert cache is not None
                cache.add(request, block)
        life.keys = named
