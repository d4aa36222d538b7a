"""Handoff: requests whose prompt is computed go to a decode replica, which fetches their keys and values."""

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
    """What ties prefill and decode replicas together."""

    router: Router
    """Which decode replica a request goes to."""
    link: LinkSpec
    is_pushed: bool = False
    """Decode replicas give blocks before a prompt is computed, and are sent its keys and values."""
    splitter: Splitter | None = None
    """Which requests are prefilled apart; None: all."""

    @property
    def keeps(self) -> bool:
        """Prefill replicas answer some requests."""
        return self.splitter is not None and self.splitter.keeps


PickReceiver = Callable[[Request], int]
"""The place of a decode replica among all of them."""


class Handoff:
    """Between prefill and decode replicas: routes whose prompt is computed, before anybody arrives at that instant."""

    def __init__(self, clock: Clock, recorder: Recorder, link: Link, pick: PickReceiver) -> None:
        self._events = clock.events
        self._recorder = recorder
        self._link = link
        self._pick = pick
        self._receivers: list[Receiving] = []
        self._ports: dict[int, Port] = {}
        self.done: list[tuple[Request, Replica]] = []
        """Whose prompt is computed, and nobody has been told of yet."""
        self._due = Alarm(clock, self._route, SEND_PHASE - 1)

    def connect(self, replica: Replica) -> None:
        """Give a replica its port; it sends what it has computed, or receives."""
        self._ports[replica.index] = self._link.port()
        if isinstance(replica, Receiving):
            replica.on_room = self.on_room
            self._receivers.append(replica)
        else:
            self._connect_sender(replica)

    def _connect_sender(self, sender: Replica) -> None:
        if isinstance(sender, Sending):
            sender.handoff = self
            sender.hand_over = self._note
        else:
            sender.hand_over = self._take

    def _note(self, request: Request, sender: Replica, now_ps: int) -> None:
        """A prompt is computed; its blocks stay where they are until they are fetched."""
        self.done.append((request, sender))

    def _take(self, request: Request, sender: Replica, now_ps: int) -> None:
        """The same of a replica that does not say when its commit is over."""
        self.done.append((request, sender))
        self._due.set(now_ps)

    def settle(self, now_ps: int) -> None:
        """A commit is over that has computed prompts.

        fast: if nothing else happens at this instant, what comes next is to route them.
        """
        if self._events and self._events[0][0] <= now_ps:
            self._due.set(now_ps)
        else:
            self._route(now_ps)

    def _route(self, now_ps: int) -> None:
        done, self.done = self.done, []
        for request, sender in done:
            receiver = self._receivers[self._pick(request)]
            self._recorder.hand_over(request.row, receiver.index)
            receiver.receive(request, sender, now_ps)

    def on_room(self, request: Request, sender: Replica, receiver: Receiving, now_ps: int) -> None:
        """The receiver has blocks for it, so the transfer begins."""
        self._recorder.find_room(request.row, now_ps - request.joined_ps)
        ports = self._ports[sender.index], self._ports[receiver.index]
        receiver.expect(self._link.arrival_ps(request.prompt_tokens, ports, now_ps), request, sender)


class Sending(Replica):
    """A prefill replica that steps on its own, so that after its commits nobody else's can follow unseen."""

    handoff: Handoff

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Commit, and see to those whose prompt is computed."""
        super().commit(step_run, now_ps)
        if self.handoff.done:
            self.handoff.settle(now_ps)
