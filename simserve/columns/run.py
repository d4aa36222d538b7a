"""Run on columns: serves a cluster with its requests in columns, to the bit as its objects would."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Final

from mypy_extensions import i64

from simserve.columns.arrivals import Clients, NextRows, Timed
from simserve.columns.batch import ReplicaColumns
from simserve.columns.contents import contents_of
from simserve.columns.live import Live
from simserve.columns.prompts import PromptColumns
from simserve.columns.records import Records
from simserve.columns.running import MOST_PLACES, Running
from simserve.engine.cluster import TOO_LONG, Cluster, OnSend
from simserve.engine.decode import Decode
from simserve.engine.memory import CachingMemory, KeepingMemory, Memory
from simserve.engine.replica import Replica
from simserve.engine.senders import TraceSender
from simserve.engine.stepping import Alone
from simserve.integers import NEVER, NONE, Tournament, filled, vec
from simserve.state.request import Request

INSTANTS_A_LOOK: Final = 4096
"""Instants between two looks at the keyboard, in which rows are recorded without the recorder."""
LARGEST: Final = 1 << 30
"""Most tokens of a request and of a step: products of two of them, and sums of these over a step, fit 64 bits."""


class Loop:
    """Events of all replicas in order: at each instant steps end, then requests arrive, then replicas plan."""

    def __init__(
        self,
        batches: Sequence[ReplicaColumns],
        live: Live,
        describe: Callable[[int, int], Request] | None,
        pick: Callable[[Request, int], int] | None,
    ) -> None:
        """Serve with these replicas.

        describe(row, now in ps) returns a request as routers and prefix caches see it, where there are any. pick of
        that and the instant returns its replica; None: it is the first of those with the fewest requests.
        """
        self._batches, self._live, self._describe, self._pick = list(batches), live, describe, pick
        n: i64 = len(batches)
        self.ends = Tournament(n, NEVER)
        """End of each replica's step run."""
        self._loads = Tournament(n, 0)
        """Requests of each replica."""
        self._planning: vec[i64] = filled(n, NONE)
        """Replicas that plan at this instant, in order."""
        self._n_planning: i64 = 0
        self.now_ps: i64 = 0
        self.odd_rows: list[tuple[int, int]] = []
        """Rows that were refused or with an answer that was cut, and its tokens; 0: refused."""

    def run(self, arrivals: NextRows, n_instants: i64) -> bool:
        """Serve some instants, or until the rows are used up; return whether more may follow."""
        ends, batches = self.ends, self._batches
        never: i64 = NEVER  # fast: a machine integer from here on
        for _ in range(n_instants):
            at_ps = ends.least()
            if arrivals.at_ps < at_ps:
                at_ps = arrivals.at_ps
            if arrivals.at_ps == never and arrivals.are_more:
                return True
            if at_ps > self.now_ps and self._n_planning:
                self._plan()
                continue
            if at_ps > arrivals.end_ps:
                return False
            self.now_ps = at_ps
            while ends.least() == at_ps:
                place = ends.first()
                batch = batches[place]
                batch.commit(at_ps)
                ends.set(place, never)
                self._loads.set(place, batch.n_outstanding)
                self._planning[self._n_planning] = place
                self._n_planning += 1
            while arrivals.at_ps == at_ps:
                if arrivals.take():
                    self._arrive(arrivals, at_ps)
        return True

    def _arrive(self, arrivals: NextRows, now_ps: i64) -> None:
        """Route a request, and refuse it if its replica could never serve it."""
        row, prompt_tokens, output_tokens = arrivals.row, arrivals.prompt_tokens, arrivals.output_tokens
        place: i64 = self._loads.first()
        request = None if self._describe is None else self._describe(row, now_ps)
        if self._pick is not None and request is not None:
            place = self._pick(request, now_ps)
        batch = self._batches[place]
        if prompt_tokens > batch.longest_prompt_tokens:
            self.odd_rows.append((row, 0))
            arrivals.refused(row, now_ps)
            return
        most_tokens = batch.limit_tokens - prompt_tokens
        if arrivals.max_tokens < most_tokens:
            most_tokens = arrivals.max_tokens
        if output_tokens > most_tokens:
            output_tokens = most_tokens
            self.odd_rows.append((row, most_tokens))
        if batch.arrive(self._live.add(row, prompt_tokens, output_tokens), request, now_ps):
            self._plan_at_this_instant(place)
        else:
            self.ends.set(place, batch.end_ps())
        self._loads.set(place, batch.n_outstanding)

    def _plan_at_this_instant(self, place: i64) -> None:
        """Let an idle replica plan, in its turn."""
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
        """Let the replicas plan that have no step in flight and something to do."""
        for i in range(self._n_planning):
            place = self._planning[i]
            batch = self._batches[place]
            batch.plan(self.now_ps)
            self.ends.set(place, batch.end_ps())
        self._n_planning = 0


def serves(cluster: Cluster) -> bool:
    """Return whether all that a cluster has is on columns."""
    return (
        cluster.only_serves
        and 0 < len(cluster.rows) <= MOST_PLACES
        and all(_is_on_columns(each, cluster.entries[each].limit_tokens) for each in cluster.replicas)
    )


def _is_on_columns(replica: Replica, limit_tokens: int) -> bool:
    limits, batch = replica.scheduler.walk_limits(), replica.batch
    return (
        limits is not None
        and _is_own(replica.scheduler)
        and max(limits.budget_tokens, limit_tokens) <= LARGEST
        and type(batch.memory) in (Memory, KeepingMemory, CachingMemory)
        and batch.pool.layers is None
        and type(replica.decode) is Decode
        and type(replica.stepping) is Alone
        and not replica.hooks
        and batch.swap is None
    )


def _is_own(policy: object) -> bool:
    """Return whether a policy is one of simserve: one of a plug-in may do otherwise than what it derives from."""
    return type(policy).__module__.startswith("simserve.")


def serve(cluster: Cluster, drain_limit_ps: int | None = None, on_send: OnSend | None = None) -> None:
    """Serve all requests as `Cluster.run`. Raises PolicyError for a router that breaks a rule."""
    live, sender = Live(), cluster.sender
    records, batches = Records(cluster.recorder, live), []
    arrivals: NextRows
    if isinstance(sender, TraceSender):
        arrivals = Timed(cluster, drain_limit_ps)
    else:
        arrivals = Clients(cluster, drain_limit_ps, sender)
    for replica in cluster.replicas:
        limits = replica.scheduler.walk_limits()
        assert limits is not None, "the policy walks its queue in order"
        running = Running(replica.id, live, replica.cohort)
        prompts = PromptColumns(replica, limits, running, records, contents_of(replica, live))
        batches.append(ReplicaColumns(replica, cluster.entries[replica], prompts, records, arrivals))

    def pick(request: Request, now_ps: int) -> int:
        cluster.clock._now = now_ps
        destination = cluster.intake.pick(request)
        assert destination is not None, "all replicas are ready"
        return destination.id

    joins_shortest = len(batches) == 1 or (cluster.router.joins_shortest and _is_own(cluster.router))
    needs_none = joins_shortest and not any(replica.batch.memory.caches for replica in cluster.replicas)
    loop = Loop(batches, live, None if needs_none else cluster.request_of, None if joins_shortest else pick)
    is_collecting = gc.isenabled()
    gc.disable()  # fast: columns make no reference cycles, and searching for them takes a tenth of the time
    try:
        while loop.run(arrivals, INSTANTS_A_LOOK):
            records.flush()
            _explain(cluster, loop)
            if on_send is not None:
                on_send(sender.n_sent, loop.now_ps)
            arrivals.load()
        is_deadlock = loop.ends.least() == NEVER
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
    for row, n_tokens in loop.odd_rows:
        if n_tokens:
            cluster.cut(row, n_tokens)
        else:
            cluster.reject(row, TOO_LONG)
    loop.odd_rows.clear()
