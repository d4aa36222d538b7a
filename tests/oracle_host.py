"""Host memory and disk of the oracle, in lists: what lies there, and what is copied when."""

from typing import TYPE_CHECKING

from simserve.cost.host_tier import HostTierSpec
from simserve.state.request import Phase, Request
from simserve.units import to_ps

if TYPE_CHECKING:
    from tests.oracle import OracleReplica


class OracleHost:
    """Beside one replica."""

    def __init__(self, spec: HostTierSpec, cost: int) -> None:
        self.spec, self.cost = spec, cost
        self.swapped: list[Request] = []
        self.swapped_blocks: dict[Request, int] = {}
        self.host: list[int] = []
        self.disk: list[int] = []
        """Ids, the one used longest ago first."""
        self.link_free_ps = self.disk_free_ps = 0
        self.link_blocks = self.disk_blocks = 0
        self.waits_for_link = self.waits_for_disk = False
        self.hides_waiting = False
        self.has_been_out = 0
        self.has_come_in = 0
        self.reads: list[tuple[Request, list[int], list[int]]] = []

    def ids_that_fit(self) -> int:
        return (self.spec.n_blocks - sum(self.swapped_blocks.values())) // self.cost

    def has(self, block: int) -> bool:
        return block in self.host or block in self.disk

    def overflow(self) -> None:
        while len(self.host) > self.ids_that_fit():
            block = self.host.pop(0)
            if self.spec.disk_blocks >= self.cost:
                self.disk.append(block)
                self.disk_blocks += self.cost
        while len(self.disk) * self.cost > self.spec.disk_blocks:
            self.disk.pop(0)

    def use(self, chain: list[int], read_from_disk: list[int]) -> None:
        """All of a chain is used, the last block first, so that the first is the last to go."""
        for block in reversed(chain[: self.ids_that_fit()]):
            if block in self.host:
                self.host.remove(block)
            else:
                if block in self.disk:
                    self.disk.remove(block)
                if block not in read_from_disk:
                    self.link_blocks += self.cost
            self.host.append(block)
        self.overflow()

    def read(self, request: Request, chain: list[int], missing: list[int]) -> None:
        """Blocks of a chain that the GPU does not have come from here, before anything here moves."""
        from_disk = [block for block in missing if block not in self.host]
        self.link_blocks += len(missing) * self.cost
        self.disk_blocks += len(from_disk) * self.cost
        self.waits_for_link = self.waits_for_link or bool(missing)
        self.waits_for_disk = self.waits_for_disk or bool(from_disk)
        self.reads.append((request, chain, from_disk))

    def end_reads(self) -> None:
        for _, chain, from_disk in self.reads:
            self.use(chain, from_disk)
        self.reads.clear()

    def copy(self, now_ps: int) -> int:
        """How long a step that begins now waits."""
        waits = [0]
        if self.link_blocks:
            self.link_free_ps = max(self.link_free_ps, now_ps) + to_ps(self.link_blocks * self.spec.block_s)
            waits += [self.link_free_ps - now_ps] * self.waits_for_link
        if self.disk_blocks:
            self.disk_free_ps = max(self.disk_free_ps, now_ps) + to_ps(self.disk_blocks * self.spec.disk_block_s)
            waits += [self.disk_free_ps - now_ps] * self.waits_for_disk
        self.link_blocks = self.disk_blocks = 0
        self.waits_for_link = self.waits_for_disk = False
        return max(waits)

    # -- swapping

    def can_take(self, n_blocks: int) -> bool:
        return self.spec.swaps and sum(self.swapped_blocks.values()) + n_blocks <= self.spec.n_blocks

    def take(self, request: Request, n_blocks: int) -> None:
        self.swapped.append(request)
        self.swapped_blocks[request] = n_blocks
        self.has_been_out += n_blocks
        self.link_blocks += n_blocks
        self.waits_for_link = True
        self.overflow()

    def bring_back(self, replica: "OracleReplica", now_ps: int) -> None:
        self.hides_waiting = bool(self.swapped)
        if replica.growth() > replica.free_blocks():
            return  # somebody will have to go
        while self.swapped and len(replica.running) < replica.setup.scheduler.seats:
            request = self.swapped[0]
            life = replica.lives[request]
            named = life.chain[: life.stored // replica.id_tokens] if replica.cache else []
            here = [block for block in named if replica.cache and block in replica.cache.holders]
            held = [block for block in here if replica.cache and replica.cache.holders[block]]
            n_needed = replica.blocks(life.stored + 1) - len(held) * self.cost
            if n_needed > replica.free_blocks() - replica.growth():
                return
            self.swapped.pop(0)
            n_blocks = self.swapped_blocks.pop(request)
            self.link_blocks += n_blocks - len(here) * self.cost
            self.has_come_in += n_blocks
            self.waits_for_link = True
            self._resume(replica, request, (here, named))
            life.preempted_ps += now_ps - life.preempted_at_ps
            life.preempted_at_ps = -1

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
        replica.setup.scheduler.on_join(request)
        replica.shrink_cache()
