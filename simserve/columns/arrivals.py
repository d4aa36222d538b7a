"""NextRows: rows of the load as they reach the router, known in advance or sent by clients that wait for answers;
Entrance: where they go from there."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from mypy_extensions import i64
from numpy.typing import NDArray

from simserve.engine.cluster import TOO_LONG, Cluster
from simserve.engine.routing_view import Destination, Entry
from simserve.engine.senders import LOOK_AHEAD
from simserve.engine.session_sender import SessionSender
from simserve.engine.wiring import LocalDecodeIntake
from simserve.integers import NEVER, Tournament, column, vec
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
        joins_shortest = joins_shortest and cluster.refresher is None and cluster.control is None
        self.is_asked = (len(members) > 1 and not joins_shortest) or cluster.control is not None
        """The router is asked, about a request."""
        self.counts = len(members) > 1 and joins_shortest
        """What `count` says matters."""
        self._loads = Tournament(len(cluster.replicas), NEVER)
        for member in members:
            self._loads.set(member, 0)

    def shortest(self) -> i64:
        """Return the first replica with the fewest requests."""
        return self._loads.first()

    def count(self, place: i64, n: i64) -> None:
        """Note how many requests a replica has."""
        self._loads.set(place, n)


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
        self.loads = Loads(cluster, [each.place for each in entries], joins_shortest=joins_shortest)
        self.is_asked = self.loads.is_asked or cluster.splits
        """The router, or the splitter before it, is asked about a request."""
        self._by_place: list[EntryLimits] = entries[:1] * len(cluster.replicas)
        for limits in entries:
            self._by_place[limits.place] = limits

    def pick(self, row: i64, request: Request | None, now_ps: i64) -> EntryLimits | None:
        """Return the limits of the replica that a row goes to, which may be seen as a request; None: none is ready."""
        if not self.is_asked or request is None:
            return self._by_place[self.loads.shortest()]
        self._clock._now = now_ps
        destination = self._pick(request)
        if destination is None:
            return None
        if destination not in self._limits:  # a member that has joined
            keeps = type(destination) is LocalDecodeIntake
            self._limits[destination] = EntryLimits(destination, self._entries[destination], keeps=keeps)
        return self._limits[destination]


class RoutedEntrance(Entrance):
    """Where requests enter a cluster of which the router has been asked about all of them."""

    def __init__(self, cluster: Cluster, replica_of: NDArray[np.int32]) -> None:
        super().__init__(cluster)
        self.is_asked, self._replica_of = False, replica_of

    def pick(self, row: i64, request: Request | None, now_ps: i64) -> EntryLimits | None:
        """Return the limits of the replica that a row goes to."""
        place: i64 = int(self._replica_of[row])
        return self._by_place[place]


class NextRows:
    """The next rows, in order. Of this class, they come when clients send them, whatever happens to others."""

    def __init__(self, cluster: Cluster, drain_limit_ps: int | None) -> None:
        self._cluster, self._drain_limit_ps = cluster, drain_limit_ps
        self.end_ps: i64 = NEVER - 1
        """End of the run, as far as it is known."""
        self.at_ps: i64 = NEVER
        """When the next row reaches the router; NEVER if none is known to."""
        self.are_more = True
        """There are rows that `load` finds."""
        self.row: i64 = 0
        """The row that was taken last, and ..."""
        self.prompt_tokens: i64 = 0
        self.output_tokens: i64 = 0
        self.max_tokens: i64 = 0
        """... its lengths."""

    def load(self) -> None:
        """Find the next rows, if those found before are used up."""

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        return False

    def recall(self, row: i64) -> None:
        """Take a row that has waited at the gateway."""
        rows = self._cluster.rows
        self.row, self.prompt_tokens = row, rows.prompt_tokens[row]
        self.output_tokens, self.max_tokens = rows.output_tokens[row], rows.max_tokens[row]

    def find_next(self) -> None:
        """Find when the next row comes, as clients may have given up."""

    def answered(self, row: i64, now_ps: i64) -> None:
        """Note that a client has its last token."""

    def refused(self, row: i64, reason: str, now_ps: i64) -> None:
        """Note that a client is refused."""

    def not_admitted(self, row: i64, reason: str, now_ps: i64) -> None:
        """Note that the admission policy turns a client away."""


class Timed(NextRows):
    """Rows that come at times of their own."""

    def __init__(self, cluster: Cluster, drain_limit_ps: int | None) -> None:
        super().__init__(cluster, drain_limit_ps)
        self._next: i64 = 0
        self._out_ps: vec[i64] = vec[i64]()
        self._prompts: vec[i64] = vec[i64]()
        self._outputs: vec[i64] = vec[i64]()
        self._most: vec[i64] = vec[i64]()
        self.row, self.are_more = -1, len(cluster.rows) > 0
        self.load()

    def load(self) -> None:
        """Find the next rows, if those found before are used up."""
        if not self.are_more or self._next < len(self._out_ps):
            return
        sender, rows = self._cluster.trace_sender, self._cluster.rows
        ahead_ps = sender.look_ahead(sender.n_sent)
        ahead = slice(sender.n_sent, sender.n_sent + len(ahead_ps))
        self._out_ps, self._prompts = column(ahead_ps), column(rows.prompts[ahead])
        self._outputs, self._most = column(rows.outputs[ahead]), column(rows.most[ahead])
        sender.n_sent, self._next, self.at_ps = ahead.stop, 0, self._out_ps[0]
        self.are_more = ahead.stop < len(rows)
        if not self.are_more and self._drain_limit_ps is not None:
            self.end_ps = min(int(ahead_ps[-1]) + self._drain_limit_ps, NEVER - 1)

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        i = self._next
        self.row += 1
        self.prompt_tokens, self.output_tokens, self.max_tokens = self._prompts[i], self._outputs[i], self._most[i]
        self._next = i = i + 1
        self.at_ps = NEVER
        if i < len(self._out_ps):
            self.at_ps = self._out_ps[i]
        return True


class Routed(NextRows):
    """Rows of some replicas, which come at times of their own."""

    def __init__(
        self, cluster: Cluster, rows: NDArray[np.int64], out_ps: NDArray[np.int64], end_ps: int | None
    ) -> None:
        """out_ps: when each row of the load reaches the router. end_ps: end of the run, if its drain is limited."""
        super().__init__(cluster, None)
        self._all_rows, self._all_out_ps = rows, out_ps
        self._first = 0
        self._next: i64 = 0
        self._rows: vec[i64] = vec[i64]()
        self._out_ps: vec[i64] = vec[i64]()
        if end_ps is not None:
            self.end_ps = min(end_ps, NEVER - 1)
        self.are_more = len(rows) > 0
        self.load()

    @property
    def n_sent(self) -> int:
        """Rows that were taken."""
        return self._first - len(self._rows) + int(self._next)

    def load(self) -> None:
        """Find the next rows, if those found before are used up."""
        if not self.are_more or self._next < len(self._rows):
            return
        ahead = self._all_rows[self._first : self._first + LOOK_AHEAD]
        self._first += len(ahead)
        self._rows, self._out_ps, self._next = column(ahead), column(self._all_out_ps[ahead]), 0
        self.at_ps, self.are_more = self._out_ps[0], self._first < len(self._all_rows)

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        i = self._next
        self.recall(self._rows[i])
        self._next = i = i + 1
        self.at_ps = self._out_ps[i] if i < len(self._out_ps) else NEVER
        return True


class Clients(NextRows):
    """Rows of clients that wait for answers before they send the next."""

    def __init__(self, cluster: Cluster, drain_limit_ps: int | None, sender: SessionSender) -> None:
        super().__init__(cluster, drain_limit_ps)
        self._sender, self.are_more = sender, False
        cluster.drain_limit_ps = drain_limit_ps
        sender.start()
        self.find_next()

    def take(self) -> bool:
        """Take the next row; return whether it reaches the router now."""
        self._cluster.clock._now = self.at_ps
        row = self._sender.take()
        self.find_next()
        deadlines = self._sender.deadlines
        if row is None or (deadlines is not None and deadlines.has_gone(row)):
            return False
        self.recall(row)
        return True

    def answered(self, row: i64, now_ps: i64) -> None:
        """Let a client that has its last token go on."""
        self._cluster.clock._now = now_ps
        self._sender.on_answer(row, now_ps)
        self.find_next()

    def refused(self, row: i64, reason: str, now_ps: i64) -> None:
        """Let a client that is refused go on or end."""
        self._cluster.clock._now = now_ps
        self._sender.on_refusal(row, reason, now_ps)
        self.find_next()

    def not_admitted(self, row: i64, reason: str, now_ps: i64) -> None:
        """Let a client that the admission policy turns away go on or end."""
        self._cluster.clock._now = now_ps
        self._sender.on_not_admitted(row, reason, now_ps)
        self.find_next()

    def find_next(self) -> None:
        """Note when the next row comes, and whether the last one was sent."""
        next_ps, end_ps = self._sender.next_ps, self._cluster.end_ps
        self.at_ps = NEVER if next_ps is None else next_ps
        if end_ps is not None:
            self.end_ps = min(end_ps, NEVER - 1)
