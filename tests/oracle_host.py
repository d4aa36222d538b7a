"""Host memory and disk of the oracle, in lists: contents and copies."""

from typing import TYPE_CHECKING

from simserve.cost.host_tier import HostTierSpec
from simserve.state.request import Phase, Request
from simserve.units import to_ps

if TYPE_CHECKING:
    from tests.oracle_replica import OracleReplica


class OracleHost:
    """Host memory and disk of one replica."""

    def __init__(self, spec: HostTierSpec) -> None:
        self.spec = spec
        self.swapped: list[Request] = []
        self.n_discarded = 0
        self.swapped_blocks: dict[Request, int] = {}
        self.host: list[int] = []
        self.disk: list[int] = []
        """Ids, the least recently used first."""
        self.free_ps = {"link": 0, "disk": 0}
        self.copies: list[tuple[str, int, bool]] = []
        """(link, blocks, whether the next step waits), requested since the last boundary."""
        self.hides_waiting = False
        self.has_been_out = 0
        self.reads: list[tuple[Request, list[int], list[int]]] = []

    def ids_that_fit(self) -> int:
        return self.spec.n_blocks - sum(self.swapped_blocks.values())

    def has(self, block: int) -> bool:
        return block in self.host or block in self.disk

    def overflow(self) -> None:
        while len(self.host) > self.ids_that_fit():
            block = self.host.pop(0)
            if self.spec.disk_blocks:
                self.disk.append(block)
                self.copies.append(("disk", 1, False))
        while len(self.disk) > self.spec.disk_blocks:
            self.disk.pop(0)

    def use(self, chain: list[int], read_from_disk: list[int]) -> None:
        """Use all of a chain, the last block first, so that the first is evicted last."""
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

    def read(self, request: Request, chain: list[int], missing: list[int]) -> None:
        """Read the blocks of a chain that the GPU lacks, before anything here changes."""
        from_disk = [block for block in missing if block not in self.host]
        self.copies += [("link", 1, True) for _ in missing] + [("disk", 1, True) for _ in from_disk]
        self.reads.append((request, chain, from_disk))

    def end_reads(self) -> None:
        for _, chain, from_disk in self.reads:
            self.use(chain, from_disk)
        self.reads.clear()

    def copy(self, now_ps: int) -> int:
        """Start the copies, awaited ones first; return how long a step that begins now waits."""
        waits = [0]
        for over, block_s in (("link", self.spec.block_s), ("disk", self.spec.disk_block_s)):
            for is_awaited in (True, False):
                n_blocks = sum(n for where, n, awaited in self.copies if (where, awaited) == (over, is_awaited))
                if n_blocks:
                    self.free_ps[over] = max(self.free_ps[over], now_ps) + to_ps(n_blocks * block_s)
                    waits += [self.free_ps[over] - now_ps] * is_awaited
        self.copies.clear()
        return max(waits)

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
        """Drop a swapped request whose client has given up."""
        if request in self.swapped:
            self.swapped.remove(request)
            self.n_discarded += self.swapped_blocks.pop(request)

    def bring_back(self, replica: "OracleReplica", now_ps: int) -> None:
        self.hides_waiting = bool(self.swapped)
        if replica.growth() > replica.free_blocks():
            return  # a request must be preempted
        while self.swapped and len(replica.running) + len(replica.kept) < replica.n_slots:
            request = self.swapped[0]
            life = replica.lives[request]
            named = replica.chain(request)[: life.stored // replica.block_size] if replica.cache else []
            here = [block for block in named if replica.cache and block in replica.cache.copies]
            held = [block for block in here if replica.cache and replica.cache.is_held(block)]
            n_needed = replica.blocks_of(request, replica.room(request)) - len(held)
            if n_needed > replica.free_blocks() - replica.growth():
                return
            self.swapped.pop(0)
            n_blocks = self.swapped_blocks.pop(request)
            self.copies.append(("link", n_blocks - len(here), True))
            self._resume(replica, request, (here, named))
            life.preempted_ps += now_ps - life.preempted_at_ps
            life.preempted_at_ps = -1
            life.moves.append((now_ps, "swapped_back"))

    def _resume(self, replica: "OracleReplica", request: Request, blocks: tuple[list[int], list[int]]) -> None:
        here, named = blocks
        for block in named:
            assert replica.cache is not None
            if block in here:
                replica.cache.hold(request, block)
            else:
                replica.cache.add(request, block)
        replica.lives[request].n_held_ids = len(named)
        replica.running[request] = None
        replica.decoding.append(request)
        request.phase = Phase.DECODE
        replica.setup.scheduler.on_resume(request)
        replica.shrink_cache()
