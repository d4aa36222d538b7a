"""Loop: the events of all replicas with their requests in columns, instant by instant."""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import i64

from simserve.columns.arrivals import Entrance, NextRows
from simserve.columns.batch import BatchColumns
from simserve.columns.handover import Handover
from simserve.columns.leaving import Leaving
from simserve.columns.live import ASKS, ENDED, WAITS
from simserve.columns.members import Members
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.columns.tiers import Tiers
from simserve.columns.units import InTurn, LaneColumns, StepUnit
from simserve.engine.alarm import Clock
from simserve.engine.cluster import Cluster
from simserve.engine.fleet import Control
from simserve.engine.replica import Replica
from simserve.integers import NEVER, Tournament


class Loop:
    """Events of all replicas in order: at each instant steps end, then keys and values arrive, then requests reach
    decode replicas and new ones the router, then replicas plan."""

    def __init__(
        self,
        cluster: Cluster,
        arrivals: NextRows,
        records: Records,
        entrance: Entrance,
        handover: Handover | None,
        tiers: Tiers,
    ) -> None:
        self.replicas: list[ReplicaColumns] = []
        """All ranks, in the order of their ids, and ..."""
        self._batches: list[BatchColumns] = []
        """... their requests."""
        self._units: list[StepUnit] = []
        """What each replica steps with."""
        self._arrivals, self._live, self._describe = arrivals, records.live, cluster.request_of
        self._needs_requests = entrance.is_asked or (handover is not None and handover.is_asked)
        """Routers, policies or prefix caches look at requests."""
        self._entrance, self._handover, self._admission = entrance, handover, cluster.gate
        self._tiers: Tiers | None = None
        tiers.follow, self._all_tiers = self.follow, tiers
        self._is_alone = cluster.replicas[0].is_alone
        self._cluster, self._deadlines = cluster, cluster.deadlines
        if cluster.deadlines is not None:
            how = self._batches, handover, self.follow, self._commit_now
            cluster.deadlines.servers = Leaving(cluster.rows, records, *how)
        self._control: Clock | None = None
        """The clock of what decides when members join and leave."""
        if cluster.control is not None:
            self._control, cluster.resend = Clock(), self._route_again
        self._clock, self._refresher = cluster.clock, cluster.refresher
        self._refresh_ps: i64 = NEVER
        """When routers see their replicas next as they then are, if views are delayed."""
        if cluster.refresher is not None:
            self._refresh_ps = cluster.refresher.refresh_ps
        self.ends = Tournament(1, NEVER)
        """End of each unit's step run, at the place of its first replica."""
        self.arrivals = Tournament(1, NEVER) if handover is None else handover.arrivals
        """Next keys and values of each replica."""
        self._planning = InTurn(1)
        """Units that plan at this instant."""
        self.now_ps: i64 = 0
        self.odd_rows: list[tuple[int, int, str]] = []
        """Rows with an answer that was cut, and its tokens, and those that were refused, and why."""

    def add(self, replicas: Sequence[ReplicaColumns], ranks: Sequence[Replica]) -> None:
        """Add ranks with the next ids."""
        self.replicas.extend(replicas)
        self._batches.extend([replica.batch for replica in replicas])
        self._units.extend(units_of(ranks, replicas))
        n = len(self.replicas)
        for each in (self.ends, self.arrivals, self._all_tiers.reads):
            each.widen(n)
        self._planning.widen(n)
        for replica in replicas:
            self._needs_requests = self._needs_requests or replica.batch.needs_requests
            if replica.tier is not None:
                self._tiers = self._all_tiers

    def begin(self, control: Control, members: Members) -> None:
        """Let a control decide when members join and leave."""
        assert self._control is not None, "members join and leave"
        self._cluster.fleet.serving = members
        control.begin(self._cluster.fleet, self._control)

    def halt(self, place: i64) -> None:
        """Let the step in flight of a replica neither end nor another one begin."""
        unit = self._units[place]
        unit.halt()
        self.ends.set(unit.place, NEVER)
        self._planning.remove(unit.place)

    def run(self, n_instants: i64) -> bool:
        """Serve some instants, or until the rows are used up; return whether more may follow."""
        arrivals, control = self._arrivals, self._control
        ends, units, coming, handover = self.ends, self._units, self.arrivals, self._handover
        deadlines, tiers = self._deadlines, self._tiers
        never: i64 = NEVER  # fast: a machine integer from here on
        for _ in range(n_instants):
            at_ps = ends.least()
            if arrivals.at_ps < at_ps:
                at_ps = arrivals.at_ps
            if handover is not None:
                if coming.least() < at_ps:
                    at_ps = coming.least()
                if handover.notice_at_ps < at_ps:
                    at_ps = handover.notice_at_ps
                if handover.stage_at_ps < at_ps:
                    at_ps = handover.stage_at_ps
            if deadlines is not None:
                due_ps = self._due_ps()
                if due_ps < at_ps:
                    at_ps = due_ps
            if tiers is not None and tiers.next_ps() < at_ps:
                at_ps = tiers.next_ps()
            if control is not None and control.instants and control.instants[0] < at_ps:
                at_ps = control.instants[0]
            if arrivals.at_ps == never and arrivals.are_more:
                return True
            if at_ps > self.now_ps and self._planning.n:
                self._plan()
                continue
            if at_ps > arrivals.end_ps:
                return False
            if self._refresh_ps < at_ps:
                self._refresh(at_ps - 1)
            self.now_ps = at_ps
            if tiers is not None:
                tiers.see(at_ps)
            while ends.least() == at_ps:
                place = ends.first()
                unit = units[place]
                unit.commit(at_ps)
                ends.set(place, never)
                self._planning.add(place)
            if handover is not None:
                while coming.least() == at_ps:
                    self._end_transfers(coming.first(), at_ps)
            if tiers is not None and tiers.next_ps() == at_ps:
                tiers.take(at_ps)
            if control is not None:
                self._change(control, at_ps)
            if self._refresh_ps == at_ps:
                self._refresh(at_ps)
            if control is not None and self._cluster.release_ps == at_ps:
                self._release(at_ps)
            if handover is not None:
                if handover.stage_at_ps == at_ps:
                    handover.send_staged(at_ps, len(self._batches))
                while handover.notice_at_ps == at_ps:
                    self._queue(handover.noticed(), at_ps)
                if handover.done:
                    for at in handover.take():
                        self._hand_over(handover, at, at_ps)
            while arrivals.at_ps == at_ps:
                if arrivals.take():
                    self._arrive(arrivals, at_ps)
            if deadlines is not None and self._due_ps() == at_ps:
                deadlines.take(at_ps)
                arrivals.find_next()
        return True

    def _change(self, control: Clock, now_ps: i64) -> None:
        """Let members join, drain and fail that do so at this instant."""
        while control.instants and control.instants[0] == now_ps:
            self._clock._now = now_ps
            control.step()
        self._arrivals.find_next()

    def _release(self, now_ps: i64) -> None:
        """Send what waited for a replica to be ready."""
        if self._handover is not None:
            for at in self._handover.take_held():
                self._hand_over(self._handover, at, now_ps)
        self._cluster.release_held(now_ps)

    def _admit_again(self, row: int, now_ps: int) -> None:
        """Decide about a request that has waited at the gateway."""
        last, arrivals = self._arrivals.row, self._arrivals
        arrivals.recall(row)
        self._arrive(arrivals, now_ps)
        arrivals.row = last

    def _route_again(self, row: int, now_ps: int) -> None:
        """Route a request that has waited at the gateway, or was lost."""
        last, arrivals = self._arrivals.row, self._arrivals
        arrivals.recall(row)
        self._route(arrivals, now_ps)
        arrivals.row = last

    def _due_ps(self) -> i64:
        """Return when clients next give up, or servers drop what these have sent."""
        if self._deadlines is None:
            return NEVER
        next_ps = self._deadlines.next_ps
        return NEVER if next_ps is None else next_ps

    def _commit_now(self, place: i64, now_ps: i64) -> None:
        """Commit a step run that ends at this very instant; the replica plans."""
        self._units[place].commit(now_ps)
        self.ends.set(place, NEVER)
        self._planning.add(place)

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
        handover = self._handover
        is_noticed = handover is not None and (len(handover.notices) > 0 or handover.stage_at_ps < NEVER)
        if (self._tiers is not None and self._tiers.next_ps() < NEVER) or (self._control and self._control.instants):
            return False
        is_over = self.ends.least() == NEVER and self.arrivals.least() == NEVER and self._due_ps() == NEVER
        return is_over and not is_noticed

    def _arrive(self, arrivals: NextRows, now_ps: i64) -> None:
        """Decide about a request, and route it."""
        if self._admission is not None:
            if not self._admission.views:
                self._cluster.hold(arrivals.row, self._admit_again)
                return
            self._clock._now = now_ps
            reason = self._admission.why_refused(arrivals.row, now_ps)
            if reason is not None:
                self._refuse(arrivals.row, reason, now_ps)
                arrivals.not_admitted(arrivals.row, reason, now_ps)
                return
        self._route(arrivals, now_ps)

    def _route(self, arrivals: NextRows, now_ps: i64) -> None:
        """Route a request, and refuse it if its replica could never serve it."""
        row, prompt_tokens, output_tokens = arrivals.row, arrivals.prompt_tokens, arrivals.output_tokens
        request = self._describe(row, now_ps) if self._needs_requests else None
        entry = self._entrance.pick(row, request, now_ps)
        if entry is None:
            self._cluster.hold(row, self._route_again)
            return
        reason = entry.why_refused(prompt_tokens)
        if reason is not None:
            self._refuse(row, reason, now_ps)
            arrivals.refused(row, reason, now_ps)
            return
        most_tokens = entry.limit_tokens - prompt_tokens
        if arrivals.max_tokens < most_tokens:
            most_tokens = arrivals.max_tokens
        if output_tokens > most_tokens:
            output_tokens = most_tokens
            self._note(row, most_tokens, "")
        at = self._live.add(row, prompt_tokens, output_tokens, most_tokens)
        if request is not None:
            self._live.show(at, request)
            if request.max_tokens > entry.limit_tokens - prompt_tokens:
                request.max_tokens = entry.limit_tokens - prompt_tokens
        batch = self._batches[entry.place]
        batch.arrive(at, request)
        if self._deadlines is not None:
            self._deadlines.placed(row, at)
        if self._handover is None or entry.keeps or not batch.side.hands_over:
            self.follow(entry.place, batch.queue(at, now_ps))
            return
        self._live.is_kept[at] = 0
        if not batch.side.asks_first:
            self.follow(entry.place, batch.queue(at, now_ps))
            return
        self._live.joined_ps[at], self._live.phase[at] = now_ps, ASKS
        self._hand_over(self._handover, at, now_ps)

    def _refuse(self, row: i64, reason: str, now_ps: i64) -> None:
        """Note a request that is refused. The step run of a lone replica ends all the same where a request comes."""
        self._note(row, 0, reason)
        if self._is_alone:
            self._batches[0].cut(now_ps, False)
            self.follow(0, False)

    def _note(self, row: int, n_tokens: int, reason: str) -> None:
        """Note a row with an answer that is cut, or that is refused; at once if clients may send it again."""
        if self._cluster.sender.has_attempts or self._control is not None:
            explain(self._cluster, row, n_tokens, reason)
        else:
            self.odd_rows.append((row, n_tokens, reason))

    def _end_transfers(self, place: i64, now_ps: i64) -> None:
        """Let a decode replica have the keys and values that arrive, and prefill replicas the blocks that held them."""
        batch = self._batches[place]
        at = batch.side.arrived(now_ps)
        while at >= 0:
            if self._live.phase[at] == ENDED:
                batch.let_go(at, now_ps)
            else:
                sender = self._live.sender[at]
                self.follow(sender, self._batches[sender].give_back(at, now_ps))
            at = batch.side.arrived(now_ps)
        self.follow(place, batch.wake(now_ps))

    def _hand_over(self, handover: Handover, at: i64, now_ps: i64) -> None:
        """Route a request to the replica that will decode it: once its prompt is computed, or before."""
        live = self._live
        place = handover.pick(live.request(at) if self._needs_requests else None, now_ps)
        live.sender[at] = live.replica[at]
        live.receiver[at] = place
        live.there_ps[at] = 0
        if place < 0:
            handover.held.append(at)
            return
        if handover.is_pushed:
            handover.pushes[at] = None
        if not handover.is_pushed:
            handover.recorder.hand_over(live.row[at], live.sender[at], place)
            live.replica[at] = place
        self.follow(place, self._batches[place].fetch(at, now_ps))

    def _queue(self, at: i64, now_ps: i64) -> None:
        """Queue a request that has blocks on its decode replica."""
        sender = self._live.sender[at]
        self._live.phase[at] = WAITS
        self.follow(sender, self._batches[sender].queue(at, now_ps))

    def follow(self, place: i64, is_idle: bool) -> None:
        """Let a replica plan in its turn if it is idle; otherwise its step run may have been cut."""
        unit = self._units[place]
        if is_idle:
            self._planning.add(unit.place)
        else:
            self.ends.set(unit.place, unit.end_ps())

    def _plan(self) -> None:
        """Let the units plan that have no step in flight and something to do."""
        planning = self._planning
        for i in range(planning.n):
            unit = self._units[planning.places[i]]
            unit.plan(self.now_ps)
            self.ends.set(unit.place, unit.end_ps())
        planning.n = 0


def explain(cluster: Cluster, row: int, n_tokens: int, reason: str) -> None:
    """Record a row with an answer that is cut, or that is refused for a reason."""
    if reason:
        cluster.reject(row, reason)
    else:
        cluster.cut(row, n_tokens)


def units_of(ranks: Sequence[Replica], replicas: Sequence[ReplicaColumns]) -> list[StepUnit]:
    """Return what each of some ranks, one after the other, steps with: itself, or its lane."""
    units, first = list[StepUnit](replicas), ranks[0].id
    for rank in ranks:
        lane = rank.stepping.lane
        if lane is not None and lane.ranks[0] == rank.id:
            places = [each - first for each in lane.ranks]
            together = LaneColumns(lane, [replicas[place] for place in places])
            for place in places:
                units[place] = together
    return units
