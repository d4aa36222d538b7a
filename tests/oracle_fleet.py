"""Fleets that change, at given instants: a double that decides for the engine, and the oracle's own members."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, cast

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.fleet import Control, Fleet, Member
from simserve.engine.losses import Rescue
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.slowness import Window
from simserve.integers import NEVER
from simserve.state.request import Phase, Request
from simserve.tables.why import Reason, Why
from tests.oracle_gateway import OracleRoutingView
from tests.oracle_replica import Life, OracleReplica

Kind = Literal["join", "ready", "drain", "freeze", "slow", "fail", "resend", "move", "rescue", "shift"]

RESENDS, MOVES = ("resend", "rescue"), ("move", "rescue")


@dataclass(frozen=True)
class Change:
    """A decision about the fleet; `resend`: a member fails, and the gateway sends again what has no token; `move`: what
    has some goes on elsewhere; `rescue`: both; `ready`: the one with that number in the order of joining is; `freeze`:
    a member answers no more; `slow`: its steps take longer; `shift`: a new version gets a share of the requests."""

    at_ps: int
    kind: Kind
    which: int
    """Number of the setup to join, or of the member to end among those there; counted around if too high."""
    takes_ps: int = 0
    """Time from the order of a member until it is ready, or for which it is slow."""
    speed: float = 1.0
    """Share of its speed that a slow member has."""
    before: int = -1
    """Number in the order of joining of a lost member of which it takes over the host memory; -1: of none."""
    traffic_frac: float | None = None
    stream: str = ""
    """Of a shift."""
    most_sends: int = NEVER
    """How often the gateway sends a request, at most."""
    place: int = -1
    """Number of the member to end in the order of joining, where that is known."""
    with_kv: bool = False
    """What goes on elsewhere takes its keys and values along; the member drains if it does not yet."""


def fresh(setups: Sequence[ReplicaSetup], which: int) -> ReplicaSetup:
    """Return a setup with a policy that has no state yet."""
    setup = setups[which % len(setups)]
    return replace(setup, scheduler=deepcopy(setup.scheduler))


@dataclass
class Script:
    """A control that follows a list of changes."""

    changes: Sequence[Change]
    setups: Sequence[ReplicaSetup]
    shifts: bool = False

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
            ordered = fleet.order(fresh(self.setups, change.which), Reason(Why.SCALED, "ordered"))
            if change.takes_ps:
                self.at(now_ps + change.takes_ps, change, ordered)
            else:
                fleet.ready(ordered)
        else:
            there = there_in(fleet)
            member = there[change.which % len(there)] if there else None
            if member is None:
                return
            if change.kind == "slow":
                assert fleet.serving is not None, "the run has begun"
                for rank in member.ranks:
                    fleet.serving.slow(rank, (now_ps, now_ps + change.takes_ps, change.speed))
            elif change.kind != "drain":
                if change.with_kv and member.draining_ps is None:
                    fleet.drain(member, Reason(Why.SCALED, "drained"))
                rescue = Rescue(change.kind in RESENDS, change.kind in MOVES, change.most_sends)
                if member.gone_ps is None:
                    fleet.fail(member, Reason(Why.FAILED, "process"), replace(rescue, with_kv=change.with_kv))
            elif member.draining_ps is None:
                fleet.drain(member, Reason(Why.SCALED, "drained"))


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

    def order(self, setup: ReplicaSetup, why: Reason, before: Member | None = None) -> Member:
        lost = -1 if before is None else self.fleet.members.index(before)
        member = self.fleet.order(setup, why, before)
        self.changes.append(Change(self.clock.now_ps, "join", setup.pool, NEVER_PS, before=lost))
        return member

    def ready(self, member: Member) -> None:
        self.changes.append(Change(self.clock.now_ps, "ready", self.fleet.members.index(member)))
        self.fleet.ready(member)

    def shift(self, setup: ReplicaSetup, traffic_frac: float | None, stream: str) -> None:
        shift = Change(self.clock.now_ps, "shift", setup.pool, traffic_frac=traffic_frac, stream=stream)
        self.changes.append(shift)
        self.fleet.shift(setup, traffic_frac, stream)

    def drain(self, member: Member, why: Reason) -> None:
        self.note("drain", member)
        self.fleet.drain(member, why)

    def freeze(self, member: Member) -> None:
        self.note("freeze", member)
        self.fleet.freeze(member)

    def fail(self, member: Member, why: Reason, rescue: Rescue) -> None:
        some: Kind = "move" if rescue.moves else "resend"
        every: Kind = "rescue" if rescue.moves and rescue.resends else some
        kind: Kind = every if rescue.moves or rescue.resends else "fail"
        self.note(kind, member, rescue.most_sends, with_kv=rescue.with_kv)
        self.fleet.fail(member, why, rescue)

    def note(self, kind: Kind, member: Member, most_sends: int = NEVER, *, with_kv: bool = False) -> None:
        which, place = there_in(self.fleet).index(member), self.fleet.members.index(member)
        how: dict[str, Any] = {"most_sends": most_sends, "with_kv": with_kv, "place": place}
        self.changes.append(Change(self.clock.now_ps, kind, which, **how))


@dataclass
class Observed:
    """A control that decides for a fleet while that is recorded."""

    control: Control
    recorded: Recorded | None = None
    shifts: bool = field(init=False)

    def __post_init__(self) -> None:
        self.shifts = self.control.shifts

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
    is_new: bool = False
    """It is of a version that a roll-out brings: its setup has a number beyond those of the start."""


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
        assert member.ready_ps is None, "a member is ready once"
        member.ready_ps = now_ps
        for roles, view in self.views:
            if member.setup.role in roles:
                for rank in member.ranks:
                    (view.canary if view.canary and member.is_new else view).join(rank)

    def shut(self, member: OracleMember) -> None:
        for _, view in self.views:
            for rank in member.ranks:
                for each in (view, view.canary) if view.canary else (view,):
                    each.leave(rank)

    def shift(self, change: Change) -> None:
        role = self.setups[change.which % len(self.setups)].role
        next(view for roles, view in self.views if role in roles).shift(change.traffic_frac, change.stream)

    def note_gone(self, now_ps: int) -> None:
        """Note the draining members that have nothing left."""
        for member in self.members:
            has_more = any(
                rank.is_frozen or rank.n_outstanding or rank.away or rank.leaving or rank.step for rank in member.ranks
            )
            if member.draining_ps is not None and member.gone_ps is None and not has_more:
                member.gone_ps = now_ps


def lost_with(
    ranks: list[OracleReplica], senders: list[OracleReplica], receivers: list[OracleReplica], now_ps: int
) -> list[Request]:
    """Fail replicas; return the requests without an answer that they had, computed or were to decode, each with the
    instant from which it waits."""
    lost: list[Request] = []
    for rank in ranks:
        rank.step = rank.step_end_ps = rank.wake_ps = None
        rank.must_plan = False
        note_left([*rank.running], rank, now_ps if rank.frozen_ps is None else min(rank.frozen_ps, now_ps))
        for sender in senders:
            lost += unbind_sender(sender, rank)
        for receiver in receivers:
            if receiver is not rank:
                unbind_receiver(receiver, rank)
        lost += [*rank.waiting, *(request for request, _ in rank.coming), *rank.running, *rank.away, *rank.kept]
        lost += [request for request, _ in rank.coming_in] + list(rank.without_blocks) + rank.leaving
        if rank.host is not None:
            lost += rank.host.swapped
            for request in [*rank.host.swapped]:
                rank.host.forget(request)
            rank.host.ahead.clear()
            rank.host.waiting.clear()
            if rank.host.store:
                rank.host.store.lose(rank.host)
        note_left(lost, rank, now_ps)
        for requests in (rank.waiting, rank.running, rank.without_blocks, rank.senders):
            requests.clear()
        rank.coming, rank.prefilling, rank.decoding, rank.away, rank.handed_over = [], [], [], [], []
        rank.coming_in, rank.kept, rank.words, rank.in_transfer, rank.here, rank.doomed = [], [], [], [], [], []
        rank.n_outstanding, rank.stage_sends, rank.leaving = 0, [], []
    unique = {id(request): request for request in lost if request.phase is not Phase.DONE}
    return [each for each in unique.values() if ranks[0].lives[each].finish_ps < 0]


def note_left(requests: list[Request], rank: OracleReplica, since_ps: int) -> None:
    """Note that requests wait since an instant, unless they do already."""
    for life in [rank.lives[request] for request in requests]:
        if life.preempted_at_ps < 0:
            life.preempted_at_ps = since_ps


def tokens_of(life: Life | None) -> list[int]:
    """Return when a request had its tokens, on all replicas where it was."""
    return [] if life is None else tokens_of(life.before) + life.token_ps


def waits_ps(life: Life | None, *, is_pushed: bool) -> int:
    """Return how long a request waited for transfers that ended, or before its first prefill."""
    if life is None:
        return 0
    counts = life.before is None if is_pushed else life.transfer_ps > 0
    return waits_ps(life.before, is_pushed=is_pushed) + life.transfer_wait_ps * counts


def whole(life: Life, *, is_pushed: bool) -> Life:
    """Return a request as one life: what led to its first token is that of the first replica, and waits add up."""
    if life.first_places is not None:
        life = replace(life, replica=life.first_places[0], prefill_replica=life.first_places[1])
    if life.before is None:
        return life
    before = whole(life.before, is_pushed=is_pushed)
    return replace(
        before,
        request=life.request,
        token_ps=tokens_of(life),
        finish_ps=life.finish_ps,
        first_ps=life.first_ps,
        transfer_ps=before.transfer_ps + life.transfer_ps,
        transfer_wait_ps=waits_ps(life.before, is_pushed=is_pushed) + life.transfer_wait_ps * (not is_pushed),
        preempted_ps=before.preempted_ps + life.preempted_ps,
        n_preemptions=before.n_preemptions + life.n_preemptions,
        n_swaps=before.n_swaps + life.n_swaps,
        padding=life.padding,
        n_recomputed_tokens=life.n_recomputed_tokens - life.cached_tokens + before.cached_tokens,
    )


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
    of_it |= {*failing.without_blocks, *failing.leaving}
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
