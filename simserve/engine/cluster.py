"""Cluster: replicas behind a router, the load, and the clock."""

from collections.abc import Callable, Iterable, Sequence

from mypy_extensions import i64

from simserve.admission.base import Admission
from simserve.engine.alarm import Clock
from simserve.engine.deadlines import Deadlines
from simserve.engine.fleet import Control, Fleet
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation, Handoff
from simserve.engine.losses import Losses
from simserve.engine.offered import Offered, OfferedRows
from simserve.engine.recorder import FAILED, FINISHED, REJECTED, TIMED_OUT, UNFINISHED, Recorder
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay, Refresher
from simserve.engine.senders import TraceSender
from simserve.engine.session_sender import SessionSender, UserSender
from simserve.engine.wiring import Wiring
from simserve.errors import InvariantError
from simserve.integers import NEVER
from simserve.routers.base import Router
from simserve.state.request import Request
from simserve.tables.scratch import Scratch
from simserve.tables.why import Reason, Why
from simserve.units import to_s

OnSend = Callable[[int, int], None]
"""Called now and then with the number of rows sent and the instant, in ps."""

Send = Callable[[int, int], None]
"""Called with a row that has passed the front end, and the instant."""

TOO_LONG = "prompt leaves no room for a token within max_model_len"
"""Why a request is refused."""


class Cluster:
    """Replicas behind a router. `columns.run.serve` serves the offered load; the recorder and the rows then hold what
    happened.

    `replicas` are the ranks of all replicas: the router sees each scheduler that has KV blocks of its own.
    """

    def __init__(
        self,
        setups: Sequence[ReplicaSetup],
        router: Router,
        offered: Offered,
        router_seed: int | str,
        front_end: FrontEnd | None = None,
        disaggregation: Disaggregation | None = None,
        delay: Delay | None = None,
        admission: Admission | None = None,
        control: Control | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """Without a `control` the replicas stay as they are."""
        self.clock = Clock()
        self.front_end = front_end or FrontEnd()
        self._wiring = wiring = Wiring(setups, disaggregation)
        self.entries = wiring.entries
        self._cached_sizes = {setup.block_size for setup in setups if setup.caches_prefixes}
        self.scratch = scratch or Scratch()
        self.limit_tokens = wiring.limit_tokens
        """Limit on prompt plus output tokens of any request."""
        self.rows = OfferedRows(offered.trace, self.limit_tokens, self.scratch)
        self.recorder = Recorder(len(self.rows), scratch=self.scratch)
        shared = (self.clock, self.rows, self.recorder)
        self.fleet = fleet = Fleet(
            *shared,
            wiring,
            self._release_at_once,
            lambda *loss: self.losses.take(*loss),
            lambda row, why, rescue: self.losses.departs(row, why, rescue),
        )
        self.replicas, self.members = fleet.replicas, fleet.members
        self.deadlines: Deadlines | None = None
        """Clients that time out, if any do."""
        self.admission = admission
        """What decides about requests before the router, if anything does."""
        if admission is not None:
            fleet.gated = []
            admission.begin()
        has_one_rank = control is None and sum(setup.n_ranks for setup in setups) == 1
        self._closed_loop = self._closed_loop_sender(offered)
        fleet.is_alone = has_one_rank and self._closed_loop is None and not any(setup.has_tier for setup in setups)
        self.sender = self._closed_loop or TraceSender(self.rows, self.recorder, self.front_end)
        self.control = control
        """Decides when members join and leave, if any do."""
        self.resend: Send | None = None
        """Takes a request that the gateway sends once more."""
        self.held: list[tuple[int, Send]] = []
        """Rows that wait for a replica to be ready, each with what takes it then."""
        self.release_ps: i64 = NEVER
        """When they are sent; NEVER: when a replica is ready."""
        loop = self._closed_loop
        deadlines, on_failure = (None, None) if loop is None else (loop.deadlines, loop.on_failure)
        self.losses = Losses(self.clock, self.recorder, fleet.replicas, deadlines, self._send_again, on_failure)
        fleet.n_held = lambda: len(self.held)
        for setup in setups:
            fleet.order(setup, Reason(Why.START))
        self.refresher = None if delay is None or has_one_rank else Refresher(self.clock, delay)
        """Shows routers their replicas as they were; None: live."""
        self.intake = wiring.open(self.clock, router, router_seed, self.refresher)
        """Where requests are routed."""
        for member in fleet.members:
            fleet.connect(member)
        routers = [router] if disaggregation is None else [router, disaggregation.router]
        self.router = router
        self._keeps_sessions = any(each.needs_sessions for each in routers)
        self._has_extras = bool(self._cached_sizes) or self.rows.has_labels or self._keeps_sessions
        """Requests have ids of blocks, labels or sessions."""
        self.drain_limit_ps: int | None = None
        """The run ends this long after the last request was sent; None: by itself."""
        self.end_ps: int | None = None
        """End of the run, once all is sent; None: it is not limited."""

    def close(self, *, is_deadlock: bool) -> None:
        """Say what unfinished requests wait for, and check that none was lost; is_deadlock: nothing more happens."""
        self.explain_unfinished(map(self.unfinished_of, self.replicas), is_deadlock=is_deadlock)
        at_gateway = [row for row, _ in self.held]
        check_conservation(self.sender.stop(), self.replicas, self.recorder, self.clock.now_ps, at_gateway)

    @property
    def splits(self) -> bool:
        """A splitter decides where each prompt is computed."""
        return self._wiring.splits

    @property
    def handoff(self) -> Handoff | None:
        """What requests go through from prefill to decode replicas, if there are any."""
        return self._wiring.handoff

    @property
    def trace_sender(self) -> TraceSender:
        """The sender of a load that waits for no answers."""
        assert isinstance(self.sender, TraceSender), "the load waits for no answers"
        return self.sender

    def release_held(self, now_ps: int) -> None:
        """Send what waited at the gateway, in the order in which clients sent it; some may go on waiting."""
        self.release_ps = NEVER
        held, self.held = self.held, []
        sent_ps = self.rows.arrival_ps
        for row, send in sorted(held, key=lambda each: (sent_ps[each[0]], each[0])):
            if self.deadlines is None or not self.deadlines.has_gone(row):
                send(row, now_ps)

    # -- requests without a replica ---------------------------------------------------------------------------------

    def _send_again(self, row: int) -> None:
        """Let a request that lost its replica wait for another at the gateway."""
        assert self.resend is not None, "the run has begun"
        self.hold(row, self.resend)
        self._release_at_once()

    def _release_at_once(self) -> None:
        """Send what waits for a replica to be ready at this instant."""
        self.release_ps = self.clock.now_ps

    def hold(self, row: int, send: Send) -> None:
        """Let a request wait at the gateway for a replica to be ready."""
        self.held.append((row, send))

    # -- requests --------------------------------------------------------------------------------------------------

    def _closed_loop_sender(self, offered: Offered) -> SessionSender | None:
        """Return a sender that waits for answers; None: all send times are known in advance."""
        shared = (self.rows, self.recorder, offered, self.front_end, self._all_sent)
        patience = offered.patience
        if patience is None and offered.trace.dependencies is None and offered.concurrency is None:
            return None
        sender = SessionSender(*shared) if offered.concurrency is None else UserSender(*shared)
        if patience is not None and patience.is_limited:
            waiting = (self.rows, self.recorder, self.replicas, patience, self.front_end.respond_ps)
            self.deadlines = sender.deadlines = Deadlines(*waiting, sender.on_failure)
        return sender

    def request_of(self, row: int, now_ps: int) -> Request:
        """Return a request as routers see it."""
        n_sent = self.losses.n_carried(row)
        request = Request(row, now_ps, self.rows.prompt_tokens[row] + n_sent, self.rows.max_tokens[row] - n_sent)
        if self._has_extras:
            self.rows.describe(request, self._cached_sizes, self._keeps_sessions)
        return request

    def cut(self, row: int, most_tokens: int) -> None:
        """Cut the answer of a request."""
        self.rows.output_tokens[row] = most_tokens + self.losses.n_carried(row)
        self.recorder.explain(row, "answer cut at max_tokens or max_model_len")

    def reject(self, row: int, reason: str) -> None:
        """Refuse a request."""
        self.recorder.reject(row, reason)
        if self.deadlines is not None:
            self.deadlines.placed(row, None)

    def _all_sent(self) -> None:
        """Start the drain."""
        if self.drain_limit_ps is not None:
            self.end_ps, self.drain_limit_ps = self.clock.now_ps + self.drain_limit_ps, None

    def unfinished_of(self, replica: Replica) -> tuple[list[int], str]:
        """Return the unfinished rows of a replica, and what they wait for where nothing more happens."""
        requests = replica.batch.requests
        rows = [request.row for request in requests if self.recorder.status[request.row] == UNFINISHED]
        return rows, replica.why_waiting() if rows else ""

    def explain_unfinished(self, unfinished: Iterable[tuple[list[int], str]], *, is_deadlock: bool) -> None:
        """Record for every unfinished request what it waits for."""
        for rows, why in unfinished:
            for row in rows:
                reason = why if is_deadlock else "still there at drain_limit_s after the last arrival"
                self.recorder.explain(row, reason)
        for row, _ in self.held:
            if self.recorder.status[row] == UNFINISHED:
                self.recorder.explain(row, "waits at the gateway: no replica is ready")


def check_conservation(
    n_sent: int, replicas: Sequence[Replica], recorder: Recorder, now_ps: int, at_gateway: Sequence[int] = ()
) -> None:
    """Raise InvariantError unless every request sent has ended or is present, and these hold all blocks in use.

    at_gateway: rows that wait for a replica to be ready.
    """
    at_s = to_s(now_ps)
    there = (each for replica in replicas for each in replica.batch.requests)
    still_there = sum(recorder.status[row] == UNFINISHED for row in (*(each.row for each in there), *at_gateway))
    check_ended(n_sent, still_there, recorder, at_s)
    for replica in replicas:
        replica.check_blocks(at_s)


def check_ended(n_sent: int, still_there: int, recorder: Recorder, at_s: float) -> None:
    """Raise InvariantError unless every request sent has ended or is present."""
    ended = sum(map(recorder.n_with, (FINISHED, REJECTED, TIMED_OUT, FAILED)))
    if n_sent != ended + still_there:
        raise InvariantError("requests sent = ended + still there", n_sent, ended + still_there, at_s)
