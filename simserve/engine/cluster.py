"""Cluster: replicas behind a router, the load that comes to them, and the clock."""

import gc
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random

from simpy.core import StopSimulation

from simserve.engine.alarm import END_PHASE, Alarm, Clock
from simserve.engine.checks import broke, raised
from simserve.engine.conservation import check_conservation
from simserve.engine.frontend import FrontEnd
from simserve.engine.handoff import Disaggregation
from simserve.engine.lockstep import Lockstep
from simserve.engine.offered import Offered, Rows
from simserve.engine.pipeline import Pipeline
from simserve.engine.recorder import Recorder
from simserve.engine.replica import OnAnswer, Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.roles import BOTH, Tie, door_roles, kinds
from simserve.engine.senders import ClosedLoopSender, TraceSender
from simserve.errors import PolicyError
from simserve.routers.base import Router
from simserve.schedulers.base import Scheduler
from simserve.state.request import Request

SENDS_A_REPORT = 256
"""How often `on_send` is told: often enough for a progress bar, too seldom to cost anything."""


@dataclass(frozen=True)
class _Entry:
    """A replica that requests are sent to."""

    index: int
    scheduler: Scheduler
    limit_tokens: int
    """Of a prompt and its answer, wherever that is decoded."""
    longest_prompt_tokens: int

    @classmethod
    def of(cls, index: int, setup: ReplicaSetup, setups: Sequence[ReplicaSetup]) -> "_Entry":
        decodes = [each for each in setups if each.role == "decode"] if setup.role == "prefill" else [setup]
        limit_tokens = min(each.max_model_len for each in decodes)
        return cls(index, setup.scheduler, limit_tokens, min(limit_tokens, setup.max_model_len) - 1)


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
    ) -> None:
        self.clock = Clock()
        self.front_end = front_end or FrontEnd()
        ranks = [setup for setup in setups for _ in range(setup.n_ranks)]
        roles = door_roles(ranks, disaggregation)
        self._entries = [_Entry.of(index, rank, setups) for index, rank in enumerate(ranks) if rank.role in roles]
        self._caches = any(rank.block_tokens is not None for rank in ranks)
        self.rows = Rows(offered.trace, max(entry.limit_tokens for entry in self._entries))
        self.recorder = Recorder(len(self.rows), len(ranks))
        self._closed_loop: ClosedLoopSender | None = None
        if offered.concurrency is not None:
            self._closed_loop = ClosedLoopSender(
                self.clock, self.rows, self.recorder, offered, self.front_end, self._send, self._all_sent
            )
        self.sender = self._closed_loop or TraceSender(
            self.clock, self.rows, self.front_end, self._send, self._all_sent
        )
        on_answer = self._closed_loop.on_answer if self._closed_loop else None
        self.replicas: list[Replica] = []
        is_alone = len(ranks) == 1 and offered.concurrency is None
        for setup in setups:
            self.replicas += self._ranks(setup, on_answer, is_alone, disaggregation)
        self._router = router
        router.begin(Random(router_seed))
        self._views = [self.replicas[entry.index] for entry in self._entries]
        if disaggregation is not None:
            tie = Tie(self.clock, disaggregation, self.replicas, self._pick)
            tie.connect(self.recorder, router_seed)
            self._router = tie.door(router, self._views, router_seed)
        self._end = Alarm(self.clock, self._stop, END_PHASE)
        self._drain_limit_ps: int | None = None
        self._on_send: Callable[[int, int], None] | None = None

    def run(self, drain_limit_ps: int | None = None, on_send: Callable[[int, int], None] | None = None) -> None:
        """Serve everything, or stop drain_limit_ps after the last request was sent.

        on_send(rows sent, now in ps) is called now and then. Raises PolicyError when a policy breaks a rule.
        """
        self._drain_limit_ps = drain_limit_ps
        self._on_send = on_send
        self.sender.start()
        is_collecting = gc.isenabled()
        gc.disable()  # fast: the engine makes no cycles, and looking for them takes a tenth of the time
        try:
            self.clock.run()
        finally:
            if is_collecting:
                gc.enable()
        for replica in self.replicas:
            replica.stop(self.clock.now_ps)
        self._explain_unfinished()
        check_conservation(self.sender.n_sent, self.replicas, self.recorder, self.clock.now_ps)

    def _ranks(
        self, setup: ReplicaSetup, on_answer: OnAnswer | None, is_alone: bool, how: Disaggregation | None
    ) -> list[Replica]:
        """The ranks of a replica, each with a policy of its own, for it may keep state."""
        setups = [setup, *(replace(setup, scheduler=deepcopy(setup.scheduler)) for _ in range(setup.n_ranks - 1))]
        numbered = enumerate(setups, len(self.replicas))
        shared = (self.clock, self.rows, self.recorder, on_answer)
        kind = kinds(setup.role, how)
        if setup.n_stages > 1:
            lanes = [kind.lane(index, each, *shared) for index, each in numbered]
            Pipeline.join(lanes)
            return [*lanes]
        if setup.n_in_step > 1:
            ranks = [kind.rank(index, each, *shared) for index, each in numbered]
            Lockstep.join(ranks, setup.cost, self.clock)
            return [*ranks]
        if kind is BOTH:
            return [Replica(index, each, *shared, is_alone=is_alone) for index, each in numbered]
        return [kind.alone(index, each, *shared) for index, each in numbered]

    def _send(self, row: int, now_ps: int) -> None:
        """Route one request; refuse it if its replica could never serve it."""
        rows = self.rows
        prompt_tokens, most_tokens = rows.prompt_tokens[row], rows.max_tokens[row]
        request = Request(row, now_ps, prompt_tokens, most_tokens)
        if self._caches:
            request.chain = rows.chain(row)
        entry = self._entries[0 if len(self._entries) == 1 else self._pick(self._router, request, self._views)]
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
            self.replicas[entry.index].enqueue(request, now_ps)
        else:
            self.recorder.reject(row, reason)
            if self._closed_loop:
                self._closed_loop.on_refusal(row, reason, now_ps)
        if self._on_send is not None and not row % SENDS_A_REPORT:
            self._on_send(row, now_ps)

    def _pick(self, router: Router, request: Request, views: Sequence[Replica]) -> int:
        try:
            index = router.pick(request, views)
        except PolicyError:
            raise
        except Exception as error:
            raise raised(router, "pick", self.clock.now_ps, error) from error
        if type(index) is not int or not 0 <= index < len(views):
            rule = f"must return the index of a replica, a whole number from 0 to {len(views) - 1}"
            raise broke(router, "pick", self.clock.now_ps, rule, index)
        return index

    def _all_sent(self) -> None:
        """From here on the run drains."""
        if self._drain_limit_ps is not None:
            self._end.set(self.clock.now_ps + self._drain_limit_ps)
            self._drain_limit_ps = None

    def _stop(self, _: int) -> None:
        raise StopSimulation(None)

    def _explain_unfinished(self) -> None:
        """Say of every request still there what it waits for."""
        is_deadlock = self.clock.peek() == float("inf")
        for replica in self.replicas:
            for request in (*replica.seats.running, *replica.seats.waiting, *replica.on_their_way):
                reason = replica.why_waiting() if is_deadlock else "still there at drain_limit_s after the last arrival"
                self.recorder.explain(request.row, reason)
