"""Wiring: the roles of replicas in a cluster, and the intake through which requests reach them."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

from simserve.engine.alarm import Clock
from simserve.engine.handoff import Disaggregation, Handoff, PushHandoff
from simserve.engine.link import Link
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Destination, Intake, RoutingView, SplitRoutingView
from simserve.routers.base import Router
from simserve.splitters.base import Where
from simserve.state.request import Request


def intake_roles(ranks: Sequence[ReplicaSetup], how: Disaggregation | None) -> tuple[str, ...]:
    """Return the roles that receive requests; without a "both" pool, decode replicas serve local prompts."""
    if how is not None and how.splitter is not None and all(rank.role != "both" for rank in ranks):
        return "prefill", "decode"
    return "prefill", "both"


OpenRoutingView = Callable[[Router, Sequence[Replica]], RoutingView]
"""Returns a router that sees these replicas, live or delayed."""


@dataclass(eq=False)
class LocalDecodeIntake:
    """Entry for requests that a prefill replica decodes itself."""

    id: int
    enqueue: Callable[[Request, int], None]


class Wiring:
    """Connects the replicas of a cluster according to their roles."""

    def __init__(
        self,
        clock: Clock,
        recorder: Recorder,
        how: Disaggregation,
        replicas: Sequence[tuple[Replica, ReplicaSetup]],
        open_view: OpenRoutingView,
        router_seed: int | str,
    ) -> None:
        self._clock = clock
        self._how = how
        self._open_view = open_view
        self._router_seed = router_seed
        self._decode = open_view(how.router, [replica for replica, setup in replicas if setup.role == "decode"])
        how.router.begin(Random(f"{router_seed}/decode"))
        kind = PushHandoff if how.is_pushed else Handoff
        handoff = kind(clock, recorder, Link(how.link), self._decode.pick)
        self.views: list[tuple[tuple[str, ...], RoutingView]] = [(("decode",), self._decode)]
        """All routers' views, each with the roles of its members."""
        self.handoff = handoff
        self.local_decode: dict[int, LocalDecodeIntake] = {}
        """Intakes of requests that a prefill replica decodes itself, by member id."""
        for replica, setup in replicas:
            self.connect(replica, setup)

    def connect(self, replica: Replica, setup: ReplicaSetup) -> None:
        """Let a replica take its role."""
        if setup.role == "decode":
            self.handoff.add_receiver(replica)
        elif setup.role == "prefill":
            side = self.handoff.add_sender(replica)
            if self._how.keeps:
                self.local_decode[replica.id] = LocalDecodeIntake(replica.id, side.keep)

    def intake(self, router: Router, prefill: Sequence[Replica], both: Sequence[Replica]) -> Intake:
        """Return the intake: `router`, or a split one if some requests are not prefilled remotely."""
        splitter = self._how.splitter
        if splitter is None:
            view = self._open_view(router, sorted([*prefill, *both], key=lambda replica: replica.id))
            self.views.append((("prefill", "both"), view))
            return view
        remote, local = self._open_view(router, prefill), self._decode
        self.views.append((("prefill",), remote))
        if both:
            local_router = deepcopy(router)
            local_router.begin(Random(f"{self._router_seed}/local"))
            local = self._open_view(local_router, both)
            self.views.append((("both",), local))
        sides: dict[Where, Callable[[Request], Destination | None]] = {"apart": remote.pick, "local": local.pick}

        def prefill_side(request: Request) -> Destination | None:
            member = remote.pick(request)
            return None if member is None else self.local_decode[member.id]

        if self._how.keeps:
            sides["prefill"] = prefill_side
        return SplitRoutingView(self._clock, splitter, (remote, local), sides)
