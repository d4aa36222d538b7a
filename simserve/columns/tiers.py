"""TierSide: host memory of a replica with requests in columns: swapped ones, and prefixes that are read; Tiers: when
reads and writes of all replicas end."""

from __future__ import annotations

from mypy_extensions import i64

from simserve.columns.batch import BatchColumns
from simserve.columns.live import WAITS
from simserve.columns.prompts import Reading
from simserve.columns.turns import UnitTurns
from simserve.engine.checks import broke
from simserve.engine.cluster import Cluster
from simserve.engine.host_tier import HostStore, HostTier, Read, Sharer
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.integers import NEVER, NONE, Tournament
from simserve.state.planner import BLOCKS, SEATS
from simserve.state.request import Request


class TierSide(Reading):
    """Copies between the GPUs of a replica and its tiers. Copies of a boundary precede its step, as in vLLM before V1
    (worker/worker.py, execute_worker)."""

    def __init__(self, replica: Replica, tier: HostTier, batch: BatchColumns, tiers: Tiers) -> None:
        self._replica, self._tier, self._batch, self._tiers = replica, tier, batch, tiers
        self._memory, self._cohort, self._in_flight = replica.memory, replica.cohort, replica.in_flight
        self._prompts, self._running, self._side = batch.prompts, batch.running, batch.side
        self._live, self.swaps = batch.records.live, batch.swaps
        self.reads_ahead = replica.reads_ahead
        """Prefixes are read while steps go on."""
        self._reads_end_ps: i64 = NEVER
        """When the first of the reads in flight ends."""
        self._reshuffles = replica.scheduler.orders and replica.scheduler.is_stateful
        """Another swapped request may be first to return after each token."""
        if self.reads_ahead:
            batch.prompts.reading = self
        if tier.store is not None:
            tier.store.sharers.append(Sharer(replica.id, tier, self._on_store_change))

    # -- plan ----------------------------------------------------------------------------------------------------------

    def before_plan(self, now_ps: i64) -> None:
        """Let requests decode that have their keys and values again, before others get slots and blocks."""
        self._tier.is_planning = True
        self._side.let_decode(now_ps)
        if self.swaps is not None:
            self._prompts.hides = self._prompts.n_swapped > 0
            self.swaps.let_return(now_ps)

    def begin_read(self, now_ps: i64) -> bool:
        """Begin to read the prefix of the first new request of a plan that needs it; return whether there is one.
        Raises PolicyError for a request with a prefix on its way."""
        live, prompts, memory = self._live, self._prompts, self._memory
        for i in range(prompts.n_chunks):
            place = prompts.places[i]
            request = live.requests.get(place) if live.phase[place] <= WAITS else None
            if request is None or request.finder is not memory:
                continue
            if request in memory.reading:
                rule = "must prefill only requests of view.queue"
                raise broke(self._replica.scheduler, "plan", now_ps, rule, request)
            live.updated(request, place)
            if memory.hit(request)[1] <= prompts.free_blocks and memory.reads_first(request):
                return True
        return False

    def after_plan(self, step_run: StepRun | None, now_ps: i64) -> i64:
        """Lengthen a step by the copies it waits for; return what keeps out swapped requests."""
        cohort, tier, swaps = self._cohort, self._tier, self.swaps
        self._memory.fetch()
        tier.is_planning = False
        wait_ps = tier.copy(now_ps)
        due_ps = self._await_reads()
        if step_run is None:
            return 0
        if due_ps < step_run.end_ps and step_run.n_steps > 1:
            n_done = step_run.steps_done(due_ps)
            step_run.cut(n_done if n_done > 1 else 1)  # their blocks come before those of the read, in turn
        if wait_ps:
            step_run.wait_ps = wait_ps
            step_run.last(step_run.first_ps + wait_ps)
        if cohort.drops is not None and step_run.n_decoding:
            # what leaves a window gets its ids then, and is copied from the end of that step on
            n_steps = cohort.drops.next_step - cohort.step
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)
        n_swapped = self._prompts.n_swapped
        if swaps is None:
            return 0
        if n_swapped > 1 and self._reshuffles:
            step_run.cut(1)
        step_run.queue_len += n_swapped
        if not n_swapped:
            return 0
        return SEATS if self._running.n >= self._prompts.slots else BLOCKS

    # -- commit --------------------------------------------------------------------------------------------------------

    def before_commit(self, step_run: StepRun, now_ps: i64) -> None:
        """Record the wait of a step."""
        if step_run.wait_ps:
            self._replica.recorder.wait_for_copies(self._replica.id, step_run.wait_ps)

    def after_commit(self, now_ps: i64) -> None:
        """Copy to host memory."""
        self._tier.copy(now_ps)

    # -- reads that end ------------------------------------------------------------------------------------------------

    def is_reading(self, place: i64) -> bool:
        """Return whether the prefix of a request is on its way."""
        return len(self._memory.reading) > 0 and self._live.requests[place] in self._memory.reading

    @property
    def reads(self) -> bool:
        """Prefixes are on their way."""
        return len(self._memory.reading) > 0

    def stop_reading(self, place: i64) -> i64:
        """Let a request no longer wait for its prefix; return when a copy for it alone ends, NONE if there is none."""
        request: Request | None = self._live.requests.get(place)
        read: Read | None = None if request is None else self._memory.reading.get(request)
        if request is None or read is None:
            return NONE
        if read.request is request:
            return read.end_ps
        del self._memory.reading[request]
        return NONE

    def fail(self) -> None:
        """Lose the copies in flight."""
        self._memory.reading.clear()
        self._await_reads()
        self._tier.fail()

    def _await_reads(self) -> i64:
        """Note and return when the first of the reads in flight ends; NEVER: there is none."""
        end_ps: i64 = NEVER
        for read in self._memory.reading.values():
            read_ps: i64 = read.end_ps
            if read_ps < end_ps:
                end_ps = read_ps
        if end_ps != self._reads_end_ps:
            self._reads_end_ps = end_ps
            self._tiers.reads.set(self._replica.id, end_ps)
        return end_ps

    def end_reads(self, now_ps: i64) -> bool:
        """Let requests find what has been read; return whether the replica is idle, and plans at this instant."""
        self._in_flight.see(now_ps)
        self._in_flight.free(self._memory.end_reads(now_ps))
        self._await_reads()
        return self._batch.wake(now_ps)

    def _on_store_change(self, now_ps: int) -> None:
        """Plan again at the next step boundary if the head of the queue waits for blocks: its hit may change."""
        if self._prompts.blocked == BLOCKS and self._in_flight.step_run is not None:
            self._tiers.turns.follow(self._replica.id, self._batch.wake(now_ps))


class Tiers:
    """Ends of reads of all replicas, and of the copies to and from stores that they share."""

    def __init__(self, cluster: Cluster, turns: UnitTurns) -> None:
        self._stores: list[HostStore] = []
        self._clock = cluster.clock
        self.reads = Tournament(1)
        """When the first read of each replica ends."""
        self.sides: dict[int, TierSide] = {}
        """Sides of replicas with tiers, by id."""
        self.turns = turns

    def add(self, place: int, side: TierSide, store: HostStore | None) -> None:
        """Add the side of a replica, which may share a store."""
        self.sides[place] = side
        if store is not None and store not in self._stores:
            self._stores.append(store)

    def next_ps(self) -> i64:
        """Return when something ends next; NEVER if nothing does."""
        least = self.reads.least()
        for store in self._stores:
            due_ps = store.due_ps
            if due_ps is not None and due_ps < least:
                least = due_ps
        return least

    def see(self, now_ps: i64) -> None:
        """Let the stores know the instant."""
        self._clock._now = now_ps

    def take(self, now_ps: i64) -> None:
        """End what ends at this instant."""
        for store in self._stores:
            if store.due_ps == now_ps:
                store.take(now_ps)
        while self.reads.least() == now_ps:
            place = self.reads.first()
            self.turns.follow(place, self.sides[place].end_reads(now_ps))
