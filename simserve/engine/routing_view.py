"""RoutingView: a router and its view of the replicas; checks the router's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simserve.engine.alarm import VIEW_PHASE, Alarm, Clock
from simserve.engine.checks import broke, raised
from simserve.engine.replica import Replica
from simserve.routers.base import Router
from simserve.state.request import Request
from simserve.state.view import LoadView


@dataclass(frozen=True)
class Delay:
    """Age of what routers see."""

    refresh_ps: int
    """Routers see replicas as they were at the last multiple of this."""
    counts_own_sends: bool = False
    """Routers add the requests they have sent since."""


class Intake(Protocol):
    """Where requests enter the cluster."""

    def pick(self, request: Request) -> int:
        """Return the place of the request's replica."""


class RoutingView:
    """A router and the views through which it sees its replicas."""

    def __init__(self, clock: Clock, router: Router, views: Sequence[LoadView]) -> None:
        self._clock = clock
        self._router = router
        self.views = views

    def pick(self, request: Request) -> int:
        """Return the place among the views of the replica that the router picks. Raises PolicyError."""
        router = self._router
        try:
            index = router.pick(request, self.views)
        except Exception as error:
            raise raised(router, "pick", self._clock.now_ps, error) from error
        if type(index) is not int or not 0 <= index < len(self.views):
            rule = f"must return the index of a replica, a whole number from 0 to {len(self.views) - 1}"
            raise broke(router, "pick", self._clock.now_ps, rule, index)
        return index


class Snapshot:
    """A replica as it was at the last refresh.

    Prefix cache contents are live: engines publish cache events at once.
    """

    __slots__ = ("_held_blocks", "_replica", "block_size", "block_tokens", "n_outstanding", "n_waiting", "total_blocks")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.total_blocks, self.block_size = replica.total_blocks, replica.block_size
        self.block_tokens = replica.block_tokens
        self.take()

    def take(self) -> None:
        """Take a snapshot now."""
        self.n_outstanding = self._replica.n_outstanding
        self.n_waiting = self._replica.n_waiting
        self._held_blocks = self._replica.held_blocks()

    def count(self, request: Request) -> None:
        """Count a request sent since: it waits, and its prompt will fill blocks while any are left."""
        self.n_outstanding += 1
        self.n_waiting += 1
        n_blocks = self._held_blocks - (-request.prompt_tokens // self.block_size)
        self._held_blocks = min(n_blocks, self.total_blocks)

    def held_blocks(self) -> int:
        """Return the KV blocks held at the last refresh."""
        return self._held_blocks

    def found_tokens(self, request: Request) -> int:
        """Return the prefix cache hit at this instant."""
        return self._replica.found_tokens(request)


class CountingRoutingView(RoutingView):
    """A routing view that counts its own sends since the last refresh."""

    def __init__(self, clock: Clock, router: Router, views: Sequence[Snapshot]) -> None:
        super().__init__(clock, router, views)
        self._snapshots = views

    def pick(self, request: Request) -> int:
        """Pick a replica and count the request there at once."""
        index = super().pick(request)
        self._snapshots[index].count(request)
        return index


class Refresher:
    """Takes snapshots at the multiples of the delay at which they can be seen.

    At one instant snapshots follow commits and transfers and precede routing.
    """

    def __init__(self, clock: Clock, delay: Delay) -> None:
        self._clock = clock
        self._delay = delay
        self._snapshots: list[Snapshot] = []
        self._due = Alarm(clock, self._refresh, VIEW_PHASE)

    def routing_view(self, router: Router, replicas: Sequence[Replica]) -> RoutingView:
        """Return a router that sees snapshots of these replicas."""
        snapshots = [Snapshot(replica) for replica in replicas]
        self._snapshots += snapshots
        kind = CountingRoutingView if self._delay.counts_own_sends else RoutingView
        return kind(self._clock, router, snapshots)

    def start(self) -> None:
        """Start refreshing; snapshots of time zero hold until the first multiple."""
        self._due.set(self._delay.refresh_ps)

    def _refresh(self, now_ps: int) -> None:
        """Take all snapshots, or skip to the last multiple before the next event, which shows the same.

        Without further events no snapshot is needed.
        """
        events = self._clock.events
        if not events:
            return
        refresh_ps = self._delay.refresh_ps
        last_ps = events[0][0] // refresh_ps * refresh_ps
        if last_ps > now_ps:
            self._due.set(last_ps)
            return
        for snapshot in self._snapshots:
            snapshot.take()
        self._due.set(now_ps + refresh_ps)
