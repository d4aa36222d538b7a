"""Run on columns: serves a cluster with its requests in columns, to the bit as its objects would."""

from __future__ import annotations

import gc
from typing import Final

from simserve.columns.arrivals import Clients, Entrance, NextRows, Timed, is_own
from simserve.columns.batch import BatchColumns
from simserve.columns.contents import contents_of
from simserve.columns.handover import Handover
from simserve.columns.live import Line, Live
from simserve.columns.loop import Loop, explain
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records
from simserve.columns.replica import ReplicaColumns
from simserve.columns.running import MOST_PLACES, Running
from simserve.columns.sides import side_of
from simserve.columns.speculation import SpeculativeRunning
from simserve.columns.tiers import Tiers, TierSide
from simserve.columns.views import ViewPlanner
from simserve.engine.cluster import Cluster, OnSend
from simserve.engine.copying import Copying
from simserve.engine.decode import Decode, Speculative
from simserve.engine.handoff import HandsOver, Pushes
from simserve.engine.memory import CachingMemory, KeepingGroupsMemory, KeepingMemory, Memory
from simserve.engine.receiving import Receives
from simserve.engine.replica import Replica
from simserve.engine.role import Role
from simserve.engine.senders import TraceSender
from simserve.engine.stepping import Alone, Rank
from simserve.integers import NEVER
from simserve.state.planner import Planner

INSTANTS_A_LOOK: Final = 4096
"""Instants between two looks at the keyboard, in which rows are recorded without the recorder."""
LARGEST: Final = 1 << 30
"""Most tokens of a request and of a step: products of two of them, and sums of these over a step, fit 64 bits."""


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
        most_tokens <= LARGEST
        and type(batch.memory) in (Memory, KeepingMemory, CachingMemory, KeepingGroupsMemory)
        and type(replica.decode) in (Decode, Speculative)
        and type(replica.stepping) in (Alone, Rank)
        and type(replica.role) in (Role, HandsOver, Pushes, Receives)
        and all(hooks is replica.role or type(hooks) is Copying for hooks in replica.hooks)
    )


def serve(cluster: Cluster, drain_limit_ps: int | None = None, on_send: OnSend | None = None) -> None:
    """Serve all requests as `Cluster.run`. Raises PolicyError for a router that breaks a rule."""
    live, sender = Live(), cluster.sender
    records, replicas = Records(cluster.recorder, live, cluster.deadlines), list[ReplicaColumns]()
    arrivals: NextRows
    if isinstance(sender, TraceSender):
        arrivals = Timed(cluster, drain_limit_ps)
    else:
        arrivals = Clients(cluster, drain_limit_ps, sender)
    entrance = Entrance(cluster)
    handover = None if cluster.handoff is None else Handover(cluster, cluster.handoff, live)
    tiers = Tiers(cluster) if any(replica.tier is not None for replica in cluster.replicas) else None
    for replica, role in zip(cluster.replicas, cluster.roles, strict=True):
        contents = contents_of(replica, live)
        running = (
            SpeculativeRunning(replica, live, contents)
            if replica.decode.is_uneven
            else Running(replica, live, contents)
        )
        planner, queue = _planner(replica, live)
        prompts = PromptColumns(replica, planner, queue, running, records, contents)
        side = side_of(replica, role, prompts, handover, entrance.loads)
        batch = BatchColumns(replica, prompts, records, arrivals, side)
        each = ReplicaColumns(replica, batch)
        if tiers is not None and replica.tier is not None:
            tier = tiers.sides[replica.id] = TierSide(replica, replica.tier, batch, tiers)
            each.use(tier)
        replicas.append(each)
    loop = Loop(cluster, live, replicas, entrance, handover, tiers)
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
        for each in replicas:
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
