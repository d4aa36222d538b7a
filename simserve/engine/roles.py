"""Roles: the classes of prefill, decode and other replicas, and the connections between them."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import NamedTuple

from simserve.engine.alarm import Clock
from simserve.engine.handoff import Disaggregation, Handoff, Sending
from simserve.engine.link import Link
from simserve.engine.local_decode import (
    LocalDecode,
    LocalDecodeIntake,
    LocalDecodeLane,
    LocalDecodeRank,
    LocalDecodeSending,
)
from simserve.engine.lockstep import Rank
from simserve.engine.ordered import OrderedReplica
from simserve.engine.pipeline import Lane
from simserve.engine.push import PushHandoff, Pushing, PushingLane, PushingRank, StreamsKv, StreamsKvRank
from simserve.engine.receiving import Receiving, ReceivingLane, ReceivingRank
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.routing_view import Destination, Intake, RoutingView
from simserve.engine.speculating import Speculating
from simserve.engine.split import SplitRoutingView
from simserve.engine.tiered import Tiered
from simserve.routers.base import Router
from simserve.splitters.base import Where
from simserve.state.request import Request


class ReplicaKinds(NamedTuple):
    """Classes of a role: a replica alone, a pipeline lane, and a rank in lockstep."""

    alone: type[Replica]
    lane: type[Lane]
    rank: type[Rank]


BOTH = ReplicaKinds(Replica, Lane, Rank)
PULLED_FROM = ReplicaKinds(Sending, Lane, Rank)
LOCAL_DECODE = ReplicaKinds(LocalDecodeSending, LocalDecodeLane, LocalDecodeRank)
PUSHING = ReplicaKinds(Pushing, PushingLane, PushingRank)
STREAMS_KV = ReplicaKinds(StreamsKv, PushingLane, StreamsKvRank)
RECEIVING = ReplicaKinds(Receiving, ReceivingLane, ReceivingRank)


def kinds(setup: ReplicaSetup, how: Disaggregation | None) -> ReplicaKinds:
    """Return the replica classes of a pool: those of its role, unless a mechanism needs its own class."""
    kind = _by_role(setup.role, how)
    if setup.speculation is not None:
        return kind._replace(alone=Speculating)
    if setup.has_tier:
        return kind._replace(alone=Tiered)
    return kind._replace(alone=OrderedReplica) if setup.scheduler.orders else kind


def _by_role(role: str, how: Disaggregation | None) -> ReplicaKinds:
    if role == "both" or how is None:
        return BOTH
    if role == "decode":
        return RECEIVING
    if not how.is_pushed:
        return LOCAL_DECODE if how.keeps else PULLED_FROM
    return PUSHING if how.link.n_layers is None else STREAMS_KV


def intake_roles(ranks: Sequence[ReplicaSetup], how: Disaggregation | None) -> tuple[str, ...]:
    """Return the roles that receive requests; without a "both" pool, decode replicas serve local prompts."""
    if how is not None and how.splitter is not None and all(rank.role != "both" for rank in ranks):
        return "prefill", "decode"
    return "prefill", "both"


OpenRoutingView = Callable[[Router, Sequence[Replica]], RoutingView]
"""Returns a router that sees these replicas, live or delayed."""


class RoleWiring:
    """Connects the replicas of a cluster according to their roles."""

    def __init__(
        self, clock: Clock, how: Disaggregation, replicas: Sequence[Replica], open_view: OpenRoutingView
    ) -> None:
        self._clock = clock
        self._how = how
        self._replicas = replicas
        self._open_view = open_view
        self._decode = open_view(how.router, [each for each in replicas if isinstance(each, Receiving)])
        self.local_decode = {each.id: LocalDecodeIntake(each) for each in replicas if isinstance(each, LocalDecode)}
        """Intakes of requests that a prefill replica decodes itself, by member id."""

    def connect(self, recorder: Recorder, router_seed: int | str) -> None:
        """Connect prefill replicas to decode replicas."""
        self._how.router.begin(Random(f"{router_seed}/decode"))
        kind = PushHandoff if self._how.is_pushed else Handoff
        handoff = kind(self._clock, recorder, Link(self._how.link), self._decode.pick)
        for replica in self._replicas:
            if replica.role != "both":
                handoff.connect(replica)

    def intake(self, router: Router, entries: Sequence[Replica], router_seed: int | str) -> Intake:
        """Return the intake: `router`, or a split one if some requests are not prefilled remotely."""
        splitter = self._how.splitter
        if splitter is None:
            return self._open_view(router, entries)
        prefill = self._open_view(router, [entry for entry in entries if entry.role == "prefill"])
        local, both = self._decode, [entry for entry in entries if entry.role == "both"]
        if both:
            local_router = deepcopy(router)
            local_router.begin(Random(f"{router_seed}/local"))
            local = self._open_view(local_router, both)
        sides: dict[Where, Callable[[Request], Destination]] = {"apart": prefill.pick, "local": local.pick}
        if self._how.keeps:
            sides["prefill"] = lambda request: self.local_decode[prefill.pick(request).id]
        return SplitRoutingView(self._clock, splitter, (prefill, local), sides)
