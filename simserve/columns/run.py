"""Run on columns: serves a cluster with its requests in columns, to the bit as its objects would."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Final

from simserve.columns.arrivals import Clients, Entrance, NextRows, Timed, is_own
from simserve.columns.batch import BatchColumns
from simserve.columns.contents import contents_of
from simserve.columns.handover import Handover
from simserve.columns.live import Line, Live
from simserve.columns.loop import Loop, explain
from simserve.columns.members import Members
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.columns.running import MOST_PLACES, Running
from simserve.columns.sides import side_of
from simserve.columns.speculation import SpeculativeRunning
from simserve.columns.tiers import Tiers, TierSide
from simserve.columns.views import ViewPlanner
from simserve.engine.cluster import Cluster, OnSend
from simserve.engine.replica import Replica
from simserve.engine.role import RoleName
from simserve.engine.senders import TraceSender
from simserve.integers import NEVER
from simserve.state.planner import Planner

INSTANTS_A_LOOK: Final = 4096
"""Instants between two looks at the keyboard, in which rows are recorded without the recorder."""
LARGEST: Final = 1 << 30
"""Most tokens of a request and of a step: products of two of them, and sums of these over a step, fit 64 bits."""


def serves(cluster: Cluster) -> bool:
    """Return whether all that a cluster has fits columns."""
    fits = 0 < len(cluster.rows) <= MOST_PLACES and cluster.limit_tokens <= LARGEST
    return fits and all(map(_fits, cluster.replicas))


def _fits(replica: Replica) -> bool:
    pool = replica.batch.pool
    return (replica.scheduler.budget_tokens or pool.total_blocks * pool.block_size) <= LARGEST


class Building:
    """Gives the ranks of a cluster their columns."""

    def __init__(self, cluster: Cluster, arrivals: NextRows) -> None:
        self.live, deadlines = Live(), cluster.deadlines
        is_seen = deadlines is not None or cluster.control is not None
        self.records = Records(cluster.recorder, self.live, deadlines, is_seen=is_seen)
        self.entrance, self.tiers = Entrance(cluster), Tiers(cluster)
        self.handover = None if cluster.handoff is None else Handover(cluster, cluster.handoff, self.live)
        self._arrivals = arrivals
        self.loop = Loop(cluster, arrivals, self.records, self.entrance, self.handover, self.tiers)

    def add(self, ranks: Sequence[Replica], roles: Sequence[RoleName]) -> None:
        """Add ranks with these roles, which have the next ids."""
        self.loop.add([self._columns(rank, role) for rank, role in zip(ranks, roles, strict=True)], ranks)

    def _columns(self, replica: Replica, role: RoleName) -> ReplicaColumns:
        contents = contents_of(replica, self.live)
        kind = SpeculativeRunning if replica.decode.is_uneven else Running
        planner, queue = _planner(replica, self.live)
        prompts = PromptColumns(replica, planner, queue, kind(replica, self.live, contents), self.records, contents)
        side = side_of(replica, role, prompts, self.handover, self.entrance.loads)
        columns = ReplicaColumns(replica, BatchColumns(replica, prompts, self.records, self._arrivals, side))
        if replica.tier is not None:
            tier = TierSide(replica, replica.tier, columns.batch, self.tiers)
            self.tiers.add(replica.id, tier, replica.tier.store)
            columns.use(tier)
        return columns


def serve(cluster: Cluster, drain_limit_ps: int | None = None, on_send: OnSend | None = None) -> None:
    """Serve all requests as `Cluster.run`. Raises PolicyError for a policy that breaks a rule."""
    sender = cluster.sender
    arrivals: NextRows
    if isinstance(sender, TraceSender):
        arrivals = Timed(cluster, drain_limit_ps)
    else:
        arrivals = Clients(cluster, drain_limit_ps, sender)
    building = Building(cluster, arrivals)
    loop, records = building.loop, building.records
    for member in cluster.members:
        building.add(member.ranks, [member.setup.role] * len(member.ranks))
    if cluster.control is not None:

        def order(ranks: Sequence[Replica]) -> None:
            building.add(ranks, [cluster.members[-1].setup.role] * len(ranks))

        members = Members(records, loop.replicas, building.handover, order, loop.halt, loop.follow)
        loop.begin(cluster.control, members)
    is_collecting = gc.isenabled()
    gc.disable()  # fast: columns make no reference cycles, and searching for them takes a tenth of the time
    try:
        while loop.run(INSTANTS_A_LOOK):
            records.flush()
            _explain(cluster, loop)
            if on_send is not None:
                on_send(sender.n_sent, loop.now_ps)
            arrivals.load()
        is_deadlock = loop.is_out_of_events()
        cluster.clock._now = loop.now_ps if arrivals.end_ps == NEVER - 1 else arrivals.end_ps
        for each in loop.replicas:
            each.stop(cluster.clock.now_ps)
            each.batch.stop()
    finally:
        if is_collecting:
            gc.enable()
        cluster.clock._now = max(cluster.clock.now_ps, loop.now_ps)
        records.flush()
    _explain(cluster, loop)
    cluster.close(is_deadlock=is_deadlock)


def _planner(replica: Replica, live: Live) -> tuple[Planner, Line]:
    """Return what plans for a replica, and its queue: a policy of a plug-in looks at requests as objects."""
    planner = replica.scheduler.rows_planner() if is_own(replica.scheduler) else None
    if planner is not None:
        return planner, Line(live)
    views = ViewPlanner(replica, live)
    return views, views.queue()


def _explain(cluster: Cluster, loop: Loop) -> None:
    """Record refusals and cuts in the order of sending."""
    for row, n_tokens, reason in loop.odd_rows:
        explain(cluster, row, n_tokens, reason)
    loop.odd_rows.clear()
