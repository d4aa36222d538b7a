"""Handoff: requests whose prompt is computed go to a decode replica, which fetches their keys and values."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from simserve.engine.alarm import SEND_PHASE, TRANSFER_PHASE, Alarm, Clock
from simserve.engine.link import Link, LinkSpec, Port
from simserve.engine.lockstep import Rank
from simserve.engine.pipeline import Lane
from simserve.engine.recorder import BLOCKED_BY
from simserve.engine.replica import Replica
from simserve.routers.base import Router
from simserve.schedulers.base import Blocked
from simserve.state.request import DONE, TRANSFER, Request


@dataclass(frozen=True)
class Disaggregation:
    """What ties prefill and decode replicas together."""

    router: Router
    """Which decode replica a request goes to."""
    link: LinkSpec


PickReceiver = Callable[[Request, Sequence[Replica]], int]


class Handoff:
    """Between prefill and decode replicas: routes whose prompt is computed, before anybody arrives at that instant."""

    def __init__(self, clock: Clock, link: Link, pick: PickReceiver) -> None:
        self._link = link
        self._pick = pick
        self._receivers: list[Receiving] = []
        self._ports: dict[int, Port] = {}
        self._done: list[tuple[Request, Replica]] = []
        self._due = Alarm(clock, self._route, SEND_PHASE - 1)

    def connect(self, replica: Replica) -> None:
        """Give a replica its port; it sends what it has computed, or receives."""
        self._ports[replica.index] = self._link.port()
        if isinstance(replica, Receiving):
            replica.fetch = self.fetch
            self._receivers.append(replica)
        else:
            replica.hand_over = self.take

    def take(self, request: Request, sender: Replica, now_ps: int) -> None:
        """A prompt is computed; its blocks stay where they are until they are fetched."""
        if not self._done:
            self._due.set(now_ps)
        self._done.append((request, sender))

    def fetch(self, request: Request, sender: Replica, receiver: Replica, now_ps: int) -> int:
        """The receiver has blocks for it; returns when keys and values will be there."""
        ports = self._ports[sender.index], self._ports[receiver.index]
        return self._link.arrival_ps(request.prefilled_tokens, ports, now_ps)

    def _route(self, now_ps: int) -> None:
        done, self._done = self._done, []
        for request, sender in done:
            self._receivers[self._pick(request, self._receivers)].receive(request, sender, now_ps)


class Receiving(Replica):
    """A decode replica: requests come with a first token, and decode once their keys and values are here.

    At a step boundary it lets in who came, in order, while seats and blocks last and nobody preempted waits; blocks are
    taken then, and the transfer begins. Who has arrived decodes from the next boundary on.
    """

    fetch: Callable[[Request, Replica, Replica, int], int]

    def __init__(self, index: int, *args: object) -> None:
        super().__init__(index, *args)  # type: ignore[arg-type]  # whatever a replica is made of
        self.coming_in: deque[tuple[Request, Replica]] = deque()
        """Who has no blocks here yet, and where their keys and values are."""
        self._in_transfer: list[tuple[int, int, Request, Replica]] = []
        """A heap of (instant of arrival, number of the transfer, who, from where)."""
        self._n_transfers = 0
        self._most_running = self._scheduler.seats
        self._here: list[Request] = []
        self._kept_out_by: Blocked | None = None
        self._arrival = Alarm(self._clock, self._on_arrival, TRANSFER_PHASE + index)

    @property
    def on_their_way(self) -> list[Request]:
        """All that were handed over and do not decode yet."""
        fetched = [request for _, _, request, _ in self._in_transfer]
        return [*self._here, *fetched, *(request for request, _ in self.coming_in)]

    @property
    def n_waiting(self) -> int:
        """Those who have no blocks here yet, and whom it has preempted."""
        return super().n_waiting + len(self.coming_in)

    def receive(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Take in a request whose prompt another replica has computed."""
        self.n_outstanding += 1
        self._recorder.hand_over(request.row, self.index)
        self.coming_in.append((request, sender))
        if self._kept_out_by is None:
            self.ring(now_ps)

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
            self.seats.give_back(request, request.prefilled_tokens)
        else:
            sender = next(sender for each, sender in self.coming_in if each is request)
            self.coming_in.remove((request, sender))
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
        self._let_them_in(now_ps)
        self.n_before_queue = len(self.coming_in)
        super().decide(now_ps)
        if self.coming_in and self._kept_out_by and self._blocked_by is None:
            self._blocked_code = BLOCKED_BY[self._kept_out_by]

    def _join(self, request: Request) -> None:
        self.n_away -= 1
        self.seats.running[request] = None
        self.cohort.join(request, self._rows.output_tokens[request.row] - request.emitted_tokens)
        if self._follows:
            self._scheduler.on_join(request)

    def _let_them_in(self, now_ps: int) -> None:
        self._kept_out_by = "blocks" if self.seats.waiting else None
        if not self.coming_in:
            return
        free_blocks = self.pool.free_blocks - self.cohort.blocks_to_grow(1)
        free_seats = self._most_running - len(self.seats.running) - len(self._in_transfer)
        while self.coming_in and not self.seats.waiting:
            request, sender = self.coming_in[0]
            if free_seats <= 0:
                self._kept_out_by = "seats"
                return
            if self.seats.view.blocks_for(request.prefilled_tokens + 1) > free_blocks:
                self._kept_out_by = "blocks"
                return
            self.coming_in.popleft()
            n_blocks = self.seats.view.blocks_for(request.prefilled_tokens)
            self.pool.take(n_blocks, from_reserved=False)
            self.n_away += 1
            free_blocks -= n_blocks
            free_seats -= 1
            self._recorder.fetch(request.row, now_ps - request.joined_ps)
            at_ps = self.fetch(request, sender, self, now_ps)
            self._n_transfers += 1
            heappush(self._in_transfer, (at_ps, self._n_transfers, request, sender))
            if self._in_transfer[0][0] == at_ps:
                self._arrival.set(at_ps)

    def _on_arrival(self, now_ps: int) -> None:
        """Keys and values are here, so the sender's blocks are free."""
        while self._in_transfer and self._in_transfer[0][0] <= now_ps:
            _, _, request, sender = heappop(self._in_transfer)
            self._recorder.arrive(request.row, now_ps - request.joined_ps)
            sender.give_back(request, now_ps)
            self._here.append(request)
        if self._in_transfer:
            self._arrival.set(self._in_transfer[0][0])
        self.ring(now_ps)


class ReceivingLane(Receiving, Lane):
    """One that is a lane of a pipeline."""


class ReceivingRank(Receiving, Rank):
    """One that steps together with others."""
