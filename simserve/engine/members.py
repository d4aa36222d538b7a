"""Members: the replicas of a fleet and the instants of their lives, and what decides about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simserve.engine.alarm import Clock
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup


@dataclass(eq=False)
class Member:
    """A replica of the fleet, with all its ranks; None for an instant that has not come."""

    setup: ReplicaSetup
    ranks: Sequence[Replica]
    ordered_ps: int
    why: str
    """Reasons for its joining and its leaving."""
    ready_ps: int | None = None
    """It receives requests from then on."""
    draining_ps: int | None = None
    """It receives none from then on, and finishes those it has."""
    gone_ps: int | None = None

    def note_empty(self, now_ps: int) -> None:
        """Note that a rank has nothing left to do; a draining member is gone once all of them have."""
        if self.gone_ps is None and all(rank.is_empty for rank in self.ranks):
            self.gone_ps = now_ps


class Fleet(Protocol):
    """Replicas that join and leave; its methods are called in the FLEET_PHASE of an instant."""

    members: list[Member]
    """All members so far, in the order of their orders."""

    def order(self, setup: ReplicaSetup, why: str) -> Member:
        """Order a member; it takes GPUs from now on. `setup` has a scheduler of its own."""

    def ready(self, member: Member) -> None:
        """Let an ordered member receive requests, those that wait at the gateway first."""

    def drain(self, member: Member, why: str) -> None:
        """Send a member no more requests; it is gone when those it has, running or waiting, have ended."""

    def fail(self, member: Member, why: str, *, resends: bool = False) -> None:
        """Lose a member: its step in flight, its blocks and all its requests, also those on their way to or from it.

        Each request fails for its client; if `resends`, the gateway sends those without a token once more, as gateways
        do while nothing has been sent to the client.
        """


class Control(Protocol):
    """Decides when members join and leave."""

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        """Set alarms for its decisions, of FLEET_PHASE; called once, before the first event."""
