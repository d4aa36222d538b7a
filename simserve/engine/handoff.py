"""Handoff: routes prefilled requests to decode replicas, which fetch their keys and values."""

from collections.abc import Callable
from dataclasses import dataclass

from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.link import Link, LinkSpec, Port
from simserve.engine.receiving import Receiving
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.routers.base import Router
from simserve.splitters.base import Splitter
from simserve.state.request import Request


@dataclass(frozen=True)
class Disaggregation:
    """How prefill and decode replicas are connected."""

    router: Router
    """Picks the decode replica of a request."""
    link: LinkSpec
    is_pushed: bool = False
    """Decode replicas allocate blocks before the prompt is computed, and KV is pushed to them."""
    splitter: Splitter | None = None
    """Decides which requests are prefilled remotely; None: all."""

    @property
    def keeps(self) -> bool:
        """Prefill replicas decode some requests themselves."""
        return self.splitter is not None and self.splitter.keeps


PickReceiver = Callable[[Request], Replica]
"""Returns the decode replica of a request."""


class Handoff:
    """Routes prefilled requests to decode replicas, before new arrivals of that instant."""

    def __init__(self, clock: Clock, recorder: Recorder, link: Link, pick: PickReceiver) -> None:
        self._events = clock.events
        self._recorder = recorder
        self._link = link
        self._pick = pick
        self._receivers: dict[int, Receiving] = {}
        """Decode replicas by member id."""
        self._ports: dict[int, Port] = {}
        self.done: list[tuple[Request, Replica]] = []
        """Prefilled requests that are not routed yet."""
        self._due = Alarm(clock, self._route, SEND_PHASE - 1)

    def connect(self, replica: Replica) -> None:
        """Give a replica its port, as sender or receiver."""
        self._ports[replica.index] = self._link.port()
        if isinstance(replica, Receiving):
            replica.on_room = self.on_room
            self._receivers[replica.id] = replica
        else:
            self._connect_sender(replica)

    def _connect_sender(self, sender: Replica) -> None:
        if isinstance(sender, Sending):
            sender.handoff = self
            sender.hand_over = self._note
        else:
            sender.hand_over = self._take

    def _note(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Note a computed prompt; its blocks stay allocated until they are fetched."""
        self.done.append((request, sender))

    def _take(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Note a computed prompt of a replica that does not signal the end of its commit."""
        self.done.append((request, sender))
        self._due.set(now_ps)

    def settle(self, now_ps: int) -> None:
        """Route prefilled requests after a commit.

        fast: if no other event happens at this instant, they are routed at once.
        """
        if self._events and self._events[0][0] <= now_ps:
            self._due.set(now_ps)
        else:
            self._route(now_ps)

    def _route(self, now_ps: int) -> None:
        done, self.done = self.done, []
        for request, sender in done:
            receiver = self._receivers[self._pick(request).id]
            self._recorder.hand_over(request.row, receiver.index)
            receiver.receive(request, sender, now_ps)

    def on_room(self, request: Request, sender: Replica, receiver: Receiving, now_ps: int) -> None:
        """Start the transfer: the receiver has blocks for it."""
        self._recorder.find_room(request.row, now_ps - request.joined_ps)
        ports = self._ports[sender.index], self._ports[receiver.index]
        receiver.expect(self._link.arrival_ps(request.prompt_tokens, ports, now_ps), request, sender)


class Sending(Replica):
    """A prefill replica that steps on its own and signals the end of each commit."""

    handoff: Handoff

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Commit, then route the prefilled requests."""
        super().commit(step_run, now_ps)
        if self.handoff.done:
            self.handoff.settle(now_ps)
