"""Push: a decode replica gives blocks to a request before its prompt is computed, and is sent keys and values."""

from collections import deque
from dataclasses import dataclass

from simserve.engine.alarm import SEND_PHASE, Alarm, Clock
from simserve.engine.handoff import Handoff, PickReceiver
from simserve.engine.link import Link
from simserve.engine.lockstep import Rank
from simserve.engine.pipeline import Lane
from simserve.engine.receiving import Receiving
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.step_run import StepRun
from simserve.state.request import DONE, Request


@dataclass(slots=True)
class _Way:
    """Where a request will go, and how much of it has been sent there."""

    receiver: Receiving
    sent_tokens: int = 0
    there_ps: int = 0
    """When these are there."""


class PushHandoff(Handoff):
    """Chooses the decode replica when a request comes, has it computed once there is room, and sends what is computed.

    Sources: SGLang, disaggregation/decode.py and prefill.py (decode allocates first, a prompt waits for that before
    its prefill, chunks are sent as they are computed); Splitwise, ISCA '24, and Mooncake, FAST '25 (layer by layer).
    """

    def __init__(self, clock: Clock, recorder: Recorder, link: Link, pick: PickReceiver) -> None:
        super().__init__(clock, recorder, link, pick)
        self._ways: dict[Request, _Way] = {}
        self._progress: deque[tuple[int, Request, Pushing]] = deque()
        """(instant, who, its prefill replica) of words that there is room, on their way."""
        self._word = Alarm(clock, self._begin, SEND_PHASE - 1)

    def _connect_sender(self, sender: Replica) -> None:
        assert isinstance(sender, Pushing), "prefill replicas of a cluster that pushes do"
        sender.handoff = self
        sender.hand_over = self._send_rest

    def announce(self, request: Request, sender: "Pushing", now_ps: int) -> None:
        """A request has come; ask for room."""
        receiver = self._receivers[self._pick(request)]
        self._ways[request] = _Way(receiver)
        receiver.receive(request, sender, now_ps)

    def on_room(self, request: Request, sender: Replica, receiver: Receiving, now_ps: int) -> None:
        """The receiver has blocks for it, and tells the sender."""
        self._recorder.find_room(request.row, now_ps - request.arrival_ps)
        assert isinstance(sender, Pushing), "who announced it"
        receiver.progress[request] = None
        self._progress.append((now_ps + self._link.spec.word_ps, request, sender))
        if len(self._progress) == 1:
            self._word.set(self._progress[0][0])

    def _begin(self, now_ps: int) -> None:
        while self._progress and self._progress[0][0] <= now_ps:
            _, request, sender = self._progress.popleft()
            del self._ways[request].receiver.progress[request]
            sender.begin(request, now_ps)
        if self._progress:
            self._word.set(self._progress[0][0])

    def send_chunks(self, step_run: StepRun, sender: Replica, now_ps: int) -> None:
        """Chunks are computed: what of them has not been sent before a preemption, and what a cache had, follows."""
        for request, n_tokens in step_run.chunks:
            way = self._ways[request]
            n_new = request.prefilled_tokens + n_tokens - way.sent_tokens
            if n_new > 0:
                way.sent_tokens += n_new
                ports = self._ports[sender.index], self._ports[way.receiver.index]
                way.there_ps = self._link.follow_ps(n_new, ports, (step_run.start_ps, now_ps))

    def _send_rest(self, request: Request, sender: Replica, now_ps: int) -> None:
        """A prompt is computed, and goes on where it has room."""
        way = self._ways.pop(request)
        if not way.sent_tokens:
            ports = self._ports[sender.index], self._ports[way.receiver.index]
            way.there_ps = self._link.arrival_ps(request.prompt_tokens, ports, now_ps)
        self._recorder.hand_over(request.row, way.receiver.index)
        way.receiver.expect(way.there_ps, request, sender)

    def call_off(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Its first token was its last: the receiver is told that it will not come."""
        way = self._ways.pop(request)
        way.receiver.expect(max(now_ps + self._link.spec.word_ps, way.there_ps), request, sender)


class Pushing(Replica):
    """A prefill replica whose requests wait for room on the decode side before they queue here."""

    handoff: PushHandoff

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Count a request in, and ask for room for it."""
        self.n_outstanding += 1
        self.handoff.announce(request, self, now_ps)

    def begin(self, request: Request, now_ps: int) -> None:
        """There is room: let it queue."""
        self.n_outstanding -= 1
        super().enqueue(request, now_ps)

    def _end_prefill(self, request: Request, now_ps: int) -> None:
        super()._end_prefill(request, now_ps)
        if request.phase is DONE:
            self.handoff.call_off(request, self, now_ps)


class PushingLane(Pushing, Lane):
    """One that is a lane of a pipeline."""


class PushingRank(Pushing, Rank):
    """One that steps together with others."""


class StreamsKv(Pushing):
    """One that sends chunks as they are computed, rather than whole prompts."""

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Send the chunks of a step and commit."""
        if step_run.chunks:
            self.handoff.send_chunks(step_run, self, now_ps)
        super().commit(step_run, now_ps)


class StreamsKvRank(StreamsKv, Rank):
    """One that steps together with others."""
