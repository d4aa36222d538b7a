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
from simserve.engine.routing_view import Intake, RoutingView
from simserve.engine.speculating import Speculating
from simserve.engine.split import SplitRoutingView, SplitSide
from simserve.engine.tiered import Tiered
from simserve.routers.base import Router
from simserve.splitters.base import Where


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
        prefill = self._side(entries, "prefill", router)
        if any(entry.role == "both" for entry in entries):
            local_router = deepcopy(router)
            local_router.begin(Random(f"{router_seed}/local"))
            local = self._side(entries, "both", local_router)
        else:
            local = SplitSide(self._decode, _places(entries, "decode"))
        sides: dict[Where, SplitSide] = {"apart": prefill, "local": local}
        if self._how.keeps:
            kept_places = range(len(entries), len(entries) + len(prefill.places))
            sides["prefill"] = SplitSide(prefill.routing_view, [*kept_places])
        return SplitRoutingView(self._clock, splitter, sides)

    @staticmethod
    def destinations(entries: Sequence[Replica]) -> "Sequence[Replica | LocalDecodeIntake]":
        """Return the destinations of requests, indexed by the places that the intake returns."""
        return [*entries, *(LocalDecodeIntake(entry) for entry in entries if isinstance(entry, LocalDecode))]

    def _side(self, entries: Sequence[Replica], role: str, router: Router) -> SplitSide:
        places = _places(entries, role)
        return SplitSide(self._open_view(router, [entries[place] for place in places]), places)


def _places(entries: Sequence[Replica], role: str) -> list[int]:
    """Return the places of the replicas of a role."""
    return [place for place, entry in enumerate(entries) if entry.role == role]
