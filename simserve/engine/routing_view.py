"""RoutingView: a router and its view of the replicas; checks the router's answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from simserve.engine.alarm import Clock
from simserve.engine.checks import broke, raised
from simserve.engine.live_view import LiveView
from simserve.engine.replica import Replica
from simserve.errors import PolicyError
from simserve.routers.base import Router
from simserve.state.request import Request
from simserve.state.view import LoadView, MemberViews


@dataclass(frozen=True)
class Delay:
    """Age of what routers see."""

    refresh_ps: int
    """Routers see replicas as they were at the last multiple of this."""
    counts_own_sends: bool = False
    """Routers add the requests they have sent since."""


class Destination(Protocol):
    """What accepts requests: a member, or its intake of requests for local decode."""

    id: int


@dataclass(frozen=True)
class Entry:
    """What a destination accepts."""

    never_fits: Callable[[int], str | None] | None
    """Says why the policy can never start a prompt; None: it starts all."""
    limit_tokens: int
    """Limit on prompt plus output tokens, wherever they are decoded."""
    longest_prompt_tokens: int


class Intake(Protocol):
    """Where requests enter the cluster."""

    def pick(self, request: Request) -> Destination | None:
        """Return the destination of a request; None: no member is ready."""


class RoutingView:
    """A router and the views through which it sees its members, the replicas that are ready."""

    def __init__(self, clock: Clock, router: Router) -> None:
        self._clock = clock
        self.router = router
        self.views = MemberViews(())
        """Views in the order of joining."""
        self.canary: CanaryView | None = None
        """Replicas of another version, which the router does not see."""
        self._members: dict[int, Replica] = {}
        """Members by the identity of their view: one that a router kept is no key."""
        self.on_show: Callable[[Replica, bool], None] | None = None
        """Called with each member that joins (True) or goes, once the run has begun."""

    def add(self, replica: Replica) -> None:
        """Let a member join as the last."""
        view = self._view(replica)
        self._members[id(view)] = replica
        self._show((*self.views, view))
        if self.on_show is not None:
            self.on_show(replica, True)

    def remove(self, member: int) -> None:
        """Let a member go; it gets no more requests."""
        gone = next(view for view in self.views if view.id == member)
        replica = self._members.pop(id(gone))
        replica.load.on_fewer = None
        self._show(view for view in self.views if view is not gone)
        if self.on_show is not None:
            self.on_show(replica, False)

    def of(self, pool: int) -> "RoutingView":
        """Return the view that shows the replicas of a pool: this one, or that of the canary."""
        return self if self.canary is None or self.canary.pool != pool else self.canary.view

    @property
    def seen(self) -> Sequence[LoadView]:
        """Views of the members of all versions."""
        return self.views if self.canary is None else (*self.views, *self.canary.view.views)

    def merge(self, new: "RoutingView") -> None:
        """Let the router choose among the members of the canary, too."""
        self.canary = None
        for replica in [*new._members.values()]:
            new.remove(replica.id)
            self.add(replica)

    def pick(self, request: Request) -> Replica | None:
        """Return the member picked, a canary's for its share of requests; None: none is ready. Raises PolicyError."""
        canary = self.canary
        if canary is None or not canary.view.views or (self.views and canary.stream.random() >= canary.traffic_frac):
            return self._pick(request)
        return canary.view.pick(request)

    def _pick(self, request: Request) -> Replica | None:
        router = self.router
        if not self.views:
            return None
        try:
            view = router.pick(request, self.views)
        except Exception as error:
            raise raised(router, "pick", self._clock.now_ps, error) from error
        member = self._members.get(id(view))
        if member is None:
            raise self._no_member(view)
        return member

    def _view(self, replica: Replica) -> LoadView:
        """Return the view of a new member."""
        return replica.load

    def _show(self, views: Iterable[LoadView]) -> None:
        self.views = MemberViews(views)
        self.views.watch = self._watch

    def _watch(self) -> None:
        """Let members say from now on when they have fewer requests."""
        for replica in self._members.values():
            replica.load.on_fewer = self.views.fewer

    def _no_member(self, picked: object) -> PolicyError:
        rule = "must return one of the views it was given; a router may not keep views"
        if isinstance(picked, int):
            rule = "pick returns a view since 0.2: return views[i]"
        elif hasattr(picked, "id"):
            picked = f"a view of replica {picked.id}"
        return broke(self.router, "pick", self._clock.now_ps, rule, picked)


@dataclass
class CanaryView:
    """Replicas of another version behind a router of their own, which get a share of the requests, drawn one by one."""

    pool: int
    view: RoutingView
    stream: Random
    traffic_frac: float


class Snapshot:
    """A replica as it was at the last refresh.

    Prefix cache contents are live: engines publish cache events at once.
    """

    def __init__(self, load: LiveView) -> None:
        self._load = load
        self.id = load.id
        self.total_blocks, self.block_size, self.block_tokens = load.total_blocks, load.block_size, load.block_tokens
        self.take()

    def take(self) -> None:
        """Take a snapshot now."""
        self.n_outstanding, self.n_waiting = self._load.n_outstanding, self._load.n_waiting
        self._held_blocks = self._load.held_blocks()

    def count(self, request: Request) -> None:
        """Count a request sent since: it waits, and its prompt will fill blocks while any are left."""
        self.n_outstanding += 1
        self.n_waiting += 1
        n_blocks = self._held_blocks + self.blocks_for(request.prompt_tokens)
        self._held_blocks = min(n_blocks, self.total_blocks)

    def blocks_for(self, n_tokens: int) -> int:
        """Return the most blocks that a request of n_tokens ever holds there."""
        return self._load.blocks_for(n_tokens)

    def held_blocks(self) -> int:
        """Return the KV blocks held at the last refresh."""
        return self._held_blocks

    def found_tokens(self, request: Request) -> int:
        """Return the prefix cache hit at this instant."""
        return self._load.found_tokens(request)


class DelayedRoutingView(RoutingView):
    """A router that sees snapshots of its members."""

    def __init__(self, clock: Clock, router: Router) -> None:
        super().__init__(clock, router)
        self.snapshots: dict[int, Snapshot] = {}
        """Snapshots by member id."""

    def remove(self, member: int) -> None:
        """Let a member go, and its snapshot with it."""
        super().remove(member)
        del self.snapshots[member]

    def take_snapshots(self) -> None:
        """Take snapshots of all members now."""
        for snapshot in self.snapshots.values():
            snapshot.take()
        self.views.forget()

    def _watch(self) -> None:
        """Do nothing: only with new snapshots have members fewer requests."""

    def _view(self, replica: Replica) -> Snapshot:
        snapshot = self.snapshots[replica.id] = Snapshot(replica.load)
        return snapshot


class CountingRoutingView(DelayedRoutingView):
    """A delayed routing view that counts its own sends since the last refresh."""

    def _pick(self, request: Request) -> Replica | None:
        """Pick a member and count the request there at once."""
        member = super()._pick(request)
        if member is not None:
            self.snapshots[member.id].count(request)
        return member


class Refresher:
    """Takes snapshots at the multiples of the delay at which they can be seen.

    At one instant snapshots follow commits and transfers and precede routing.
    """

    def __init__(self, clock: Clock, delay: Delay) -> None:
        self._clock = clock
        self._delay = delay
        self.refresh_ps = delay.refresh_ps
        """Time between two snapshots."""
        self._routing_views: list[DelayedRoutingView] = []

    def routing_view(self, router: Router) -> RoutingView:
        """Return a router that sees snapshots of its members."""
        kind = CountingRoutingView if self._delay.counts_own_sends else DelayedRoutingView
        self._routing_views.append(kind(self._clock, router))
        return self._routing_views[-1]

    def take(self) -> None:
        """Take snapshots of all members now."""
        for routing_view in self._routing_views:
            routing_view.take_snapshots()
