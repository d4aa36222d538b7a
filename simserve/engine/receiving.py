"""Receiving: decode replicas, which take in requests whose prompt another replica computes."""

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
    """A decode replica: requests come with a first token, and decode once their keys and values are here.

    At a step boundary it lets in who came, in order, while seats and blocks last and nobody waits to be computed here,
    preempted or come before; blocks are taken then. Who has arrived decodes from the next boundary on.
    """

    on_room: "Callable[[Request, Replica, Receiving, int], None]"
    """Told of each request that has a seat and blocks here from now on."""

    def __init__(self, index: int, *args: object) -> None:
        super().__init__(index, *args)  # type: ignore[arg-type]  # whatever a replica is made of
        self.coming_in: deque[tuple[Request, Replica | None]] = deque()
        """Who has no blocks here yet, and who computes their prompt; None: this one, once it is their turn."""
        self.progress: dict[Request, None] = {}
        """Those who have blocks, and their prefill replica has not heard of it yet."""
        self._in_transfer: list[tuple[int, int, Request, Replica]] = []
        """A heap of (instant of arrival, number of the transfer, who, from where)."""
        self._n_transfers = 0
        self._most_running = self._scheduler.max_running
        self._here: list[Request] = []
        self._kept_out_by: Blocked | None = None
        self._arrival = Alarm(self._clock, self._on_arrival, TRANSFER_PHASE + index)

    @property
    def on_their_way(self) -> list[Request]:
        """All that were handed over and do not decode yet."""
        fetched = [request for _, _, request, _ in self._in_transfer if request.phase is not DONE]
        return [*self._here, *fetched, *self.progress, *(request for request, _ in self.coming_in)]

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Take in a request whose prompt is computed here; it goes behind those who came before it."""
        if self.coming_in:
            self.n_outstanding += 1
            self.coming_in.append((request, None))
        else:
            super().enqueue(request, now_ps)

    def receive(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Take in a request whose prompt another replica computes."""
        self.n_outstanding += 1
        self.coming_in.append((request, sender))
        if self._kept_out_by is None:
            self.ring(now_ps)

    def expect(self, at_ps: int, request: Request, sender: Replica) -> None:
        """Its keys and values will be here at that instant."""
        self._n_transfers += 1
        heappush(self._in_transfer, (at_ps, self._n_transfers, request, sender))
        if self._in_transfer[0][0] == at_ps:
            self._arrival.set(at_ps)

    @property
    def n_waiting(self) -> int:
        """Requests that hold neither seat nor blocks."""
        return super().n_waiting + len(self.coming_in)

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """As usual; what is on the link arrives first, as engines wait for transfers before they free blocks."""
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
            place, sender = next((i, who) for i, (each, who) in enumerate(self.coming_in) if each is request)
            assert sender is not None, "its prompt was computed elsewhere"
            del self.coming_in[place]
            sender.give_back(request, now_ps)
        request.phase = DONE
        request.join_step = self.cohort.step
        self._recorder.span(self.index, request, self.cohort.step)
        self.n_outstanding -= 1
        self.ring(now_ps)
        return None

    def decide(self, now_ps: int) -> None:
        """Let those decode whose keys and values are here, let others in, and then as any replica."""
        if self._here:
            for request in self._here:
                self._join(request)
            self._here.clear()
        self._kept_out_by = "blocks" if self.batch.waiting else None
        if self.coming_in:
            self._let_them_in(now_ps)
        self.n_before_queue = len(self.coming_in)
        self.batch.n_promised = self.n_away
        super().decide(now_ps)
        if self.coming_in and self._kept_out_by and self._blocked_by is None:
            self._blocked_code = BLOCKED_BY[self._kept_out_by]
        step_run = self.step_run
        if step_run is not None and step_run.n_steps > 1 and self._in_transfer:
            # fast: the bell is answered before it rings; tests/test_oracle_agrees.py
            n_steps = step_run.steps_begun(self._in_transfer[0][0])
            if n_steps < step_run.n_steps:
                step_run.cut(n_steps)

    def _join(self, request: Request) -> None:
        self.n_away -= 1
        self.batch.running[request] = None
        self.cohort.join(request, self._rows.output_tokens[request.row] - request.emitted_tokens)
        if self._is_stateful:
            self._scheduler.on_join(request)

    def _let_them_in(self, now_ps: int) -> None:
        coming_in, pool, block_size = self.coming_in, self.pool, self.pool.block_size
        free_blocks = pool.free_blocks - self.cohort.blocks_to_grow(1)
        free_slots = self._most_running - len(self.batch.running) - self.n_away
        while coming_in:
            request, sender = coming_in[0]
            if sender is None:
                self.batch.waiting.append(request)
                coming_in.popleft()
                continue
            if self.batch.waiting:
                self._kept_out_by = "blocks"
                return
            if free_slots <= 0:
                self._kept_out_by = "seats"
                return
            if request.prompt_tokens // block_size >= free_blocks:  # a token more than the prompt must fit
                self._kept_out_by = "blocks"
                return
            coming_in.popleft()
            n_blocks = -(-request.prompt_tokens // block_size)
            pool.take(n_blocks, False)
            self.n_away += 1
            free_blocks -= n_blocks
            free_slots -= 1
            self.on_room(request, sender, self, now_ps)

    def _on_arrival(self, now_ps: int) -> None:
        """Keys and values are here, so the sender's blocks are free."""
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
        self.ring(now_ps)

    def _let_go(self, request: Request) -> None:
        """It has ended where its prompt was computed: what was kept for it is free."""
        n_blocks = self.batch.view.blocks_for(request.prompt_tokens)
        self.pool.release(n_blocks)
        if self.step_run is not None:
            self._n_given_back += n_blocks
        self.n_away -= 1
        self.n_outstanding -= 1


class ReceivingLane(Receiving, Lane):
    """One that is a lane of a pipeline."""


class ReceivingRank(Receiving, Rank):
    """One that steps together with others."""
