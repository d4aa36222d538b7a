"""Push: a decode replica allocates blocks before the prompt is computed, and KV is pushed to them."""

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
class _Push:
    """Destination of a request, and its tokens sent so far."""

    receiver: Receiving
    sent_tokens: int = 0
    arrival_ps: int = 0
    """Arrival of these tokens."""


class PushHandoff(Handoff):
    """Picks the decode replica on arrival, starts the prefill once blocks are allocated there, and pushes computed KV.

    Sources: SGLang, disaggregation/decode.py and prefill.py (decode allocates first, the prefill waits for it, chunks
    are sent as they are computed); Splitwise, ISCA '24, and Mooncake, FAST '25 (layer by layer).
    """

    def __init__(self, clock: Clock, recorder: Recorder, link: Link, pick: PickReceiver) -> None:
        super().__init__(clock, recorder, link, pick)
        self._pushes: dict[Request, _Push] = {}
        self._notices: deque[tuple[int, Request, Pushing]] = deque()
        """(instant, request, its prefill replica) of notices of allocated blocks, in flight."""
        self._notice_due = Alarm(clock, self._begin, SEND_PHASE - 1)

    def _connect_sender(self, sender: Replica) -> None:
        assert isinstance(sender, Pushing), "all prefill replicas push"
        sender.handoff = self
        sender.hand_over = self._send_rest

    def announce(self, request: Request, sender: "Pushing", now_ps: int) -> None:
        """Ask a decode replica for blocks for a new request."""
        receiver = self._receivers[self._pick(request).id]
        self._pushes[request] = _Push(receiver)
        receiver.receive(request, sender, now_ps)

    def on_room(self, request: Request, sender: Replica, receiver: Receiving, now_ps: int) -> None:
        """Notify the sender that the receiver has blocks for it."""
        self._recorder.find_room(request.row, now_ps - request.arrival_ps)
        assert isinstance(sender, Pushing), "the sender announced the request"
        receiver.granted[request] = None
        self._notices.append((now_ps + self._link.spec.notice_ps, request, sender))
        if len(self._notices) == 1:
            self._notice_due.set(self._notices[0][0])

    def _begin(self, now_ps: int) -> None:
        while self._notices and self._notices[0][0] <= now_ps:
            _, request, sender = self._notices.popleft()
            del self._pushes[request].receiver.granted[request]
            sender.begin(request, now_ps)
        if self._notices:
            self._notice_due.set(self._notices[0][0])

    def send_chunks(self, step_run: StepRun, sender: Replica, now_ps: int) -> None:
        """Push computed chunks: their tokens not sent before a preemption, and those from a prefix cache."""
        for request, n_tokens in step_run.chunks:
            push = self._pushes[request]
            n_new = request.prefilled_tokens + n_tokens - push.sent_tokens
            if n_new > 0:
                push.sent_tokens += n_new
                ports = self._ports[sender.index], self._ports[push.receiver.index]
                push.arrival_ps = self._link.streamed_arrival_ps(n_new, ports, (step_run.start_ps, now_ps))

    def _send_rest(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Push the rest of a computed prompt."""
        push = self._pushes.pop(request)
        if not push.sent_tokens:
            ports = self._ports[sender.index], self._ports[push.receiver.index]
            push.arrival_ps = self._link.arrival_ps(request.prompt_tokens, ports, now_ps)
        self._recorder.hand_over(request.row, push.receiver.index)
        push.receiver.expect(push.arrival_ps, request, sender)

    def cancel(self, request: Request, sender: Replica, now_ps: int) -> None:
        """Notify the receiver that the first token was the last and no KV will come."""
        push = self._pushes.pop(request)
        push.receiver.expect(max(now_ps + self._link.spec.notice_ps, push.arrival_ps), request, sender)


class Pushing(Replica):
    """A prefill replica where requests wait for blocks on the decode side before they queue here."""

    handoff: PushHandoff

    def enqueue(self, request: Request, now_ps: int) -> None:
        """Count a request and ask for blocks for it."""
        self.n_outstanding += 1
        self.handoff.announce(request, self, now_ps)

    def begin(self, request: Request, now_ps: int) -> None:
        """Queue a request that has blocks on the decode side."""
        self.n_outstanding -= 1
        super().enqueue(request, now_ps)

    def _end_prefill(self, request: Request, now_ps: int) -> None:
        super()._end_prefill(request, now_ps)
        if request.phase is DONE:
            self.handoff.cancel(request, self, now_ps)


class PushingLane(Pushing, Lane):
    """A pushing replica that is a pipeline lane."""


class PushingRank(Pushing, Rank):
    """A pushing replica that steps in lockstep."""


class StreamsKv(Pushing):
    """A pushing replica that sends chunks as they are computed, rather than whole prompts."""

    def commit(self, step_run: StepRun, now_ps: int) -> None:
        """Push the chunks of a step and commit."""
        if step_run.chunks:
            self.handoff.send_chunks(step_run, self, now_ps)
        super().commit(step_run, now_ps)


class StreamsKvRank(StreamsKv, Rank):
    """A streaming replica that steps in lockstep."""
