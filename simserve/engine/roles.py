"""Roles: what prefill, decode and other replicas of a cluster are made of, and what ties them together."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from random import Random
from typing import NamedTuple

from simserve.engine.alarm import Clock
from simserve.engine.handoff import Disaggregation, Handoff, Sending
from simserve.engine.link import Link
from simserve.engine.lockstep import Rank
from simserve.engine.pipeline import Lane
from simserve.engine.push import Following, FollowingRank, PushHandoff, Pushing, PushingLane, PushingRank
from simserve.engine.receiving import Receiving, ReceivingLane, ReceivingRank
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.split import Side, SplitRouter
from simserve.routers.base import Router
from simserve.state.request import Request

PickBy = Callable[[Router, Request, Sequence[Replica]], int]
"""A router's answer, held against the rules."""


class Kinds(NamedTuple):
    """Of one role: a replica alone, a lane of a pipeline, and a rank that steps with others."""

    alone: type[Replica]
    lane: type[Lane]
    rank: type[Rank]


BOTH = Kinds(Replica, Lane, Rank)
PULLED_FROM = Kinds(Sending, Lane, Rank)
PUSHING = Kinds(Pushing, PushingLane, PushingRank)
FOLLOWING = Kinds(Following, PushingLane, FollowingRank)
RECEIVING = Kinds(Receiving, ReceivingLane, ReceivingRank)


def kinds(role: str, how: Disaggregation | None) -> Kinds:
    """What replicas of a role are."""
    if role == "both" or how is None:
        return BOTH
    if role == "decode":
        return RECEIVING
    if not how.is_pushed:
        return PULLED_FROM
    return PUSHING if how.link.n_layers is None else FOLLOWING


def door_roles(ranks: Sequence[ReplicaSetup], how: Disaggregation | None) -> tuple[str, ...]:
    """The roles of those that requests are sent to: who has no prompts computed apart needs one that does all."""
    if how is not None and how.splitter is not None and all(rank.role != "both" for rank in ranks):
        return "prefill", "decode"
    return "prefill", "both"


class Tie:
    """Ties the replicas of a cluster together as their roles say."""

    def __init__(self, clock: Clock, how: Disaggregation, replicas: Sequence[Replica], pick_by: PickBy) -> None:
        self._clock = clock
        self._how = how
        self._replicas = replicas
        self._pick_by = pick_by

    def connect(self, recorder: Recorder, router_seed: int | str) -> None:
        """Let prefill replicas hand over to decode replicas."""
        router = self._how.router
        router.begin(Random(f"{router_seed}/decode"))
        kind = PushHandoff if self._how.is_pushed else Handoff
        link = Link(self._how.link)
        handoff = kind(self._clock, recorder, link, partial(self._pick_by, router))
        for replica in self._replicas:
            if replica.role != "both":
                handoff.connect(replica)

    def door(self, router: Router, views: Sequence[Replica], router_seed: int | str) -> Router:
        """The router of arrivals: `router`, unless some of them are not prefilled apart."""
        splitter = self._how.splitter
        if splitter is None:
            return router
        local_router = self._how.router
        if any(view.role == "both" for view in views):
            local_router = deepcopy(router)
            local_router.begin(Random(f"{router_seed}/local"))
        prefill = Side.of(views, "prefill", partial(self._pick_by, router))
        other = "both" if local_router is not self._how.router else "decode"
        local = Side.of(views, other, partial(self._pick_by, local_router))
        return SplitRouter(self._clock, splitter, prefill, local)
