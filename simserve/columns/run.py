"""Run on columns: serves a cluster with its requests in columns, to the bit as its objects would."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Final

from mypy_extensions import i64

from simserve.columns.arrivals import Clients, Entrance, NextRows, Timed, is_own
from simserve.columns.batch import ReplicaColumns
from simserve.columns.contents import contents_of
from simserve.columns.handover import Handover, Side
from simserve.columns.live import ENDED, Live
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records
from simserve.columns.running import MOST_PLACES, Running
from simserve.columns.units import LaneColumns, Unit
from simserve.engine.cluster import Cluster, OnSend
from simserve.engine.decode import Decode
from simserve.engine.handoff import HandsOver, Pushes
from simserve.engine.memory import CachingMemory, KeepingMemory, Memory
from simserve.engine.receiving import Receives
from simserve.engine.replica import Replica
from simserve.engine.role import Role
from simserve.engine.senders import TraceSender
from simserve.engine.stepping import Alone, Rank
from simserve.integers import NEVER, NONE, Tournament, filled, vec

INSTANTS_A_LOOK: Final = 4096
"""Instants between two looks at the keyboard, in which rows are recorded without the recorder."""
LARGEST: Final = 1 << 30
"""Most tokens of a request and of a step: products of two of them, and sums of these over a step, fit 64 bits."""


class Loop:
    """Events of all replicas in order: at each instant steps end, then keys and values arrive, then requests reach
    decode replicas and new ones the router, then replicas plan."""

    def __init__(
        self,
        cluster: Cluster,
        live: Live,
        batches: Sequence[ReplicaColumns],
        entrance: Entrance,
        handover: Handover | None,
    ) -> None:
        """Serve with these replicas, in the order of their ids."""
        self._batches, self._live, self._describe = list(batches), live, cluster.request_of
        self._needs_requests = entrance.is_asked or (handover is not None and handover.loads.is_asked)
        """Routers or prefix caches look at requests."""
        for replica in cluster.replicas:
            self._needs_requests = self._needs_requests or replica.batch.memory.caches
        self._units: list[Unit] = units_of(cluster, batches)
        """What each replica steps with."""
        self._entrance, self._handover, self._admission = entrance, handover, cluster.gate
        self._clock, self._refresher = cluster.clock, cluster.refresher
        self._refresh_ps: i64 = NEVER
        """When routers see their replicas next as they then are, if views are delayed."""
        if cluster.refresher is not None:
            self._refresh_ps = cluster.refresher.refresh_ps
        n: i64 = len(batches)
        self.ends = Tournament(n, NEVER)
        """End of each unit's step run, at the place of its first replica."""
        self.arrivals = Tournament(1, NEVER) if handover is None else handover.arrivals
        """Next keys and values of each replica."""
        self._planning: vec[i64] = filled(n, NONE)
        """Units that plan at this instant, in order."""
        self._n_planning: i64 = 0
        self.now_ps: i64 = 0
        self.odd_rows: list[tuple[int, int, str]] = []
        """Rows with an answer that was cut, and its tokens, and those that were refused, and why."""

    def run(self, arrivals: NextRows, n_instants: i64) -> bool:
        """Serve some instants, or until the rows are used up; return whether more may follow."""
        ends, units, coming, handover = self.ends, self._units, self.arrivals, self._handover
        never: i64 = NEVER  # fast: a machine integer from here on
        for _ in range(n_instants):
            at_ps = ends.least()
            if arrivals.at_ps < at_ps:
                at_ps = arrivals.at_ps
            if coming.least() < at_ps:
                at_ps = coming.least()
            if handover is not None and handover.notice_at_ps < at_ps:
                at_ps = handover.notice_at_ps
            if arrivals.at_ps == never and arrivals.are_more:
                return True
            if at_ps > self.now_ps and self._n_planning:
                self._plan()
                continue
            if at_ps > arrivals.end_ps:
                return False
            if self._refresh_ps < at_ps:
                self._refresh(at_ps - 1)
            self.now_ps = at_ps
            while ends.least() == at_ps:
                place = ends.first()
                unit = units[place]
                unit.commit(at_ps)
                ends.set(place, never)
                self._planning[self._n_planning] = place
                self._n_planning += 1
            if self._refresh_ps == at_ps:
                self._refresh(at_ps)
            if handover is not None:
                while coming.least() == at_ps:
                    self._end_transfers(coming.first(), at_ps)
                while handover.notice_at_ps == at_ps:
                    self._queue(handover.noticed(), at_ps)
                if handover.done:
                    for at in handover.take():
                        self._hand_over(handover, at, at_ps)
            while arrivals.at_ps == at_ps:
                if arrivals.take():
                    self._arrive(arrivals, at_ps)
        return True

    def _refresh(self, at_ps: i64) -> None:
        """Show routers their replicas as they were at the last multiple of the delay, at an instant or before."""
        assert self._refresher is not None, "views are delayed"
        every_ps: i64 = self._refresher.refresh_ps
        last_ps = at_ps // every_ps * every_ps
        if last_ps >= self._refresh_ps:
            self._clock._now = last_ps
            self._refresher.take()
            self._refresh_ps = last_ps + every_ps

    def is_out_of_events(self) -> bool:
        """Return whether nothing more happens, unless new requests come."""
        is_noticed = self._handover is not None and len(self._handover.notices) > 0
        return self.ends.least() == NEVER and self.arrivals.least() == NEVER and not is_noticed

    def _arrive(self, arrivals: NextRows, now_ps: i64) -> None:
        """Route a request, and refuse it if its replica could never serve it."""
        row, prompt_tokens, output_tokens = arrivals.row, arrivals.prompt_tokens, arrivals.output_tokens
        if self._admission is not None:
            reason = self._admission.why_refused(row, now_ps)
            if reason is not None:
                self.odd_rows.append((row, 0, reason))
                arrivals.not_admitted(row, reason, now_ps)
                return
        request = self._describe(row, now_ps) if self._needs_requests else None
        gate = self._entrance.pick(request, now_ps)
        batch = self._batches[gate.place]
        reason = gate.why_refused(prompt_tokens)
        if reason is not None:
            self.odd_rows.append((row, 0, reason))
            arrivals.refused(row, reason, now_ps)
            return
        most_tokens = gate.limit_tokens - prompt_tokens
        if arrivals.max_tokens < most_tokens:
            most_tokens = arrivals.max_tokens
        if output_tokens > most_tokens:
            output_tokens = most_tokens
            self.odd_rows.append((row, most_tokens, ""))
        at = self._live.add(row, prompt_tokens, output_tokens, most_tokens)
        if request is not None:
            self._live.requests[at] = request
            if request.max_tokens > gate.limit_tokens - prompt_tokens:
                request.max_tokens = gate.limit_tokens - prompt_tokens
        batch.arrive(at, request)
        if self._handover is None or gate.keeps or not batch.side.hands_over:
            self._follow(gate.place, batch.queue(at, now_ps))
            return
        self._live.is_kept[at] = 0
        if not batch.side.asks_first:
            self._follow(gate.place, batch.queue(at, now_ps))
            return
        self._live.joined_ps[at] = now_ps
        self._hand_over(self._handover, at, now_ps)

    def _end_transfers(self, place: i64, now_ps: i64) -> None:
        """Let a decode replica have the keys and values that arrive, and prefill replicas the blocks that held them."""
        batch = self._batches[place]
        at = batch.side.arrived(now_ps)
        while at >= 0:
            if self._live.phase[at] == ENDED:
                batch.let_go(at)
            else:
                sender = self._live.sender[at]
                self._follow(sender, self._batches[sender].give_back(at, now_ps))
            at = batch.side.arrived(now_ps)
        self._follow(place, batch.wake(now_ps))

    def _hand_over(self, handover: Handover, at: i64, now_ps: i64) -> None:
        """Route a request to the replica that will decode it: once its prompt is computed, or before."""
        live = self._live
        place = handover.pick(live.request(at) if self._needs_requests else None, now_ps)
        live.sender[at] = live.replica[at]
        live.receiver[at] = place
        live.there_ps[at] = 0
        if not handover.is_pushed:
            handover.recorder.hand_over(live.row[at], live.sender[at], place)
            live.replica[at] = place
        self._follow(place, self._batches[place].fetch(at, now_ps))

    def _queue(self, at: i64, now_ps: i64) -> None:
        """Queue a request that has blocks on its decode replica."""
        sender = self._live.sender[at]
        self._follow(sender, self._batches[sender].queue(at, now_ps))

    def _follow(self, place: i64, is_idle: bool) -> None:
        """Let a replica plan in its turn if it is idle; otherwise its step run may have been cut."""
        unit = self._units[place]
        if is_idle:
            self._plan_at_this_instant(unit.place)
        else:
            self.ends.set(unit.place, unit.end_ps())

    def _plan_at_this_instant(self, place: i64) -> None:
        """Let a unit plan, in its turn."""
        planning, at = self._planning, self._n_planning
        for i in range(at):
            if planning[i] == place:
                return
        while at and planning[at - 1] > place:
            planning[at] = planning[at - 1]
            at -= 1
        planning[at] = place
        self._n_planning += 1

    def _plan(self) -> None:
        """Let the units plan that have no step in flight and something to do."""
        for i in range(self._n_planning):
            place = self._planning[i]
            unit = self._units[place]
            unit.plan(self.now_ps)
            self.ends.set(place, unit.end_ps())
        self._n_planning = 0


def units_of(cluster: Cluster, batches: Sequence[ReplicaColumns]) -> list[Unit]:
    """Return what each replica steps with: itself, or its lane."""
    units: list[Unit] = list(batches)
    for replica in cluster.replicas:
        stepping = replica.stepping
        if isinstance(stepping, Rank) and stepping.lane.ranks[0] is replica:
            lane = LaneColumns(stepping.lane, batches)
            for rank in stepping.lane.ranks:
                units[rank.id] = lane
    return units


def serves(cluster: Cluster) -> bool:
    """Return whether all that a cluster has is on columns."""
    return (
        cluster.only_serves
        and 0 < len(cluster.rows) <= MOST_PLACES
        and cluster.limit_tokens <= LARGEST
        and all(map(_is_on_columns, cluster.replicas))
    )


def _is_on_columns(replica: Replica) -> bool:
    scheduler, batch = replica.scheduler, replica.batch
    most_tokens = scheduler.budget_tokens or batch.pool.total_blocks * batch.pool.block_size
    return (
        scheduler.rows_planner() is not None
        and is_own(scheduler)
        and most_tokens <= LARGEST
        and type(batch.memory) in (Memory, KeepingMemory, CachingMemory)
        and batch.pool.layers is None
        and type(replica.decode) is Decode
        and type(replica.stepping) in (Alone, Rank)
        and not (replica.stepping.n_stages > 1 and isinstance(replica.role, Pushes) and replica.role.streams)
        and type(replica.role) in (Role, HandsOver, Pushes, Receives)
        and all(hooks is replica.role for hooks in replica.hooks)
        and batch.swap is None
    )


def serve(cluster: Cluster, drain_limit_ps: int | None = None, on_send: OnSend | None = None) -> None:
    """Serve all requests as `Cluster.run`. Raises PolicyError for a router that breaks a rule."""
    live, sender = Live(), cluster.sender
    records, batches = Records(cluster.recorder, live), []
    arrivals: NextRows
    if isinstance(sender, TraceSender):
        arrivals = Timed(cluster, drain_limit_ps)
    else:
        arrivals = Clients(cluster, drain_limit_ps, sender)
    entrance = Entrance(cluster)
    handover = None if cluster.handoff is None else Handover(cluster, cluster.handoff)
    for replica in cluster.replicas:
        planner = replica.scheduler.rows_planner()
        assert planner is not None, "the policy plans on rows"
        running = Running(replica.id, live, replica.cohort)
        prompts = PromptColumns(replica, planner, running, records, contents_of(replica, live))
        side = Side(entrance.loads) if handover is None else handover.side(replica, prompts, entrance.loads)
        batches.append(ReplicaColumns(replica, prompts, records, arrivals, side))
    loop = Loop(cluster, live, batches, entrance, handover)
    is_collecting = gc.isenabled()
    gc.disable()  # fast: columns make no reference cycles, and searching for them takes a tenth of the time
    try:
        while loop.run(arrivals, INSTANTS_A_LOOK):
            records.flush()
            _explain(cluster, loop)
            if on_send is not None:
                on_send(sender.n_sent, loop.now_ps)
            arrivals.load()
        is_deadlock = loop.is_out_of_events()
        cluster.clock._now = loop.now_ps if arrivals.end_ps == NEVER - 1 else arrivals.end_ps
        for batch in batches:
            batch.stop(cluster.clock.now_ps)
    finally:
        if is_collecting:
            gc.enable()
        cluster.clock._now = max(cluster.clock.now_ps, loop.now_ps)
        records.flush()
    _explain(cluster, loop)
    cluster.close(is_deadlock=is_deadlock)


def _explain(cluster: Cluster, loop: Loop) -> None:
    """Record refusals and cuts in the order of sending."""
    for row, n_tokens, reason in loop.odd_rows:
        if reason:
            cluster.reject(row, reason)
        else:
            cluster.cut(row, n_tokens)
    loop.odd_rows.clear()
