"""RoutingView: a router and what it sees of its replicas; asks it, and holds its answer against the rules."""

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
    """How old what routers see is."""

    refresh_ps: int
    """They see replicas as they were at the last multiple of this."""
    counts_own_sends: bool = False
    """And add what they have sent there since."""


class Intake(Protocol):
    """Where requests come in."""

    def pick(self, request: Request) -> int:
        """The place of the replica that it goes to."""


class RoutingView:
    """A router that sees its replicas as views show them."""

    def __init__(self, clock: Clock, router: Router, views: Sequence[LoadView]) -> None:
        self._clock = clock
        self._router = router
        self.views = views

    def pick(self, request: Request) -> int:
        """The place among the views of the replica that the router picks. Raises PolicyError."""
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

    What its prefix cache holds is no part of it: engines tell of every block at once, to whoever listens.
    """

    __slots__ = ("_held_blocks", "_replica", "block_size", "block_tokens", "n_outstanding", "n_waiting", "total_blocks")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.total_blocks, self.block_size = replica.total_blocks, replica.block_size
        self.block_tokens = replica.block_tokens
        self.take()

    def take(self) -> None:
        """It is as it is now."""
        self.n_outstanding = self._replica.n_outstanding
        self.n_waiting = self._replica.n_waiting
        self._held_blocks = self._replica.held_blocks()

    def count(self, request: Request) -> None:
        """The request was sent there and waits, and its prompt will fill blocks, as far as there are any."""
        self.n_outstanding += 1
        self.n_waiting += 1
        n_blocks = self._held_blocks - (-request.prompt_tokens // self.block_size)
        self._held_blocks = min(n_blocks, self.total_blocks)

    def held_blocks(self) -> int:
        """KV blocks that it held."""
        return self._held_blocks

    def found_tokens(self, request: Request) -> int:
        """What its prefix cache has now."""
        return self._replica.found_tokens(request)


class CountingRoutingView(RoutingView):
    """One that counts what it has sent since the last refresh."""

    def __init__(self, clock: Clock, router: Router, views: Sequence[Snapshot]) -> None:
        super().__init__(clock, router, views)
        self._snapshots = views

    def pick(self, request: Request) -> int:
        """As usual, and it is counted there at once."""
        index = super().pick(request)
        self._snapshots[index].count(request)
        return index


class Refresher:
    """Takes snapshots at the multiples of the delay that anybody can look at.

    At one instant they are taken after commits and transfers, before anything is routed.
    """

    def __init__(self, clock: Clock, delay: Delay) -> None:
        self._clock = clock
        self._delay = delay
        self._snapshots: list[Snapshot] = []
        self._due = Alarm(clock, self._refresh, VIEW_PHASE)

    def routing_view(self, router: Router, replicas: Sequence[Replica]) -> RoutingView:
        """A router that sees snapshots of these."""
        snapshots = [Snapshot(replica) for replica in replicas]
        self._snapshots += snapshots
        kind = CountingRoutingView if self._delay.counts_own_sends else RoutingView
        return kind(self._clock, router, snapshots)

    def start(self) -> None:
        """What was taken before time zero holds until the first multiple."""
        self._due.set(self._delay.refresh_ps)

    def _refresh(self, now_ps: int) -> None:
        """Take them all, unless nothing happens before a later multiple: it shows the same, and this one nobody sees.

        When nothing is to come at all, nobody will look again.
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
