"""Loop: what happens to all replicas, instant by instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mypy_extensions import i64

from simserve.columns.arrivals import NextRows
from simserve.columns.dispatcher import Dispatcher
from simserve.columns.handover import Handover
from simserve.columns.leaving import Leaving, Members
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.columns.tiers import Tiers
from simserve.columns.turns import UnitTurns
from simserve.columns.units import LaneColumns, StepUnit
from simserve.engine.alarm import Clock
from simserve.engine.cluster import Cluster
from simserve.engine.fleet import Control
from simserve.engine.replica import Replica
from simserve.integers import NEVER, Tournament


class Loop:
    """Time: from one instant to the next at which something happens.

    At each instant steps end, in the order of replicas; then keys and values arrive, and reads from host memory end;
    then members join, drain and fail; then delayed views are refreshed; then requests reach decode replicas, and new
    ones the router; then clients give up; and at last replicas plan.
    """

    def __init__(
        self,
        cluster: Cluster,
        arrivals: NextRows,
        records: Records,
        dispatcher: Dispatcher,
        handover: Handover | None,
        tiers: Tiers,
        turns: UnitTurns,
    ) -> None:
        self.replicas: list[ReplicaColumns] = []
        """All ranks, in the order of their ids."""
        self._arrivals, self.dispatcher, self._handover, self._all_tiers = arrivals, dispatcher, handover, tiers
        self._turns, self._ends = turns, turns.ends
        self._tiers: Tiers | None = None
        """Tiers of replicas, if any has some."""
        self._cluster, self._clock, self._deadlines = cluster, cluster.clock, cluster.deadlines
        if cluster.deadlines is not None:
            cluster.deadlines.servers = Leaving(cluster.rows, records, dispatcher.batches, handover, turns)
        self._control: Clock | None = None
        """The clock of what decides when members join and leave, ..."""
        self._alarm_ps: i64 = NEVER
        """... its next alarm, and ..."""
        self._goes_on: Callable[[], bool] = bool
        """... whether that matters when nothing else happens."""
        self._coming = Tournament(1) if handover is None else handover.arrivals
        """Next keys and values of each replica."""
        self.now_ps: i64 = 0

    def add(self, replicas: Sequence[ReplicaColumns], ranks: Sequence[Replica]) -> None:
        """Add ranks with the next ids."""
        self.replicas.extend(replicas)
        self._turns.add(units_of(ranks, replicas))
        for each in (self._coming, self._all_tiers.reads):
            each.widen(len(self.replicas))
        for replica in replicas:
            self.dispatcher.add(replica.batch)
            if replica.tier is not None:
                self._tiers = self._all_tiers

    def begin(self, control: Control, members: Members) -> None:
        """Let a control decide when members join and leave."""
        self._cluster.fleet.serving, self._goes_on = members, control.goes_on
        self._control = Clock(self._note_alarm)
        control.begin(self._cluster.fleet, self._control)

    def _note_alarm(self, at_ps: int) -> None:
        """Note an alarm that is set."""
        if at_ps < self._alarm_ps:
            self._alarm_ps = at_ps

    def run(self, n_instants: i64) -> bool:
        """Serve some instants, or until the rows are used up; return whether more may follow."""
        arrivals, dispatcher, turns = self._arrivals, self.dispatcher, self._turns
        for _ in range(n_instants):
            at_ps = self._next_ps()
            if arrivals.at_ps == NEVER and arrivals.are_more:
                return True
            if at_ps > self.now_ps and turns.are_left:
                turns.plan(self.now_ps)
                continue
            if at_ps > arrivals.end_ps:
                return False
            if dispatcher.refresh_ps < at_ps:
                dispatcher.refresh(at_ps - 1)
            self.now_ps = at_ps
            self._happen(at_ps)
        return True

    def _next_ps(self) -> i64:
        """Return the next instant at which something happens, this one included; NEVER: nothing does."""
        handover, at_ps = self._handover, self._ends.least()
        if self._arrivals.at_ps < at_ps:
            at_ps = self._arrivals.at_ps
        if handover is not None:
            if self._coming.least() < at_ps:
                at_ps = self._coming.least()
            if handover.notice_at_ps < at_ps:
                at_ps = handover.notice_at_ps
            if handover.stage_at_ps < at_ps:
                at_ps = handover.stage_at_ps
        if self._deadlines is not None and self._due_ps() < at_ps:
            at_ps = self._due_ps()
        if self._tiers is not None and self._tiers.next_ps() < at_ps:
            at_ps = self._tiers.next_ps()
        if self._alarm_ps < at_ps and (at_ps < NEVER or self._goes_on()):
            at_ps = self._alarm_ps
        return at_ps

    def _happen(self, at_ps: i64) -> None:
        """Let all happen that happens at an instant, but plans."""
        ends, handover, tiers = self._ends, self._handover, self._tiers
        dispatcher, arrivals = self.dispatcher, self._arrivals
        if tiers is not None:
            tiers.see(at_ps)
        while ends.least() == at_ps:
            self._turns.commit(ends.first(), at_ps)
        if handover is not None:
            while self._coming.least() == at_ps:
                dispatcher.end_transfers(self._coming.first(), at_ps)
        if tiers is not None and tiers.next_ps() == at_ps:
            tiers.take(at_ps)
        if self._alarm_ps == at_ps and self._control is not None:
            self._change(self._control, at_ps)
        if dispatcher.refresh_ps == at_ps:
            dispatcher.refresh(at_ps)
        if self._cluster.release_ps == at_ps:
            dispatcher.release(at_ps)
        if handover is not None:
            if handover.stage_at_ps == at_ps:
                handover.send_staged(at_ps, len(self.replicas))
            dispatcher.end_notices(handover, at_ps)
            if handover.done:
                for at in handover.take():
                    dispatcher.hand_over(handover, at, at_ps)
        while arrivals.at_ps == at_ps:
            if arrivals.take():
                dispatcher.arrive(at_ps)
        if self._deadlines is not None and self._due_ps() == at_ps:
            self._deadlines.take(at_ps)
            arrivals.find_next()

    def _change(self, control: Clock, now_ps: i64) -> None:
        """Let members join, drain and fail that do so at this instant."""
        while control.next_ps == now_ps:
            self._clock._now = now_ps
            control.step()
        next_ps = control.next_ps
        self._alarm_ps = next_ps if next_ps < NEVER else NEVER
        self._arrivals.find_next()

    def _due_ps(self) -> i64:
        """Return when clients next give up, or servers drop what these have sent."""
        next_ps = None if self._deadlines is None else self._deadlines.next_ps
        return NEVER if next_ps is None else next_ps

    def is_out_of_events(self) -> bool:
        """Return whether nothing more happens, unless new requests come."""
        at_ps = self._arrivals.at_ps
        self._arrivals.at_ps = NEVER
        is_over = self._next_ps() == NEVER
        self._arrivals.at_ps = at_ps
        return is_over


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
