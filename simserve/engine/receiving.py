"""Receiving: decode replicas, which receive requests from prefill replicas."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from simserve.engine.alarm import TRANSFER_PHASE, Alarm
from simserve.engine.lockstep import Rank
from simserve.engine.pipeline import Lane
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.schedulers.base import Blocked
from simserve.state.request import DONE, TRANSFER, Request


class Receiving(Replica):
    """A decode replica: requests come with a first token, and decode once their keys and values have arrived.

    At a step boundary it gives slots and blocks to handed-over requests, in order, unless a local request waits for
    its prefill. A request with all its KV decodes from the next boundary on.
    """

    on_room: "Callable[[Request, Replica, Receiving, int], None]"
    """Called with each request that gets a slot and blocks here."""

    def __init__(self, index: int, *args: object) -> None:
        super().__init__(index, *args)  # type: ignore[arg-type]  # passed through
        self.coming_in: deque[tuple[Request, Replica | None]] = deque()
        """(request, prefill replica) without blocks here yet; None: its prompt is computed here."""
        self.granted: dict[Request, None] = {}
        """Requests with blocks here, before their prefill replicas are notified."""
        self._in_transfer: list[tuple[int, int, Request, Replica]] = []
        """A heap of (instant of arrival, number of the transfer, request, prefill replica)."""
        self._n_transfers = 0
        self._max_running = self._scheduler.max_running
        self._here: list[Request] = []
        self._hand_off_blocked_by: Blocked | None = None
        self._arrival = Alarm(self._clock, self._on_arrival, TRANSFER_PHASE + index)

    @property
    def in_transit(self) -> list[Request]:
        """Requests handed over that do not decode yet."""
        fetched = [request for _, _, request, _ in self._in_transfer if request.phase is not DONE]
        return [*self._here, *fetched, *self.granted, *(request for request, _ in self.coming_in)]

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request to prefill here, behind those that came before it."""
        if self.coming_in:
            self.n_outstanding += 1
            self.coming_in.append((request, None))
        else:
            super().enqueue(request, now_ps)

    def receive(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Accept a request that another replica prefills."""
        self.n_outstanding += 1
        self.coming_in.append((request, sender))
        if self._hand_off_blocked_by is None:
            self.wake(now_ps)

    def expect(self, at_ps: int, request: Request, sender: Replica) -> None:
        """Schedule the arrival of a request's keys and values."""
        self._n_transfers += 1
        heappush(self._in_transfer, (at_ps, self._n_transfers, request, sender))
        if self._in_transfer[0][0] == at_ps:
            self._arrival.set(at_ps)

    @property
    def n_waiting(self) -> int:
        """Requests without a slot or blocks."""
        return super().n_waiting + len(self.coming_in)

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Abandon a request; a transfer in flight ends first, as engines free blocks only then."""
        if request.phase is not TRANSFER:
            return super().abandon(request, now_ps)
        for at_ps, _, each, _ in self._in_transfer:
            if each is request:
                return at_ps
        if request in self._here:
            self._here.remove(request)
            self.n_away -= 1
            self.batch.give_back(request, request.prefilled_tokens)
        else:
            place, sender = next((i, origin) for i, (each, origin) in enumerate(self.coming_in) if each is request)
            assert sender is not None, "its prompt was computed elsewhere"
            del self.coming_in[place]
            sender.give_back(request, now_ps)
        request.phase = DONE
        request.join_step = self.cohort.step
        self._recorder.span(self.index, request, self.cohort.step)
        self.n_outstanding -= 1
        self.wake(now_ps)
        return None

    def decide(self, now_ps: int) -> None:
        """Start decoding the arrived requests, allocate room for others, then plan as any replica."""
        if self._here:
            for request in self._here:
                self._join(request)
            self._here.clear()
        self._hand_off_blocked_by = "blocks" if self.batch.waiting else None
        if self.coming_in:
            self._allocate(now_ps)
        self.n_before_queue = len(self.coming_in)
        self.batch.n_promised = self.n_away
        super().decide(now_ps)
        if self.coming_in and self._hand_off_blocked_by and self._blocked_by is None:
            self._blocked_code = BLOCKED_BY[self._hand_off_blocked_by]
        step_run = self.step_run
        if step_run is not None and step_run.n_steps > 1 and self._in_transfer:
            # fast: cut at the next arrival in advance; tests/test_oracle_agrees.py
            n_steps = step_run.steps_begun(self._in_transfer[0][0])
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)

    def _join(self, request: Request) -> None:
        self.n_away -= 1
        self.batch.running[request] = None
        self.cohort.join(request, self._rows.output_tokens[request.row] - request.emitted_tokens)
        if self._is_stateful:
            self._scheduler.on_join(request)

    def _allocate(self, now_ps: int) -> None:
        coming_in, pool, block_size = self.coming_in, self.pool, self.pool.block_size
        free_blocks = pool.free_blocks - self.cohort.blocks_to_grow(1)
        free_slots = self._max_running - len(self.batch.running) - self.n_away
        while coming_in:
            request, sender = coming_in[0]
            if sender is None:
                self.batch.waiting.append(request)
                coming_in.popleft()
                continue
            if self.batch.waiting:
                self._hand_off_blocked_by = "blocks"
                return
            if free_slots <= 0:
                self._hand_off_blocked_by = "seats"
                return
            if request.prompt_tokens // block_size >= free_blocks:  # room for the prompt and one more token
                self._hand_off_blocked_by = "blocks"
                return
            coming_in.popleft()
            n_blocks = -(-request.prompt_tokens // block_size)
            pool.take(n_blocks, False)
            self.n_away += 1
            free_blocks -= n_blocks
            free_slots -= 1
            self.on_room(request, sender, self, now_ps)

    def _on_arrival(self, now_ps: int) -> None:
        """Accept arrived keys and values, and free the sender's blocks."""
        in_transfer = self._in_transfer
        while in_transfer and in_transfer[0][0] <= now_ps:
            _, _, request, sender = heappop(in_transfer)
            if request.phase is DONE:
                self._let_go(request)
                continue
            self._recorder.arrive(request.row, now_ps - request.joined_ps)
            sender.give_back(request, now_ps)
            self._here.append(request)
        if in_transfer:
            self._arrival.set(in_transfer[0][0])
        self.wake(now_ps)

    def _let_go(self, request: Request) -> None:
        """Free the room of a request that ended on its prefill replica."""
        n_blocks = self.batch.view.blocks_for(request.prompt_tokens)
        self.pool.release(n_blocks)
        if self.step_run is not None:
            self._n_given_back += n_blocks
        self.n_away -= 1
        self.n_outstanding -= 1


class ReceivingLane(Receiving, Lane):
    """A decode replica that is a pipeline lane."""


class ReceivingRank(Receiving, Rank):
    """A decode replica that steps in lockstep."""
