"""Cluster: replicas behind a router, the load, and the clock."""

import gc
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random

from simpy.core import StopSimulation

from simserve.admission.base import Admission
from simserve.engine.admission_gate import AdmissionGate, Placed, Send
from simserve.engine.alarm import END_PHASE, Alarm, Clock
from simserve.engine.deadlines import Deadlines
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.members import Member
from simserve.engine.offered import Offered, OfferedRows
from simserve.engine.recorder import FINISHED, REJECTED, TIMED_OUT, UNFINISHED, Recorder
from simserve.engine.replica import OnAnswer, Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Delay, Destination, Intake, Refresher, RoutingView
from simserve.engine.senders import ClosedLoopSender, TraceSender
from simserve.engine.session_sender import SessionSender, UserSender
from simserve.engine.stepping import set_stepping
from simserve.engine.wiring import Wiring, intake_roles
from simserve.errors import InvariantError
from simserve.routers.base import Router
from simserve.schedulers.base import Scheduler
from simserve.state.request import Request
from simserve.units import to_s

SENDS_A_REPORT = 256
"""Sends per call of `on_send`: often enough for a progress bar, too seldom to cost anything."""


@dataclass(frozen=True)
class _Entry:
    """A replica that receives requests from the router."""

    scheduler: Scheduler
    limit_tokens: int
    """Limit on prompt plus output tokens, wherever they are decoded."""
    longest_prompt_tokens: int

    @classmethod
    def of(cls, setup: ReplicaSetup, setups: Sequence[ReplicaSetup]) -> "_Entry":
        decodes = [each for each in setups if each.role == "decode"] if setup.role == "prefill" else [setup]
        limit_tokens = min(each.max_model_len for each in decodes)
        return cls(setup.scheduler, limit_tokens, min(limit_tokens, setup.max_model_len) - 1)


class Cluster:
    """Replicas behind a router. `run` serves the offered load; the recorder and the rows then hold what happened.

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
    ) -> None:
        self.clock = Clock()
        self.front_end = front_end or FrontEnd()
        ranks = [setup for setup in setups for _ in range(setup.n_ranks)]
        roles = intake_roles(ranks, disaggregation)
        entries = {index: _Entry.of(rank, setups) for index, rank in enumerate(ranks) if rank.role in roles}
        local_decode: dict[int, _Entry] = {}
        if disaggregation is not None and disaggregation.keeps:
            prefill = [index for index, rank in enumerate(ranks) if rank.role == "prefill"]
            local_decode = {index: _Entry.of(replace(ranks[index], role="both"), setups) for index in prefill}
        self._cached_sizes = {rank.block_size for rank in ranks if rank.caches_prefixes}
        limits_tokens = [entry.limit_tokens for entry in (*entries.values(), *local_decode.values())]
        self.rows = OfferedRows(offered.trace, max(limits_tokens))
        self._labels = self.rows.has_labels
        self.recorder = Recorder(len(self.rows), len(ranks))
        self.replicas: list[Replica] = []
        admission_gate = None if admission is None else AdmissionGate(admission, self.rows, self.recorder, self._send)
        send = self._send if admission_gate is None else admission_gate.send
        self._closed_loop = self._closed_loop_sender(offered, send)
        shared = (self.clock, self.rows, self.recorder)
        self.sender = self._closed_loop or TraceSender(*shared, self.front_end, send, self._all_sent)
        on_answer = self._closed_loop.on_answer if self._closed_loop else None
        is_alone = len(ranks) == 1 and self._closed_loop is None
        self.members: list[Member] = []
        for setup in setups:
            self.members.append(Member(self._ranks(setup, on_answer, is_alone=is_alone), 0, "at the start", ready_ps=0))
            self.replicas += self.members[-1].ranks
        self._refresher = None if delay is None or len(ranks) == 1 else Refresher(self.clock, delay)
        router.begin(Random(router_seed))
        members = [self.replicas[index] for index in entries]
        self._entries: dict[Destination, _Entry] = dict(zip(members, entries.values(), strict=True))
        self._only = members[0] if len(members) == 1 else None
        """Destination of all requests, which need no router then."""
        self._routing_view: Intake
        self._keeps_sessions = router.needs_sessions
        if admission_gate is not None:
            admission_gate.views = members
            admission_gate.on_refusal = self._closed_loop.on_not_admitted if self._closed_loop else None
        if disaggregation is None:
            self._routing_view = self._open_view(router, members)
        else:
            self._keeps_sessions = self._keeps_sessions or disaggregation.router.needs_sessions
            numbered = [*zip(self.replicas, ranks, strict=True)]
            wiring = Wiring(self.clock, self.recorder, disaggregation, numbered, self._open_view, router_seed)
            by_role = ([self.replicas[i] for i in entries if ranks[i].role == role] for role in ("prefill", "both"))
            self._routing_view = wiring.intake(router, *by_role)
            self._entries |= {wiring.local_decode[index]: entry for index, entry in local_decode.items()}
        self._end = Alarm(self.clock, self._stop, END_PHASE)
        self._drain_limit_ps: int | None = None
        self._on_send: Callable[[int, int], None] | None = None

    def run(self, drain_limit_ps: int | None = None, on_send: Callable[[int, int], None] | None = None) -> None:
        """Serve all requests, or stop drain_limit_ps after the last one was sent.

        on_send(rows sent, now in ps) is called now and then. Raises PolicyError when a policy breaks a rule.
        """
        self._drain_limit_ps = drain_limit_ps
        self._on_send = on_send
        if self._refresher is not None:
            self._refresher.start()
        self.sender.start()
        is_collecting = gc.isenabled()
        gc.disable()  # fast: the engine makes no reference cycles, and searching for them takes a tenth of the time
        try:
            self.clock.run()
        finally:
            if is_collecting:
                gc.enable()
        for replica in self.replicas:
            replica.stop(self.clock.now_ps)
        self._explain_unfinished()
        n_sent = self.sender.stop() if isinstance(self.sender, SessionSender) else self.sender.n_sent
        check_conservation(n_sent, self.replicas, self.recorder, self.clock.now_ps)

    def _closed_loop_sender(self, offered: Offered, send: Send) -> ClosedLoopSender | SessionSender | None:
        """Return a sender that waits for answers; None: all send times are known in advance."""
        shared = (self.clock, self.rows, self.recorder, offered, self.front_end, send, self._all_sent)
        patience = offered.patience
        if patience is None and offered.trace.dependencies is None and not offered.n_timed:
            return None if offered.concurrency is None else ClosedLoopSender(*shared)
        sender = SessionSender(*shared) if offered.concurrency is None else UserSender(*shared)
        if patience is not None and patience.is_limited:
            waiting = (self.clock, self.rows, self.recorder, self.replicas, patience, self.front_end.respond_ps)
            sender.deadlines = Deadlines(*waiting, sender.on_failure)
        return sender

    def _ranks(self, setup: ReplicaSetup, on_answer: OnAnswer | None, *, is_alone: bool) -> list[Replica]:
        """Return the ranks of a replica, each with its own copy of the policy, which may keep state."""
        setups = [setup, *(replace(setup, scheduler=deepcopy(setup.scheduler)) for _ in range(setup.n_ranks - 1))]
        shared = (self.clock, self.rows, self.recorder, on_answer)
        numbered = enumerate(setups, len(self.replicas))
        ranks = [Replica(index, each, *shared, is_alone=is_alone) for index, each in numbered]
        set_stepping(ranks, self.clock, setup.n_stages, setup.cost)
        return ranks

    def _open_view(self, router: Router, replicas: Sequence[Replica]) -> RoutingView:
        """Return a router that sees these replicas, live or delayed."""
        if self._refresher is None:
            return RoutingView(self.clock, router, replicas)
        return self._refresher.routing_view(router, replicas)

    def _send(self, row: int, now_ps: int) -> Placed | None:
        """Route one request; refuse it if its replica could never serve it."""
        rows = self.rows
        prompt_tokens, most_tokens = rows.prompt_tokens[row], rows.max_tokens[row]
        request = Request(row, now_ps, prompt_tokens, most_tokens)
        if self._cached_sizes:
            request.chains = rows.chains(row, self._cached_sizes)
        if self._labels:
            rows.label(request)
        if self._keeps_sessions:
            request.session = rows.session(row)
        destination = self._only or self._routing_view.pick(request)
        entry = self._entries[destination]
        room_tokens = entry.limit_tokens - prompt_tokens
        reason = entry.scheduler.never_fits(prompt_tokens)
        if prompt_tokens > entry.longest_prompt_tokens:
            reason = "prompt leaves no room for a token within max_model_len"
        if reason is None:
            if most_tokens > room_tokens:
                request.max_tokens = most_tokens = room_tokens
            if rows.output_tokens[row] > most_tokens:
                rows.output_tokens[row] = most_tokens
                self.recorder.explain(row, "answer cut at max_tokens or max_model_len")
            destination.enqueue(request, now_ps)
        else:
            self.recorder.reject(row, reason)
            if self._closed_loop:
                self._closed_loop.on_refusal(row, reason, now_ps)
        if self._on_send is not None and not row % SENDS_A_REPORT:
            self._on_send(self.sender.n_sent, now_ps)
        return (request, destination.id) if reason is None else None

    def _all_sent(self) -> None:
        """Start the drain."""
        if self._drain_limit_ps is not None:
            self._end.set(self.clock.now_ps + self._drain_limit_ps)
            self._drain_limit_ps = None

    def _stop(self, _: int) -> None:
        raise StopSimulation(None)

    def _explain_unfinished(self) -> None:
        """Record for every unfinished request what it waits for."""
        is_deadlock = self.clock.peek() == float("inf")
        for replica in self.replicas:
            for request in (*replica.batch.running, *replica.batch.waiting, *replica.in_transit):
                reason = replica.why_waiting() if is_deadlock else "still there at drain_limit_s after the last arrival"
                if self.recorder.status[request.row] == UNFINISHED:
                    self.recorder.explain(request.row, reason)


def check_conservation(n_sent: int, replicas: Sequence[Replica], recorder: Recorder, now_ps: int) -> None:
    """Raise InvariantError unless every request sent has ended or is present, and these hold all blocks in use."""
    at_s = to_s(now_ps)
    there = (each for r in replicas for group in (r.batch.running, r.batch.waiting, r.in_transit) for each in group)
    still_there = sum(recorder.status[request.row] == UNFINISHED for request in there)
    ended = sum(map(recorder.n_with, (FINISHED, REJECTED, TIMED_OUT)))
    if n_sent != ended + still_there:
        raise InvariantError("requests sent = ended + still there", n_sent, ended + still_there, at_s)
    for replica in replicas:
        pool = replica.pool
        held_blocks = pool.used_blocks + pool.reserved_blocks
        all_blocks = pool.free_blocks + held_blocks
        if all_blocks != pool.total_blocks:
            raise InvariantError("free + held = all blocks", all_blocks, pool.total_blocks, at_s)
        if held_blocks and not replica.batch.running and not replica.n_away:
            raise InvariantError(f"blocks held by no request on replica {replica.id}", held_blocks, 0, at_s)
