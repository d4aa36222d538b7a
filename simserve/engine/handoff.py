"""Handoff: routes requests from prefill to decode replicas, and their keys and values over the link."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from simserve.engine import lifecycle
from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.link import Link, LinkSpec, Port
from simserve.engine.receiving import Receives
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.role import Role
from simserve.engine.step_run import StepRun
from simserve.routers.base import Router
from simserve.splitters.base import Splitter
from simserve.state.request import DONE, TRANSFER, Request


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


PickReceiver = Callable[[Request], Replica | None]
"""Returns the decode replica of a request; None: none is ready."""


class Handoff:
    """Routes prefilled requests to decode replicas, before new arrivals of that instant."""

    is_pushed = False
    """Decode replicas give blocks before a prompt is computed."""

    def __init__(self, clock: Clock, recorder: Recorder, link: Link, router: Router, pick: PickReceiver) -> None:
        self.router, self.pick = router, pick
        """The router of decode replicas, and what asks it."""
        self._clock = clock
        self._recorder = recorder
        self._link = link
        self._sends_all = link.spec.sizes.is_plain
        """All layers keep all tokens, so no size needs to be computed."""
        self._receivers: dict[int, Receives] = {}
        """Sides of decode replicas, by member id."""
        self._ports: dict[int, tuple[Port, ...]] = {}
        """Ports by the id of the first lane on the same GPUs."""
        self._done: list[tuple[Request, Replica]] = []
        """Prefilled requests that are not routed yet."""
        self.held: list[tuple[Request, Replica]] = []
        """Requests that wait for a decode replica to be ready, with their prefill replicas."""
        self._due = Alarm(clock, self._route, SEND_PHASE - 1)

    def add_receiver(self, replica: Replica) -> None:
        """Let a replica decode what others prefill."""
        self._add_ports(replica, 1)
        side = self._receivers[replica.id] = Receives(replica, self._clock, self._recorder, self._on_room)
        replica.play(side)

    def add_sender(self, replica: Replica) -> Role:
        """Let a replica prefill for others."""
        self._add_ports(replica, replica.stepping.n_stages)
        side = self._sending_side(replica)
        replica.play(side)
        return side

    def _add_ports(self, replica: Replica, n_stages: int) -> None:
        if replica.id == replica.stepping.first_lane:
            self._ports[replica.id] = self._link.ports(n_stages)

    def _ports_of(self, replica: Replica) -> tuple[Port, ...]:
        return self._ports[replica.stepping.first_lane]

    def arrival_ps(self, prompt_tokens: int, first: int, sender: Replica, receiver: Receives, now_ps: int) -> int:
        """Return when a prompt's tokens from the first on, that are sent now from all stages, have arrived."""
        kv_tokens = prompt_tokens - first if self._sends_all else self._kv_tokens(prompt_tokens, first, prompt_tokens)
        path = receiver.paths.get(sender.id)
        if path is None:
            ports = (*self._ports_of(sender), *self._ports_of(receiver.replica))
            path = receiver.paths[sender.id] = tuple(dict.fromkeys(ports))
        return self._link.arrival_ps(kv_tokens, path, now_ps)

    @property
    def streams(self) -> bool:
        """Chunks are sent as they are computed, rather than whole prompts."""
        return False

    @property
    def notice_ps(self) -> int:
        """Time of a message between replicas."""
        return self._link.spec.notice_ps

    def _kv_tokens(self, prompt_tokens: int, first: int, end: int) -> float:
        """Return what the tokens [first, end) of a prompt come to, in tokens of all layers."""
        kv_tokens: float = self._link.spec.sizes.sent_tokens(first, end, prompt_tokens)
        return kv_tokens

    def _sending_side(self, replica: Replica) -> Role:
        return HandsOver(replica, self, self._recorder)

    def note(self, request: Request, sender: Replica) -> None:
        """Note a computed prompt; its blocks stay allocated until they are fetched."""
        self._done.append((request, sender))

    def settle(self, now_ps: int) -> None:
        """Route prefilled requests after a commit.

        fast: if no other event happens at this instant, they are routed at once.
        """
        if not self._done:
            return
        instants = self._clock.instants
        if instants and instants[0] <= now_ps:
            self._due.set(now_ps)
        else:
            self._route(now_ps)

    def _route(self, now_ps: int) -> None:
        done, self._done = self._done, []
        self._send_all(done, now_ps)

    def release(self, now_ps: int) -> None:
        """Route the requests that waited for a decode replica."""
        held, self.held = self.held, []
        self._send_all(held, now_ps)

    def fail(self, replica: Replica, now_ps: int) -> list[tuple[Request, int]]:
        """Lose the requests between a replica that fails and others, and what these hold for them; return each with
        the tokens stored for it."""
        lost = [request for request, sender in (*self._done, *self.held) if sender is replica]
        self._done = [each for each in self._done if each[1] is not replica]
        self.held = [each for each in self.held if each[1] is not replica]
        for receiver in self._receivers.values():
            if receiver.replica is replica:
                lost += receiver.lose_all(now_ps)
            else:
                lost += receiver.lose_from(replica, now_ps)
        stored = [(request, lifecycle.stored_tokens(replica, request)) for request in lost]
        for request in lost:
            if request.phase is TRANSFER:
                request.join_step = replica.cohort.step
                self._recorder.span(replica.id, request, replica.cohort.step)
            request.phase = DONE
        return stored

    def held_by(self, sender: Replica) -> list[Request]:
        """Return the requests of a prefill replica that wait for a decode replica to be ready."""
        return [request for request, replica in self.held if replica is sender]

    def forget(self, request: Request) -> bool:
        """Drop a request that waits for a decode replica to be ready; return whether it did."""
        n_before = len(self.held)
        self.held = [each for each in self.held if each[0] is not request]
        return len(self.held) < n_before

    def _send_all(self, requests: Sequence[tuple[Request, Replica]], now_ps: int) -> None:
        pick, receivers, recorder = self.pick, self._receivers, self._recorder
        for request, sender in requests:
            receiver = pick(request)
            if receiver is None:
                self.held.append((request, sender))
                continue
            recorder.hand_over(request.row, sender.id, receiver.id)
            receivers[receiver.id].receive(request, sender, now_ps)

    def _on_room(self, request: Request, sender: Replica, receiver: Receives, found_tokens: int, now_ps: int) -> None:
        """Start the transfer: the receiver has blocks for it, and keys and values of the first found_tokens."""
        self._recorder.find_room(request.row, now_ps - request.joined_ps, found_tokens)
        at_ps = self.arrival_ps(request.prompt_tokens, found_tokens, sender, receiver, now_ps)
        receiver.expect(at_ps, request, sender)


class Prefills(Role):
    """A prefill replica. It decodes itself the requests that are marked so, among the prompts of others."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._kept: set[Request] = set()

    def keep(self, request: Request, now_ps: int) -> None:
        """Accept a request that is decoded here."""
        self._kept.add(request)
        self.replica.queue_up(request, now_ps)

    def hands_over(self, request: Request) -> bool:
        """Return whether another replica decodes a prefilled request."""
        return request not in self._kept

    def ended(self, request: Request, now_ps: int) -> None:
        """Forget a request that ended here."""
        self._kept.discard(request)


class HandsOver(Prefills):
    """A prefill replica with computed prompts that decode replicas fetch."""

    def __init__(self, replica: Replica, handoff: Handoff, recorder: Recorder) -> None:
        super().__init__(replica)
        self._handoff = handoff
        self._recorder = recorder

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Accept a request from the router."""
        self.replica.queue_up(request, now_ps)

    def hand_over(self, request: Request, now_ps: int) -> None:
        """Route a prefilled request after the commit."""
        self._handoff.note(request, self.replica)

    def after_commit(self, now_ps: int) -> None:
        """Route the prefilled requests."""
        self._handoff.settle(now_ps)

    @property
    def in_transit(self) -> list[Request]:
        """Prefilled requests that wait for a decode replica to be ready."""
        return self._handoff.held_by(self.replica)

    def holds(self, request: Request) -> bool:
        """Return whether a prefilled request waits for a decode replica to be ready."""
        return request.phase is TRANSFER

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Drop a prefilled request that waits for a decode replica to be ready."""
        replica = self.replica
        self._handoff.forget(request)
        lifecycle.give_back(replica, request, now_ps)
        request.join_step = replica.cohort.step
        self._recorder.span(replica.id, request, replica.cohort.step)
        request.phase = DONE
        return None


@dataclass(slots=True)
class _Push:
    """The two sides of a request, and its tokens that the receiver has."""

    sender: "Pushes"
    receiver: Receives
    there_tokens: int = 0
    """Tokens found there or sent so far."""
    arrival_ps: int = 0
    """Arrival of those sent."""


class _StageChunk(NamedTuple):
    """The layers of one stage of a computed chunk, in the order in which they are sent."""

    end_ps: int
    sender: int
    number: int
    request: Request
    kv_tokens: float
    stage: int
    stage_ps: int


class PushHandoff(Handoff):
    """Picks the decode replica on arrival, starts the prefill once blocks are allocated there, and pushes computed KV.

    Sources: SGLang, disaggregation/decode.py and prefill.py (decode allocates first, the prefill waits for it, chunks
    are sent as they are computed); Splitwise, ISCA '24, and Mooncake, FAST '25 (layer by layer).
    """

    is_pushed = True

    def __init__(self, clock: Clock, recorder: Recorder, link: Link, router: Router, pick: PickReceiver) -> None:
        super().__init__(clock, recorder, link, router, pick)
        self._pushes: dict[Request, _Push] = {}
        self._senders: dict[int, Pushes] = {}
        """Sides of prefill replicas, by member id."""
        self._notices: deque[tuple[int, Request]] = deque()
        """(instant, request) of notices of allocated blocks, in flight."""
        self._notice_due = Alarm(clock, self._begin, SEND_PHASE - 1)
        self._computed: list[_StageChunk] = []
        """A heap of chunks that leave a stage."""
        self._n_computed = 0
        self._stage_ends = Alarm(clock, self.send_computed, SEND_PHASE - 1)

    def _sending_side(self, replica: Replica) -> Role:
        side = self._senders[replica.id] = Pushes(replica, self)
        return side

    @property
    def streams(self) -> bool:
        """Chunks are sent as they are computed, rather than whole prompts."""
        return self._link.spec.n_layers is not None

    def fail(self, replica: Replica, now_ps: int) -> list[tuple[Request, int]]:
        """Lose the requests that a replica that fails prefills or will decode, and what others hold for them."""
        lost: list[tuple[Request, int]] = []
        self.send_computed(now_ps)
        for request, push in [*self._pushes.items()]:
            sender, receiver = push.sender.replica, push.receiver
            if replica not in (sender, receiver.replica):
                continue
            lost += push.sender.lose(request, is_own=sender is replica, now_ps=now_ps)
            receiver.granted.pop(request, None)
            if receiver.awaits(request):
                receiver.withdraw(request, now_ps)
            elif sender is replica:
                lifecycle.let_go(receiver.replica, request, now_ps)
                receiver.replica.stepping.wake(now_ps)
            del self._pushes[request]
        self._notices = deque(notice for notice in self._notices if notice[1] in self._pushes)
        return lost + super().fail(replica, now_ps)

    def announce(self, request: Request, side: "Pushes", now_ps: int) -> None:
        """Ask a decode replica for blocks for a new request."""
        member = self.pick(request)
        if member is None:
            self.held.append((request, side.replica))
            return
        receiver = self._receivers[member.id]
        self._pushes[request] = _Push(side, receiver)
        receiver.receive(request, side.replica, now_ps)

    def _send_all(self, requests: Sequence[tuple[Request, Replica]], now_ps: int) -> None:
        for request, sender in requests:
            self.announce(request, self._senders[sender.id], now_ps)

    def _on_room(self, request: Request, sender: Replica, receiver: Receives, found_tokens: int, now_ps: int) -> None:
        """Notify the sender that the receiver has blocks for it, and keys and values of the first found_tokens."""
        notice_ps = self.notice_ps
        self._recorder.find_room(request.row, now_ps - request.arrival_ps, found_tokens, notice_ps)
        self._pushes[request].there_tokens = found_tokens
        receiver.granted[request] = None
        self._notices.append((now_ps + notice_ps, request))
        if len(self._notices) == 1:
            self._notice_due.set(self._notices[0][0])

    def _begin(self, now_ps: int) -> None:
        while self._notices and self._notices[0][0] <= now_ps:
            _, request = self._notices.popleft()
            push = self._pushes[request]
            del push.receiver.granted[request]
            push.sender.begin(request, now_ps)
        if self._notices:
            self._notice_due.set(self._notices[0][0])

    def send_chunks(self, step_run: StepRun, sender: Replica, ends_ps: Sequence[int], stage_ps: int) -> None:
        """Push chunks as they leave the stages: tokens that the receiver lacks, and those from the sender's cache.

        ends_ps: `(n_stages,)`, each the end of stage_ps of work.
        """
        for request, n_tokens in step_run.chunks:
            push = self._pushes.get(request)
            if push is None:
                continue  # decoded where it is prefilled, or lost
            n_new = request.prefilled_tokens + n_tokens - push.there_tokens
            if n_new > 0:
                kv_tokens = self._kv_tokens(request.prompt_tokens, push.there_tokens, push.there_tokens + n_new)
                push.there_tokens += n_new
                for stage, end_ps in enumerate(ends_ps):
                    self._n_computed += 1
                    part = _StageChunk(end_ps, sender.id, self._n_computed, request, kv_tokens, stage, stage_ps)
                    heappush(self._computed, part)
        if len(ends_ps) > 1 and self._computed:
            self._stage_ends.set(self._computed[0].end_ps)

    def send_computed(self, now_ps: int, upto: Replica | None = None) -> None:
        """Push what has left its stage by now; at this very instant, only from replicas up to one."""
        computed = self._computed
        while computed and computed[0].end_ps <= now_ps:
            if upto is not None and computed[0].end_ps == now_ps and computed[0].sender > upto.id:
                break
            part = heappop(computed)
            push = self._pushes.get(part.request)
            if push is None:
                continue  # it has ended meanwhile
            step = part.end_ps - part.stage_ps, part.end_ps
            at_ps = self.staged_ps(part.kv_tokens, part.stage, push.sender.replica, push.receiver, step)
            push.arrival_ps = max(push.arrival_ps, at_ps)
        if computed and computed[0].end_ps != self._stage_ends.due_ps:
            self._stage_ends.set(computed[0].end_ps)

    def staged_ps(
        self, kv_tokens: float, stage: int, sender: Replica, receiver: Receives, step: tuple[int, int]
    ) -> int:
        """Return when the layers of one stage of a chunk, computed from start to end there, have arrived."""
        ports = self._ports_of(sender)
        one, (other,) = ports[stage % len(ports)], self._ports_of(receiver.replica)
        return self._link.streamed_arrival_ps(kv_tokens, (one, other), step, sender.stepping.n_stages)

    def chunk_tokens(self, prompt_tokens: int, first: int, end: int) -> float:
        """Return what the tokens [first, end) of a prompt come to, in tokens of all layers."""
        return self._kv_tokens(prompt_tokens, first, end)

    def streamed_ps(
        self, chunk: tuple[int, int, int], sender: Replica, receiver: Receives, step: tuple[int, int]
    ) -> int:
        """Return when a chunk, computed in a step from start to end on one stage, has arrived.

        chunk: the tokens of its prompt, its first one and its end.
        """
        prompt_tokens, first, end = chunk
        (one,), (other,) = self._ports_of(sender), self._ports_of(receiver.replica)
        return self._link.streamed_arrival_ps(self._kv_tokens(prompt_tokens, first, end), (one, other), step)

    def send_rest(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Push the rest of a computed prompt."""
        push = self._pushes.pop(request)
        if push.there_tokens < request.prompt_tokens:
            first = push.there_tokens
            push.arrival_ps = self.arrival_ps(request.prompt_tokens, first, sender, push.receiver, now_ps)
        self._recorder.hand_over(request.row, sender.id, push.receiver.replica.id)
        push.receiver.expect(push.arrival_ps, request, sender)

    def withdraw(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Notify the receiver that a request ended before its prefill replica had notice of blocks for it."""
        if self.forget(request):
            return
        receiver = self._pushes[request].receiver
        if request in receiver.granted:
            del receiver.granted[request]
            self._notices = deque(notice for notice in self._notices if notice[1] is not request)
            self.cancel(request, sender, now_ps)
        else:
            del self._pushes[request]
            receiver.withdraw(request, now_ps)

    def cancel(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Notify the receiver that a request has ended and no KV will come."""
        push = self._pushes.pop(request)
        push.receiver.expect(max(now_ps + self.notice_ps, push.arrival_ps), request, sender)


class Pushes(Prefills):
    """A prefill replica where requests wait for blocks on the decode side before they queue here."""

    def __init__(self, replica: Replica, handoff: PushHandoff) -> None:
        super().__init__(replica)
        self._handoff = handoff
        self._streams = handoff.streams
        self._without_blocks: set[Request] = set()
        """Requests that wait for blocks on the decode side."""

    def lose(self, request: Request, now_ps: int, *, is_own: bool) -> list[tuple[Request, int]]:
        """Lose a request if its decode replica fails, or this one (is_own); return it with the tokens stored for it.

        If this one fails, what it has itself is lost with its batch.
        """
        replica = self.replica
        if request in self._without_blocks:
            self._without_blocks.remove(request)
            replica.load.count_out()
            request.phase = DONE
            lifecycle.note_empty(replica, now_ps)
            return [(request, 0)]
        return [] if is_own else [(request, lifecycle.drop(replica, request, now_ps))]

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Count a request and ask for blocks for it."""
        self.replica.load.n_outstanding += 1
        self._without_blocks.add(request)
        self._handoff.announce(request, self, now_ps)

    def begin(self, request: Request, now_ps: int) -> None:
        """Queue a request that has blocks on the decode side."""
        self._without_blocks.remove(request)
        self.replica.load.count_out()
        self.replica.queue_up(request, now_ps)

    def passes_stages(self, step_run: StepRun, ends_ps: Sequence[int], stage_ps: int) -> None:
        """Push the chunks of a step as they leave each stage, if they are sent as they are computed."""
        if self._streams and step_run.chunks:
            self._handoff.send_chunks(step_run, self.replica, ends_ps, stage_ps)

    def before_commit(self, step_run: StepRun, now_ps: int) -> None:
        """Push the chunks of a step, if they are sent as they are computed."""
        if self._streams and step_run.chunks:
            if self.replica.stepping.n_stages == 1:
                self._handoff.send_chunks(step_run, self.replica, (now_ps,), now_ps - step_run.start_ps)
            self._handoff.send_computed(now_ps, self.replica)

    def hand_over(self, request: Request, now_ps: int) -> None:
        """Push the rest of a computed prompt."""
        self._handoff.send_rest(request, self.replica, now_ps)

    def holds(self, request: Request) -> bool:
        """Return whether a request waits for blocks on the decode side."""
        return request in self._without_blocks

    def abandon(self, request: Request, now_ps: int) -> int | None:
        """Drop a request that waits for blocks on the decode side."""
        self._without_blocks.remove(request)
        self.replica.load.count_out()
        request.phase = DONE
        self._handoff.withdraw(request, self.replica, now_ps)
        lifecycle.note_empty(self.replica, now_ps)
        return None

    @property
    def in_transit(self) -> list[Request]:
        """Requests that wait for a decode replica to be ready."""
        return self._handoff.held_by(self.replica)

    def ended(self, request: Request, now_ps: int) -> None:
        """Let the receiver free its blocks: the first token was the last, or the client has given up."""
        if self.hands_over(request):
            self._handoff.cancel(request, self.replica, now_ps)
        super().ended(request, now_ps)
