"""Replica: the parts of one copy of a model, and what its policy sees of its requests."""

from collections.abc import Collection, Sequence

from simserve.engine.alarm import Clock
from simserve.engine.decode import Decode
from simserve.engine.host_tier import HostTier
from simserve.engine.live_view import LiveView
from simserve.engine.lock_step import Stepping
from simserve.engine.recorder import Recorder
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.slowness import Slowness
from simserve.errors import InvariantError
from simserve.schedulers.base import Scheduler
from simserve.state.request import Request
from simserve.state.step_plan import Blocked
from simserve.state.view import ReplicaView


class SeenRequests:
    """Requests of a replica as objects: where its policy looks at them, and those that are there as the run ends."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.waiting = scheduler.queue()
        self.startable: Collection[Request] = self.waiting
        """Waiting requests that the scheduler may start."""
        self.prefilling: list[Request] = []
        self.running: dict[Request, None] = {}
        self.elsewhere: list[Request] = []
        """Requests in host memory, or on their way between replicas, as the run ends."""
        self.n_away = 0
        """Requests with blocks here then that are elsewhere."""

    @property
    def requests(self) -> Sequence[Request]:
        """All requests that are there."""
        return (*self.running, *self.waiting, *self.elsewhere)


class Replica:
    """One copy of a model, on one or more GPUs; or one rank of it with a scheduler of its own.

    Its parts keep what is true: `memory` and `pool` its blocks, `cohort` what decodes, `in_flight` the steps that are
    not over, `decode` what these do, `load` what routers see, `stepping` the ranks that step with it.
    """

    def __init__(
        self,
        index: int,
        setup: ReplicaSetup,
        clock: Clock,
        recorder: Recorder,
        *,
        is_alone: bool = False,
        tier: HostTier | None = None,
    ) -> None:
        self.id = index
        self.is_alone = is_alone
        """All requests come to this replica, and none waits for an answer."""
        self.recorder, self.tier = recorder, tier
        self.memory = setup.memory(recorder, tier)
        self.pool, self.cohort = self.memory.pool, setup.cohort(self.memory)
        self.scheduler = setup.scheduler
        self.batch = batch = SeenRequests(setup.scheduler)
        limits = self.pool.total_blocks, self.pool.block_size, setup.max_model_len
        self.view = ReplicaView(batch.waiting, batch.prefilling, batch.running, *limits)
        """What the scheduler sees, if it looks at requests."""
        self.view.decode_tokens, self.view.layers = self.cohort.n_tokens, self.pool.layers
        self.view.finder = self.memory if self.memory.caches else None
        self.in_flight = setup.in_flight(self.cohort, self.memory)
        self.load = LiveView(index, self.memory, self.in_flight, clock)
        self.decode: Decode = setup.decode(self.cohort, self.pool)
        self.streams = setup.scheduler.stream
        self.has_common_kv = setup.has_common_kv
        self.cost = setup.cost
        """Cost model of its steps."""
        self.n_ahead = int(setup.async_scheduling)
        """Steps that are planned ahead."""
        self.swaps, self.reads_ahead = setup.swaps and tier is not None, tier is not None and tier.overlaps
        """Preempted decoding requests go to host memory; and prefixes are read from it while steps go on."""
        self.stepping = Stepping(index)
        """Ranks that step with it."""
        self.slowness = Slowness()
        """When its steps take longer."""
        self.blocked_by: Blocked | None = None
        """Why the last plan of the run did not admit the head of the queue."""

    def can_adopt(self, n_most: int) -> bool:
        """Return whether it can use keys and values of the first pool's model, of a request of up to n_most tokens."""
        return self.has_common_kv and n_most <= self.view.max_model_len

    def check_blocks(self, at_s: float) -> None:
        """Raise InvariantError unless the requests that are there as the run ends hold all blocks in use."""
        pool, batch = self.pool, self.batch
        held_blocks = pool.used_blocks + pool.reserved_blocks
        all_blocks = pool.free_blocks + held_blocks
        if all_blocks != pool.total_blocks:
            raise InvariantError("free + held = all blocks", all_blocks, pool.total_blocks, at_s)
        if held_blocks and not batch.running and not batch.n_away and not self.memory.reading:
            raise InvariantError(f"blocks held by no request on replica {self.id}", held_blocks, 0, at_s)

    def why_waiting(self) -> str:
        """Explain a deadlock: what waits, and for what."""
        n_running, n_waiting = len(self.batch.running), len(self.batch.waiting)
        return (
            f"deadlock: replica {self.id} is idle with {n_running} requests admitted and {n_waiting} waiting, "
            f"kept out by {self.blocked_by or 'its scheduler'}; {self.pool.free_blocks} KV blocks are free"
        )
