"""Wiring: which replicas requests reach, through which routers, and which of these hand over to others."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, cast

from simserve.engine.alarm import Clock
from simserve.engine.checks import broke, raised
from simserve.engine.handoff import Disaggregation, Handoff
from simserve.engine.link import Link
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup, RoleName
from simserve.engine.routing_view import CanaryView, Destination, Entry, Intake, Refresher, RoutingView
from simserve.routers.base import Router
from simserve.schedulers.base import Scheduler
from simserve.splitters.base import Splitter, Where
from simserve.state.request import Request


@dataclass(eq=False)
class LocalDecodeIntake:
    """Entry for requests that a prefill replica decodes itself."""

    id: int


class Wiring:
    """Connects the replicas of a cluster according to their roles. `open` it before they are connected."""

    handoff: Handoff | None = None

    def __init__(self, setups: Sequence[ReplicaSetup], how: Disaggregation | None) -> None:
        self._how = how
        self._decode_limit_tokens = min((each.max_model_len for each in setups if each.role == "decode"), default=0)
        self.splits = is_split = how is not None and how.splitter is not None
        """A splitter decides where each prompt is computed."""
        self._has_both = any(setup.role == "both" for setup in setups)
        self._has_roles = any(setup.role != "both" for setup in setups)
        self.roles: tuple[RoleName, ...] = ("prefill", "decode" if is_split and not self._has_both else "both")
        """Roles that receive requests; without a "both" pool, decode replicas serve local prompts."""
        entries = (self._entry(setup, role) for setup in setups for role in self._serves(setup))
        self.limit_tokens = max(entry.limit_tokens for entry in entries)
        """Limit on prompt plus output tokens of any request."""
        self.entries: dict[Destination, Entry] = {}
        self._local_decode: dict[int, LocalDecodeIntake] = {}
        """Intakes of prefill replicas, by member id."""
        self.views: list[tuple[tuple[RoleName, ...], RoutingView]] = []
        """All routers' views, each with the roles of its members."""

    def _serves(self, setup: ReplicaSetup) -> list[RoleName]:
        """Return the roles in which a replica receives requests."""
        roles = [role for role in self.roles if role == setup.role]
        return [*roles, "both"] if self._how is not None and self._how.keeps and setup.role == "prefill" else roles

    def _entry(self, setup: ReplicaSetup, role: RoleName) -> Entry:
        limit_tokens = self._decode_limit_tokens if role == "prefill" else setup.max_model_len
        scheduler = setup.scheduler
        never_fits = None if type(scheduler).never_fits is Scheduler.never_fits else scheduler.never_fits
        return Entry(never_fits, limit_tokens, min(limit_tokens, setup.max_model_len) - 1)

    def open(self, clock: Clock, router: Router, seed: int | str, refresher: Refresher | None) -> Intake:
        """Return where requests enter: `router`, or a split one if some requests are not prefilled remotely. Routers
        see their members live, or as the refresher shows them."""
        self._shown = partial(RoutingView, clock) if refresher is None else refresher.routing_view

        def opened(router: Router, stream: str, *roles: RoleName) -> RoutingView:
            router.begin(Random(f"{seed}/{stream}" if stream else seed))
            view = self._shown(router)
            self.views.append((roles, view))
            return view

        how = self._how
        if how is None or not self._has_roles:
            entering = opened(router, "", *self.roles)
            if how is not None:
                self.handoff = Handoff(how, Link(how.link), entering.pick, has_roles=False)
            return entering
        decode = opened(how.router, "decode", "decode")
        self.handoff = Handoff(how, Link(how.link), decode.pick)
        if how.splitter is None:
            return opened(router, "", *self.roles)
        remote = opened(router, "", "prefill")
        local = opened(deepcopy(router), "local", "both") if self._has_both else decode
        sides: dict[Where, Callable[[Request], Destination | None]] = {"apart": remote.pick, "local": local.pick}

        def prefill_side(request: Request) -> Destination | None:
            member = remote.pick(request)
            return None if member is None else self._local_decode[member.id]

        if how.keeps:
            sides["prefill"] = prefill_side
        return SplitRoutingView(clock, how.splitter, (remote, local), sides)

    def connect(self, replica: Replica, setup: ReplicaSetup) -> None:
        """Let a replica take its role, and routers see it."""
        if self.handoff is not None and (setup.role != "both" or not self._has_roles):
            self.handoff.connect(replica, setup.pool, sends=setup.role == "prefill")
            self._local_decode[replica.id] = LocalDecodeIntake(replica.id)
        for role in self._serves(setup):
            intake: Destination = replica if role == setup.role else self._local_decode[replica.id]
            self.entries[intake] = self._entry(setup, role)
        for view in self.views_of(setup):
            view.add(replica)

    def views_of(self, setup: ReplicaSetup) -> list[RoutingView]:
        """Return the routers' views that show a replica."""
        return [view.of(setup.pool) for roles, view in self.views if setup.role in roles]

    def shift(self, setup: ReplicaSetup, traffic_frac: float | None, stream: str) -> None:
        """Send a share of the requests to the replicas of a new version; None: as many as its router picks."""
        view = next(view for roles, view in self.views if setup.role in roles)
        if view.canary is None:
            router = deepcopy(view.router)
            router.begin(Random(f"{stream}/router"))
            view.canary = CanaryView(setup.pool, self._shown(router), Random(stream), 0.0)
        if traffic_frac is None:
            view.merge(view.canary.view)
        else:
            view.canary.traffic_frac = traffic_frac


class SplitRoutingView:
    """Asks the splitter for a side, then that side's router for a replica."""

    def __init__(
        self,
        clock: Clock,
        splitter: Splitter,
        views: Sequence[RoutingView],
        sides: Mapping[Where, Callable[[Request], Destination | None]],
    ) -> None:
        """Join sides; `views` are those of the prefill replicas and of the local ones."""
        self._clock = clock
        self._splitter = splitter
        self._prefill, self._local = views
        self._sides = sides

    def pick(self, request: Request) -> Destination | None:
        """Return a prefill replica, its intake for local decode, or a local replica; None: that side has no member
        that is ready. Raises PolicyError."""
        if not self._prefill.seen and not self._local.seen:
            return None
        try:
            splitter: Any = self._splitter  # so that compiled code leaves its answer to the check below
            where = splitter.where(request, self._prefill.seen, self._local.seen)
        except Exception as error:
            raise raised(self._splitter, "where", self._clock.now_ps, error) from error
        if not isinstance(where, str) or where not in self._sides:
            rule = "must return " + " or ".join(map(repr, self._sides))
            raise broke(self._splitter, "where", self._clock.now_ps, rule, where)
        return self._sides[cast("Where", where)](request)
