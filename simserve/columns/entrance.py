"""Entrance: which replica a request goes to, and what that accepts."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.engine.cluster import TOO_LONG, Cluster
from simserve.engine.replica import Replica
from simserve.engine.routing_view import Destination, Entry
from simserve.engine.wiring import LocalDecodeIntake
from simserve.integers import NEVER, NONE, Tournament, append, column, filled, vec, widened
from simserve.state.request import Request


def is_own(policy: object) -> bool:
    """Return whether a policy is one of simserve: one of a plug-in may do otherwise than what it derives from."""
    return type(policy).__module__.startswith("simserve.")


class EntryLimits:
    """What a destination of a router accepts; see `Entry`."""

    def __init__(self, destination: Destination, entry: Entry, *, keeps: bool) -> None:
        self.place: i64 = destination.id
        """The replica that it stands for."""
        self.limit_tokens: i64 = entry.limit_tokens
        """Limit on prompt plus output tokens."""
        self.keeps = keeps
        """The replica decodes its requests itself, among the prompts of others."""
        self._longest_prompt_tokens: i64 = entry.longest_prompt_tokens
        self._never_fits = entry.never_fits

    def why_refused(self, prompt_tokens: i64) -> str | None:
        """Return why a prompt of this length could never be served; None: it can."""
        if prompt_tokens > self._longest_prompt_tokens:
            return TOO_LONG
        return None if self._never_fits is None else self._never_fits(prompt_tokens)


class Loads:
    """The requests of each replica that a router picks from. One of simserve that picks the first of those with the
    fewest need not be asked."""

    def __init__(self, cluster: Cluster, members: Collection[int], *, joins_shortest: bool) -> None:
        changes, members = cluster.control is not None, list(dict.fromkeys(members))
        joins_shortest = joins_shortest and cluster.refresher is None and not (changes and cluster.handoff is not None)
        has_choice = changes or len(members) > 1
        self.is_asked = has_choice and not joins_shortest
        """The router is asked, about a request."""
        self.counts = has_choice and joins_shortest
        """What `count` says matters."""
        self._loads = Tournament(len(cluster.replicas))
        self._in_order: vec[i64] = column(np.array(members, np.int64))
        """Members in the order of joining, which decides between equals, those included that get no more requests, and
        ..."""
        self._places: vec[i64] = filled(len(cluster.replicas), NONE)
        """... the place there of each replica that does."""
        for place, member in enumerate(members):
            self._places[member] = place
            self._loads.set(place, 0)

    def shortest(self) -> i64:
        """Return the first replica with the fewest requests; NONE: none is ready."""
        if self._loads.least() == NEVER:
            return NONE
        return self._in_order[self._loads.first()]

    def count(self, replica: i64, n: i64) -> None:
        """Note how many requests a replica has."""
        at = self._places[replica] if replica < len(self._places) else NONE
        if at >= 0:
            self._loads.set(at, n)

    def show(self, replica: int, n: int, *, is_ready: bool) -> None:
        """Note that a replica with n requests gets more from now on, or none any more."""
        if not is_ready:
            self._loads.set(self._places[replica], NEVER)
            self._places[replica] = NONE
            return
        if replica >= len(self._places):
            self._places = widened(self._places, replica + 1)
        self._places[replica] = len(self._in_order)
        self._in_order = append(self._in_order, i64(replica))
        self._loads.widen(len(self._in_order))
        self._loads.set(self._places[replica], n)


class Entrance:
    """Where requests enter the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._clock, self._pick, self._entries = cluster.clock, cluster.intake.pick, cluster.entries
        self._limits = {
            each: EntryLimits(each, entry, keeps=type(each) is LocalDecodeIntake)
            for each, entry in cluster.entries.items()
        }
        entries = list(self._limits.values())
        joins_shortest = cluster.router.joins_shortest and is_own(cluster.router)
        joins_shortest = joins_shortest and not (cluster.control is not None and cluster.control.shifts)
        self.loads = Loads(cluster, [each.place for each in entries], joins_shortest=joins_shortest)
        self.is_asked = self.loads.is_asked or cluster.splits
        """The router, or the splitter before it, is asked about a request."""
        self._by_place: list[EntryLimits] = entries[:1] * len(cluster.replicas)
        for limits in entries:
            self._by_place[limits.place] = limits

    def pick(self, row: i64, request: Request | None, now_ps: i64) -> EntryLimits | None:
        """Return the limits of the replica that a row goes to, which may be seen as a request; None: none is ready."""
        if not self.is_asked or request is None:
            place = self.loads.shortest()
            return None if place < 0 else self._by_place[place]
        self._clock._now = now_ps
        destination = self._pick(request)
        if destination is None:
            return None
        if destination not in self._limits:  # a member that has joined
            keeps = type(destination) is LocalDecodeIntake
            self._limits[destination] = EntryLimits(destination, self._entries[destination], keeps=keeps)
        return self._limits[destination]

    def show(self, replica: Replica, is_ready: bool) -> None:
        """Note that a member gets requests from now on, or none any more."""
        if replica not in self._entries:
            return
        if is_ready:
            limits = EntryLimits(replica, self._entries[replica], keeps=False)
            self._by_place += [limits] * (replica.id + 1 - len(self._by_place))
            self._by_place[replica.id] = limits
        self.loads.show(replica.id, replica.load.n_outstanding, is_ready=is_ready)


class RoutedEntrance(Entrance):
    """Where requests enter a cluster of which the router has been asked about all of them."""

    def __init__(self, cluster: Cluster, replica_of: NDArray[np.int32]) -> None:
        super().__init__(cluster)
        self.is_asked, self._replica_of = False, replica_of

    def pick(self, row: i64, request: Request | None, now_ps: i64) -> EntryLimits | None:
        """Return the limits of the replica that a row goes to."""
        place: i64 = int(self._replica_of[row])
        return self._by_place[place]
