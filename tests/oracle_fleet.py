"""Fleets that change, at given instants: a double that decides for the engine, and the oracle's own members."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, cast

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.fleet import Control, Fleet, Member
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.slowness import Window
from simserve.state.request import Phase, Request
from tests.oracle_gateway import OracleRoutingView
from tests.oracle_replica import OracleReplica

Kind = Literal["join", "ready", "drain", "freeze", "slow", "fail", "resend"]


@dataclass(frozen=True)
class Change:
    """A decision about the fleet; `resend`: a member fails, and the gateway sends again what it may; `ready`: the one
    with that number in the order of joining is; `freeze`: a member answers no more; `slow`: its steps take longer."""

    at_ps: int
    kind: Kind
    which: int
    """Number of the setup to join, or of the member to end among those there; counted around if too high."""
    takes_ps: int = 0
    """Time from the order of a member until it is ready, or for which it is slow."""
    speed: float = 1.0
    """Share of its speed that a slow member has."""


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

    def goes_on(self) -> bool:
        return True

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
            there = there_in(fleet)
            member = there[change.which % len(there)] if there else None
            if member is None:
                return
            if change.kind == "slow" and fleet.serving is not None:
                for rank in member.ranks:
                    fleet.serving.slow(rank, (now_ps, now_ps + change.takes_ps, change.speed))
            elif change.kind != "drain":
                fleet.fail(member, "failed", resends=change.kind == "resend")
            elif member.draining_ps is None:
                fleet.drain(member, "drained")


NEVER_PS = -1
"""How long a member takes of which another change says when it is ready."""


@dataclass
class Recorded:
    """A fleet that notes what is done to it, as changes for the oracle."""

    fleet: Fleet
    clock: Clock
    changes: list[Change] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)

    def order(self, setup: ReplicaSetup, why: str) -> Member:
        member = self.fleet.order(setup, why)
        self.changes.append(Change(self.clock.now_ps, "join", setup.pool, NEVER_PS))
        return member

    def ready(self, member: Member) -> None:
        self.changes.append(Change(self.clock.now_ps, "ready", self.fleet.members.index(member)))
        self.fleet.ready(member)

    def drain(self, member: Member, why: str) -> None:
        self.note("drain", member)
        self.fleet.drain(member, why)

    def freeze(self, member: Member) -> None:
        self.note("freeze", member)
        self.fleet.freeze(member)

    def fail(self, member: Member, why: str, *, resends: bool = False) -> None:
        self.note("resend" if resends else "fail", member)
        self.fleet.fail(member, why, resends=resends)

    def note(self, kind: Kind, member: Member) -> None:
        there = there_in(self.fleet)
        self.changes.append(Change(self.clock.now_ps, kind, there.index(member)))


@dataclass
class Observed:
    """A control that decides for a fleet while that is recorded."""

    control: Control
    recorded: Recorded | None = None

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        self.recorded = Recorded(fleet, clock)
        self.control.begin(cast(Fleet, self.recorded), clock)

    def goes_on(self) -> bool:
        return self.control.goes_on()


def there_in(fleet: Fleet) -> list[Member]:
    """Return the members to end: those that drain are counted last."""
    there = [each for each in fleet.members if each.gone_ps is None and each.draining_ps is None]
    return there + [each for each in fleet.members if each.gone_ps is None and each.draining_ps is not None]


@dataclass
class OracleMember:
    """A member of the oracle's fleet."""

    setup: ReplicaSetup
    ranks: list[OracleReplica]
    ordered_ps: int
    ready_ps: int | None = None
    draining_ps: int | None = None
    gone_ps: int | None = None


class OracleCarrier:
    """What the ports of a pool carry: sums of all that they have carried, and a search in whole instants."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = windows

    def carried(self, start_ps: int, end_ps: int) -> Fraction:
        """Return the time at full speed in which as much is carried as from start to end."""
        windows = self.windows
        edges = sorted(
            {start_ps, end_ps, *(min(max(e, start_ps), end_ps) for start, end, _ in windows for e in (start, end))}
        )
        total = Fraction(0)
        for first, last in pairwise(edges):
            speeds = [Fraction(str(speed)) for start, end, speed in windows if start <= first and last <= end]
            total += (last - first) * min([Fraction(1), *speeds])
        return total

    def end_ps(self, start_ps: int, busy_ps: int) -> int:
        """Return the first instant by which all is carried."""
        if not self.windows:
            return start_ps + busy_ps
        most_ps = busy_ps
        while self.carried(start_ps, start_ps + most_ps) < busy_ps:
            most_ps *= 2
        least_ps = 0
        while most_ps - least_ps > 1:
            middle_ps = (least_ps + most_ps) // 2
            if self.carried(start_ps, start_ps + middle_ps) < busy_ps:
                least_ps = middle_ps
            else:
                most_ps = middle_ps
        return start_ps + most_ps


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

    def pick(self, change: Change) -> OracleMember | None:
        """Return the member to end: those that drain are counted last."""
        left = [each for each in self.members if each.gone_ps is None]
        left.sort(key=lambda each: each.draining_ps is not None)
        return left[change.which % len(left)] if left else None

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
            has_more = any(rank.is_frozen or rank.n_outstanding or rank.away or rank.step for rank in member.ranks)
            if member.draining_ps is not None and member.gone_ps is None and not has_more:
                member.gone_ps = now_ps


def lost_with(
    ranks: list[OracleReplica], senders: list[OracleReplica], receivers: list[OracleReplica]
) -> list[Request]:
    """Fail replicas; return the requests without an answer that they had, computed or were to decode."""
    lost: list[Request] = []
    for rank in ranks:
        rank.step = rank.step_end_ps = rank.wake_ps = None
        rank.must_plan = False
        for sender in senders:
            lost += unbind_sender(sender, rank)
        for receiver in receivers:
            if receiver is not rank:
                unbind_receiver(receiver, rank)
        lost += [*rank.waiting, *(request for request, _ in rank.coming), *rank.running, *rank.away, *rank.kept]
        lost += [request for request, _ in rank.coming_in] + list(rank.without_blocks)
        if rank.host is not None:
            lost += rank.host.swapped
            for request in [*rank.host.swapped]:
                rank.host.forget(request)
            rank.host.ahead.clear()
            rank.host.waiting.clear()
            if rank.host.store:
                rank.host.store.lose(rank.host)
        for requests in (rank.waiting, rank.running, rank.without_blocks, rank.senders):
            requests.clear()
        rank.coming, rank.prefilling, rank.decoding, rank.away, rank.handed_over = [], [], [], [], []
        rank.coming_in, rank.kept, rank.words, rank.in_transfer, rank.here, rank.doomed = [], [], [], [], [], []
        rank.n_outstanding, rank.stage_sends = 0, []
    unique = {id(request): request for request in lost if request.phase is not Phase.DONE}
    return [each for each in unique.values() if ranks[0].lives[each].finish_ps < 0]


def unbind_sender(sender: OracleReplica, failing: OracleReplica) -> list[Request]:
    """Let a prefill replica drop what a failing decode replica was to decode, unless that has it all; return it."""
    lost = []
    away = sorted(sender.away, key=lambda each: (sender.lives[each].token_ps[0], each.row))
    for request in [*away, *sender.waiting, *(r for r, _ in sender.coming), *sender.prefilling]:
        if sender.lives[request].goes_to is failing and request.phase is not Phase.DONE:
            sender.drop(request)
            lost.append(request)
    for request in [each for each in sender.without_blocks if sender.lives[each].goes_to is failing]:
        sender.without_blocks.remove(request)
        sender.n_outstanding -= 1
        lost.append(request)
    return lost


def unbind_receiver(receiver: OracleReplica, failing: OracleReplica) -> None:
    """Let a decode replica free what it holds for requests of a failing prefill replica, and forget them."""
    of_it = {*failing.away, *failing.waiting, *(r for r, _ in failing.coming), *failing.prefilling}
    of_it |= {*failing.without_blocks}
    before = receiver.n_outstanding
    for request in [each for each in receiver.kept if each in of_it]:
        receiver.give_up(request)
        receiver.n_outstanding -= 1
    receiver.n_outstanding -= sum(request in of_it for request, _ in receiver.coming_in)
    receiver.coming_in = [each for each in receiver.coming_in if each[0] not in of_it]
    for request in [each for each in receiver.senders if each in of_it]:
        receiver.leave_queue(request)
        receiver.n_outstanding -= 1
    receiver.words = [word for word in receiver.words if word[1] not in of_it]
    receiver.in_transfer = [each for each in receiver.in_transfer if each[1] not in of_it]
    receiver.must_plan = receiver.must_plan or (receiver.step is None and receiver.n_outstanding < before)
