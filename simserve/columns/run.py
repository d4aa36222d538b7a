"""Run on columns: serves a cluster with its requests in columns, to the bit as its objects would."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from simserve.columns.arrivals import Clients, NextRows, Routed, Timed
from simserve.columns.batch import BatchColumns
from simserve.columns.contents import contents_of
from simserve.columns.dispatcher import Dispatcher
from simserve.columns.entrance import Entrance, RoutedEntrance, is_own
from simserve.columns.handover import Handover
from simserve.columns.leaving import Members
from simserve.columns.lines import Line
from simserve.columns.live import Live
from simserve.columns.loop import Loop
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.columns.running import Running, SpeculativeRunning
from simserve.columns.sides import side_of
from simserve.columns.tiers import Tiers, TierSide
from simserve.columns.turns import UnitTurns
from simserve.columns.views import ViewPlanner
from simserve.engine.cluster import Cluster, OnSend
from simserve.engine.fleet import Control, Member
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import RoleName
from simserve.engine.routing_view import RoutingView
from simserve.engine.senders import TraceSender
from simserve.errors import Problem, ScenarioError
from simserve.integers import NEVER
from simserve.state.planner import Planner
from simserve.units import to_s

INSTANTS_A_LOOK: Final = 4096
"""Instants between two looks at the keyboard, in which rows are recorded without the recorder."""
MOST_PAIRS: Final = 1 << 62
"""Most pairs of a token and one before it in a step: their number fits 64 bits."""


def check_size(cluster: Cluster) -> None:
    """Raise ScenarioError if a step may have more pairs of tokens than a machine integer holds."""
    for replica in cluster.replicas:
        budget_tokens, pool = replica.scheduler.budget_tokens, replica.pool
        grows = pool.layers is None or pool.layers.grows
        in_pool = pool.total_blocks * (pool.block_size if grows else cluster.limit_tokens)
        step_tokens = in_pool if budget_tokens is None else min(budget_tokens, in_pool)
        if step_tokens * cluster.limit_tokens > MOST_PAIRS:
            rule = f"times the {step_tokens:,} tokens that a step may have, it must be at most {MOST_PAIRS:,}"
            value, remedy = f"{cluster.limit_tokens:,}", "lower it, or the budget of a step"
            raise ScenarioError([Problem("max_model_len", rule, value, remedy)])


class Building:
    """Gives the ranks of a cluster their columns."""

    def __init__(self, cluster: Cluster, arrivals: NextRows, entrance: Entrance) -> None:
        self.live, deadlines = Live(), cluster.deadlines
        self.records = Records(cluster.recorder, self.live, deadlines)
        self._turns = turns = UnitTurns()
        self._entrance, self._tiers = entrance, Tiers(cluster, turns)
        self.handover = (
            None if cluster.handoff is None else Handover(cluster, cluster.handoff, self.live, entrance.loads)
        )
        self._arrivals = arrivals
        dispatcher = Dispatcher(cluster, arrivals, self.live, entrance, self.handover, turns)
        self.loop = Loop(cluster, arrivals, self.records, dispatcher, self.handover, self._tiers, turns)
        for member in cluster.members:
            self.add(member)

    def add(self, member: Member) -> None:
        """Add the ranks of a member, which have the next ids."""
        self.loop.add([self._columns(rank, member.setup.role) for rank in member.ranks], member.ranks)

    def let_change(self, cluster: Cluster, control: Control) -> None:
        """Let a control decide when members join and leave."""
        loop, members = self.loop, cluster.members
        if not cluster.splits:
            cast("RoutingView", cluster.intake).on_show = self._entrance.show
        how = self.handover, lambda: self.add(members[-1]), self._turns
        loop.begin(control, Members(self.records, loop.replicas, *how))

    def _columns(self, replica: Replica, role: RoleName) -> ReplicaColumns:
        contents = contents_of(replica, self.live)
        kind = SpeculativeRunning if replica.decode.is_uneven else Running
        planner, queue = _planner(replica, self.live)
        prompts = PromptColumns(replica, planner, queue, kind(replica, self.live, contents), self.records, contents)
        side = side_of(replica, role, prompts, self.handover, self._entrance.loads)
        columns = ReplicaColumns(replica, BatchColumns(replica, prompts, self.records, self._arrivals, side))
        if replica.tier is not None:
            tier = TierSide(replica, replica.tier, columns.batch, self._tiers)
            self._tiers.add(replica.id, tier, replica.tier.store)
            columns.use(tier)
        return columns


def serve(cluster: Cluster, drain_limit_ps: int | None = None, on_send: OnSend | None = None) -> None:
    """Serve all requests, or stop drain_limit_ps after the last one was sent. on_send(rows sent, now in ps) is called
    now and then. Raises PolicyError for a policy that breaks a rule."""
    check_size(cluster)
    sender = cluster.sender
    arrivals: NextRows
    if isinstance(sender, TraceSender):
        arrivals = Timed(cluster, drain_limit_ps)
    else:
        arrivals = Clients(cluster, drain_limit_ps, sender)
    building = Building(cluster, arrivals, Entrance(cluster))
    if cluster.control is not None:
        building.let_change(cluster, cluster.control)
    on_look = None if on_send is None else lambda now_ps: on_send(sender.n_sent, now_ps)
    is_deadlock = _run(cluster, building, arrivals, on_look)
    _stop(cluster, building, cluster.members)
    cluster.close(is_deadlock=is_deadlock)


def serve_shard(
    cluster: Cluster,
    rows: NDArray[np.int64],
    routed: tuple[NDArray[np.int32], NDArray[np.int64]],
    members: Sequence[Member],
    end_ps: int | None,
    on_send: OnSend,
) -> bool:
    """Serve rows, all of which go to these members; return whether nothing more happens.

    routed: the replica of each row, and when it reaches the router. end_ps: end of the run, if its drain is limited.
    """
    replica_of, out_ps = routed
    arrivals = Routed(cluster, rows, out_ps, end_ps)
    building = Building(cluster, arrivals, RoutedEntrance(cluster, replica_of))
    is_deadlock = _run(cluster, building, arrivals, lambda now_ps: on_send(arrivals.n_sent, now_ps))
    _stop(cluster, building, members)
    for member in members:
        for rank in member.ranks:
            rank.check_blocks(to_s(cluster.clock.now_ps))
    return is_deadlock


def _run(cluster: Cluster, building: Building, arrivals: NextRows, on_look: Callable[[int], None] | None) -> bool:
    """Let time pass until the run ends; return whether nothing more happens."""
    loop, records = building.loop, building.records
    is_collecting = gc.isenabled()
    gc.disable()  # fast: columns make no reference cycles, and searching for them takes a tenth of the time
    try:
        while loop.run(INSTANTS_A_LOOK):
            records.flush()
            loop.dispatcher.explain()
            if on_look is not None:
                on_look(loop.now_ps)
            arrivals.load()
        is_deadlock = loop.is_out_of_events()
        cluster.clock._now = loop.now_ps if arrivals.end_ps == NEVER - 1 else arrivals.end_ps
    finally:
        if is_collecting:
            gc.enable()
        cluster.clock._now = max(cluster.clock.now_ps, loop.now_ps)
        records.flush()
    loop.dispatcher.explain()
    return is_deadlock


def _stop(cluster: Cluster, building: Building, members: Sequence[Member]) -> None:
    """End the run of these members: commit the steps that are over, and give them the requests that are there."""
    for member in members:
        for rank in member.ranks:
            columns = building.loop.replicas[rank.id]
            columns.stop(cluster.clock.now_ps)
            columns.batch.stop()
    building.records.flush()


def _planner(replica: Replica, live: Live) -> tuple[Planner, Line]:
    """Return what plans for a replica, and its queue: a policy of a plug-in looks at requests as objects."""
    planner = replica.scheduler.rows_planner() if is_own(replica.scheduler) else None
    if planner is not None:
        return planner, Line(live)
    views = ViewPlanner(replica, live)
    return views, views.queue()
