"""Receiving: the role of decode replicas, which receive requests from prefill replicas."""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import cast

from simserve.engine import lifecycle
from simserve.engine.alarm import TRANSFER_PHASE, Alarm, Clock
from simserve.engine.link import Port
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.role import Role
from simserve.engine.step_run import StepRun
from simserve.schedulers.base import Blocked
from simserve.state.queues import Ordered, Waiting
from simserve.state.request import DONE, TRANSFER, Request

OnRoom = Callable[[Request, Replica, "Receives", int, int], None]
"""Called with each request that gets a slot and blocks, its prefill replica, the receiving side, its prompt tokens
found there and the instant."""


class BeforeHandedOver(Collection[Request]):
    """Waiting requests before the first that another replica prefills, in the order of their queue."""

    def __init__(self, waiting: Waiting, handed_over: Container[Request]) -> None:
        self._waiting = waiting
        self._handed_over = handed_over

    def __iter__(self) -> Iterator[Request]:
        return takewhile(lambda request: request not in self._handed_over, self._waiting)

    def __contains__(self, request: object) -> bool:
        return any(request is each for each in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Receives(Role):
    """A decode replica: requests come with a first token, and decode once their keys and values have arrived.

    At a step boundary it gives slots and blocks to handed-over requests, in order, unless a local request waits for
    its prefill. Under a policy that orders, both wait in its queue: the first request that does not fit keeps out all
    behind it. What its prefix cache has of a prompt is held from then on, and only the rest is sent (vLLM V1,
    NixlConnector). A request with all its KV decodes from the next boundary on.
    """

    def __init__(self, replica: Replica, clock: Clock, recorder: Recorder, on_room: OnRoom) -> None:
        scheduler, batch = replica.scheduler, replica.batch
        self.replica = replica
        self._batch, self._cohort, self._pool, self._memory = batch, batch.cohort, batch.pool, batch.memory
        self._has_ids, self._n_slots = batch.memory.has_ids, batch.cohort.n_slots  # fast: found once
        self._scheduler = scheduler
        self._orders = scheduler.orders
        self._recorder = recorder
        self._on_room = on_room
        self.paths: dict[int, tuple[Port, ...]] = {}
        """Ports on the way from each prefill replica, by its id, as far as they were needed."""
        self._senders: dict[Request, Replica] = {}
        """Prefill replicas of requests without blocks here yet."""
        self._coming_in: Waiting = batch.waiting if scheduler.orders else deque()
        """These, and requests among them with prompts that are computed here."""
        if scheduler.orders:
            startable = BeforeHandedOver(batch.waiting, self._senders)
            batch.startable = batch.view.waiting = startable
            replica.load.elsewhere = self._senders
        else:
            replica.load.queues = (*replica.load.queues, self._coming_in)
        self.granted: dict[Request, None] = {}
        """Requests with blocks here, before their prefill replicas are notified."""
        self._in_transfer: list[tuple[int, int, Request, Replica]] = []
        """A heap of (instant of arrival, number of the transfer, request, prefill replica)."""
        self._n_transfers = 0
        self._max_running = batch.max_running
        self.here: list[Request] = []
        """Requests with all their keys and values that do not decode yet."""
        self._blocked_by: Blocked | None = None
        self._arrival = Alarm(clock, self._on_arrival, TRANSFER_PHASE + replica.id)

    @property
    def in_transit(self) -> list[Request]:
        """Requests handed over that do not decode yet."""
        fetched = [request for _, _, request, _ in self._in_transfer if request.phase is not DONE]
        return [*self.here, *fetched, *self.granted, *self._beside_queue]

    @property
    def _beside_queue(self) -> Collection[Request]:
        return () if self._orders else self._coming_in

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request to prefill here, behind those that came before it."""
        if self._beside_queue:
            self._wait_here(request, now_ps)
        else:
            self.replica.queue_up(request, now_ps)

    def receive(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Accept a request that another replica prefills."""
        may_lead = self._orders and cast(Ordered, self._coming_in).may_lead(request)
        self._senders[request] = sender
        self._wait_here(request, now_ps)
        if self._blocked_by is None or may_lead:
            self.replica.stepping.wake(now_ps)

    def _wait_here(self, request: Request, now_ps: int) -> None:
        replica, step_run = self.replica, self.replica.in_flight.step_run
        replica.load.n_outstanding += 1
        self._coming_in.append(request)
        if step_run is not None:
            replica.decode.arrived(step_run, now_ps)

    def expect(self, at_ps: int, request: Request, sender: Replica) -> None:
        """Schedule the arrival of a request's keys and values."""
        in_transfer, number = self._in_transfer, self._n_transfers + 1
        self._n_transfers = number
        heappush(in_transfer, (at_ps, number, request, sender))
        if in_transfer[0][1] == number:
            self._arrival.set(at_ps)

    def holds(self, request: Request) -> bool:
        """Return whether a request is in transfer, or waits for others that are."""
        return request.phase is TRANSFER or request in self._senders or request in self._beside_queue

    def withdraw(self, request: Request, now_ps: int) -> Replica | None:
        """Drop a request without blocks here; return its prefill replica."""
        self._coming_in.remove(request)
        self.replica.load.count_out()
        self.replica.stepping.wake(now_ps)
        return self._senders.pop(request, None)

    def awaits(self, request: Request) -> bool:
        """Return whether a request of another replica has no blocks here yet."""
        return request in self._senders

    def lose_all(self, now_ps: int) -> list[Request]:
        """Lose all requests that do not decode yet, as this replica fails; their prefill replicas free their blocks, in
        the order in which the prompts were computed."""
        fetched = {request: sender for _, _, request, sender in self._in_transfer if request.phase is not DONE}
        held = self._senders | fetched
        for request in sorted(held, key=lambda each: (each.joined_ps, each.row)):
            lifecycle.give_back(held[request], request, now_ps)
        coming = list(self._senders if self._orders else self._coming_in)
        lost = [*self.here, *fetched, *self.granted, *coming]
        for request in coming:
            self._coming_in.remove(request)
        for requests in (self._senders, self._in_transfer, self.here, self.granted):
            requests.clear()
        self._arrival.due_ps = None
        return lost

    def lose_from(self, sender: Replica, now_ps: int) -> list[Request]:
        """Lose the requests of a prefill replica that fails, unless their keys and values are all here."""
        replica = self.replica
        coming = [request for request, other in self._senders.items() if other is sender]
        fetched = [each[2] for each in self._in_transfer if each[3] is sender and each[2].phase is not DONE]
        if not coming and not fetched:
            return []
        for request in coming:
            self.withdraw(request, now_ps)
        for request in fetched:
            lifecycle.let_go(replica, request, now_ps)
        self._in_transfer = [each for each in self._in_transfer if each[3] is not sender or each[2].phase is DONE]
        heapify(self._in_transfer)
        self._arrival.due_ps = None
        if self._in_transfer:
            self._arrival.set(self._in_transfer[0][0])
        replica.stepping.wake(now_ps)
        return [*coming, *fetched]

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Abandon a request; a transfer in flight ends first, as engines free blocks only then."""
        replica = self.replica
        for at_ps, _, each, _ in self._in_transfer:
            if each is request:
                return at_ps
        if request in self.here:
            self.here.remove(request)
            lifecycle.let_go(replica, request, now_ps)
            replica.stepping.wake(now_ps)
        else:
            sender = self.withdraw(request, now_ps)
            if sender is not None:
                lifecycle.give_back(sender, request, now_ps)
        if request.phase is TRANSFER:
            request.join_step = replica.cohort.step
            self._recorder.span(replica.id, request, replica.cohort.step)
        request.phase = DONE
        return None

    def let_decode(self) -> None:
        """Let the arrived requests decode."""
        replica = self.replica
        for request in self.here:
            if self._has_ids:
                self._memory.receive(request)
            replica.join(request)
        self._batch.n_away = self._batch.n_promised = self._batch.n_away - len(self.here)
        self.here.clear()

    def before_plan(self, now_ps: int) -> None:
        """Give slots and blocks to handed-over requests, unless others wait here."""
        batch, coming_in = self._batch, self._coming_in
        if self.here:
            self.let_decode()
        self._blocked_by = "blocks" if batch.waiting or batch.swapped else None
        if coming_in:
            self._allocate(now_ps)
        batch.n_before_queue = 0 if self._orders else len(coming_in)
        batch.n_promised = batch.n_away

    def after_plan(self, step_run: StepRun | None, now_ps: int) -> Blocked | None:
        """Cut the step run at the next arrival in advance; return what keeps out handed-over requests."""
        if step_run is not None and step_run.n_steps > 1 and self._in_transfer:
            # fast: tests/test_oracle_agrees.py
            n_steps = step_run.steps_begun(self._in_transfer[0][0])
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)
        if not self._senders:
            return None
        if step_run is not None and self._blocked_by == "blocks":
            n_most = self._scheduler.steps_in_order(self.replica.cohort.n_tokens)
            if n_most is not None and n_most < step_run.n_steps:
                step_run.cut(n_most)
        return self._blocked_by

    def _allocate(self, now_ps: int) -> None:
        coming_in, orders = self._coming_in, self._orders
        batch, pool, memory = self._batch, self._pool, self._memory
        n_growing, n_slots = self._cohort.blocks_of_next(), self._n_slots
        free_slots = self._max_running - len(batch.running) - batch.n_away
        while coming_in:
            request = coming_in[0]
            sender = self._senders.get(request)
            if sender is None:
                if orders:
                    return
                request.finder = memory if memory.caches else None
                batch.waiting.append(request)
                coming_in.popleft()
                continue
            if (batch.waiting and not orders) or batch.swapped:
                self._blocked_by = "blocks"
                return
            if free_slots <= 0:
                self._blocked_by = "seats"
                return
            n_next = n_slots if n_slots < request.max_tokens else request.max_tokens
            n_blocks = pool.blocks_in_step(request.prompt_tokens, n_next)
            if self._has_ids:
                n_blocks -= memory.shared_blocks(request, request.prompt_tokens - 1, request.prompt_tokens)
            if n_blocks > pool.free_blocks - n_growing:
                self._blocked_by = "blocks"
                return
            coming_in.popleft()
            del self._senders[request]
            if orders:
                batch.notices.on_admit(request)
            batch.n_away += 1
            free_slots -= 1
            self._on_room(request, sender, self, memory.take_ahead(request), now_ps)
        if orders:
            self._blocked_by = None

    def _on_arrival(self, now_ps: int) -> int | None:
        """Accept arrived keys and values, and free the sender's blocks; return when the next ones arrive."""
        in_transfer = self._in_transfer
        while in_transfer and in_transfer[0][0] <= now_ps:
            _, _, request, sender = heappop(in_transfer)
            if request.phase is DONE:
                lifecycle.let_go(self.replica, request, now_ps)
                continue
            self._recorder.arrive(request.row, now_ps - request.joined_ps)
            lifecycle.give_back(sender, request, now_ps)
            self.here.append(request)
        self.replica.stepping.wake(now_ps)
        return in_transfer[0][0] if in_transfer else None
