"""Fleets that change, at given instants: a double that decides for the engine, and the oracle's own members."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Literal

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.members import Fleet, Member
from simserve.engine.replica_setup import ReplicaSetup
from tests.oracle_gateway import OracleRoutingView
from tests.oracle_replica import OracleReplica


@dataclass(frozen=True)
class Change:
    """A decision about the fleet."""

    at_ps: int
    kind: Literal["join", "drain"]
    which: int
    """Number of the setup to join, or of the member to end among those there; counted around if too high."""
    takes_ps: int = 0
    """Time from the order of a member until it is ready."""


def fresh(setups: Sequence[ReplicaSetup], which: int) -> ReplicaSetup:
    """Return a setup with a policy that has no state yet."""
    setup = setups[which % len(setups)]
    return replace(setup, scheduler=deepcopy(setup.scheduler))


@dataclass
class Script:
    """A control that follows a list of changes."""

    changes: Sequence[Change]
    setups: Sequence[ReplicaSetup]

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        self.fleet, self.clock = fleet, clock
        for change in self.changes:
            self.at(change.at_ps, change)

    def at(self, at_ps: int, change: Change, member: Member | None = None) -> None:
        Alarm(self.clock, lambda now_ps: self.act(now_ps, change, member), FLEET_PHASE).set(at_ps)

    def act(self, now_ps: int, change: Change, member: Member | None) -> None:
        fleet = self.fleet
        if member is not None:
            if member.gone_ps is None:
                fleet.ready(member)
        elif change.kind == "join":
            ordered = fleet.order(fresh(self.setups, change.which), "ordered")
            if change.takes_ps:
                self.at(now_ps + change.takes_ps, change, ordered)
            else:
                fleet.ready(ordered)
        else:
            there = [each for each in fleet.members if each.gone_ps is None and each.draining_ps is None]
            if there:
                fleet.drain(there[change.which % len(there)], "drained")


@dataclass
class OracleMember:
    """A member of the oracle's fleet."""

    setup: ReplicaSetup
    ranks: list[OracleReplica]
    ordered_ps: int
    ready_ps: int | None = None
    draining_ps: int | None = None
    gone_ps: int | None = None


@dataclass
class OracleFleet:
    """Members, and the changes to come."""

    changes: list[tuple[int, Change, OracleMember | None]]
    """(instant, change, the member that is ready then)."""
    setups: Sequence[ReplicaSetup]
    views: list[tuple[tuple[str, ...], OracleRoutingView]] = field(default_factory=list)
    """Routers, and the roles of the replicas that they see."""
    members: list[OracleMember] = field(default_factory=list)

    def due(self, now_ps: int) -> tuple[Change, OracleMember | None] | None:
        """Return the first change of this instant."""
        for place, (at_ps, change, member) in enumerate(self.changes):
            if at_ps == now_ps:
                del self.changes[place]
                return change, member
        return None

    def there(self) -> list[OracleMember]:
        return [each for each in self.members if each.gone_ps is None and each.draining_ps is None]

    def let_in(self, member: OracleMember, now_ps: int) -> None:
        member.ready_ps = now_ps
        for roles, view in self.views:
            if member.setup.role in roles:
                for rank in member.ranks:
                    view.join(rank)

    def shut(self, member: OracleMember) -> None:
        for _, view in self.views:
            for rank in member.ranks:
                view.leave(rank)

    def note_gone(self, now_ps: int) -> None:
        """Note the draining members that have nothing left."""
        for member in self.members:
            has_more = any(rank.n_outstanding or rank.away or rank.step for rank in member.ranks)
            if member.draining_ps is not None and member.gone_ps is None and not has_more:
                member.gone_ps = now_ps
