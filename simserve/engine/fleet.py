"""Fleet: replicas that join and leave, the instants of their lives, and what decides about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from simserve.admission.base import QueueView
from simserve.engine.alarm import Clock
from simserve.engine.host_tier import HostStore
from simserve.engine.lock_step import Hold, Lane, LockStep, Pipeline
from simserve.engine.losses import LostLife, Rescue
from simserve.engine.offered import OfferedRows
from simserve.engine.recorder import Recorder
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.engine.slowness import Window
from simserve.engine.wiring import Wiring
from simserve.tables.why import Reason


@dataclass(eq=False)
class Member:
    """A replica of the fleet, with all its ranks; None for an instant that has not come."""

    setup: ReplicaSetup
    ranks: Sequence[Replica]
    ordered_ps: int
    reasons: list[Reason]
    """Why it joined and left, and what slowed it."""
    called_ps: int | None
    """It is needed from then on; before, it stands by."""
    ready_ps: int | None = None
    """It receives requests from then on."""
    draining_ps: int | None = None
    """It receives none from then on, and finishes those it has."""
    gone_ps: int | None = None
    """It has no GPUs from then on; this may lie ahead, as it keeps them for a time."""
    keeps_until_ps: int = 0
    """It keeps its GPUs until then, even if it drains in less."""
    on_gone: Callable[[int], None] | None = None
    """Called with the instant at which it is gone, once that is known."""

    def note_empty(self, is_empty: Callable[[Replica], bool], now_ps: int) -> None:
        """Note that a rank may have nothing left to do; a draining member is gone once all of them have nothing."""
        if self.gone_ps is None and all(map(is_empty, self.ranks)):
            self.leave(max(now_ps, self.keeps_until_ps))

    def leave(self, at_ps: int) -> None:
        """Note when it is gone."""
        self.gone_ps = at_ps
        if self.on_gone is not None:
            self.on_gone(at_ps)


class Ranks(Protocol):
    """What serves the ranks of members."""

    def order(self, ranks: Sequence[Replica]) -> None:
        """Make room for the ranks of a member."""

    def n_held(self) -> int:
        """Return how many computed prompts wait for a decode replica to be ready."""

    def is_empty(self, rank: Replica) -> bool:
        """Return whether a rank has no requests, and neither its step nor its blocks are in use."""

    def drain(self, rank: Replica, on_empty: Callable[[int], None], now_ps: int) -> None:
        """Call on_empty with instants at which a rank may have nothing left to do."""

    def freeze(self, rank: Replica, now_ps: int) -> None:
        """Let a rank end the step in flight, and begin no other."""

    def slow(self, rank: Replica, window: Window) -> None:
        """Let a rank take longer for the steps that begin in a window, which begins now."""

    def fail(self, rank: Replica, now_ps: int, departs: Callable[[int], bool] | None) -> list[LostLife]:
        """Lose the step in flight of a rank, all its blocks and all its requests, and those on their way to or from it;
        return these without an answer. departs: says of a row whether it goes on elsewhere with its keys and values."""


class Fleet:
    """Replicas that join and leave; a control calls its methods in the FLEET_PHASE of an instant."""

    def __init__(
        self,
        clock: Clock,
        rows: OfferedRows,
        recorder: Recorder,
        wiring: Wiring,
        on_ready: Callable[[], None],
        on_loss: Callable[[LostLife, Reason, Rescue], None],
        departs: Callable[[int, Reason, Rescue], bool],
    ) -> None:
        """on_ready is called when a member is ready, on_loss with each request of a lost one, in the order of sending,
        and departs with each row that may go on elsewhere with its keys and values."""
        self.members: list[Member] = []
        """All members so far, in the order of their orders."""
        self.replicas: list[Replica] = []
        """Their ranks."""
        self.n_held: Callable[[], int] = int
        """Counts the requests that wait at the gateway."""
        self.gated: list[QueueView] | None = None
        """What an admission policy sees, if there is one: the ranks that receive requests."""
        self._clock, self._rows, self._recorder, self.wiring = clock, rows, recorder, wiring
        self.serving: Ranks | None = None
        """What serves the ranks, once the run has begun."""
        self._on_ready, self._on_loss, self._departs = on_ready, on_loss, departs
        self.is_alone = False
        """There is one rank at all times, without host memory, and no request waits for an answer."""
        self._stores: dict[str, HostStore] = {}
        """Host memory that replicas share, by name."""

    def order(self, setup: ReplicaSetup, why: Reason, before: Member | None = None) -> Member:
        """Order a member; it takes GPUs from now on. `setup` has a scheduler of its own. before: one of the same setup
        that was lost there, of which it takes over the host memory."""
        member = Member(setup, self._ranks(setup), self._clock.now_ps, [why], self._clock.now_ps)
        for rank, lost in zip(member.ranks, () if before is None else before.ranks, strict=False):
            if rank.tier is not None and lost.tier is not None:
                rank.tier.memory, lost.tier.memory = lost.tier.memory, rank.tier.memory
        self.members.append(member)
        self.replicas += member.ranks
        if self.serving is not None:
            self.serving.order(member.ranks)
        return member

    def ready(self, member: Member) -> None:
        """Let an ordered member receive requests, those that wait at the gateway first."""
        self.connect(member)
        self._on_ready()

    def connect(self, member: Member) -> None:
        """Show a member to routers and admission."""
        member.ready_ps = self._clock.now_ps
        for replica in member.ranks:
            self.wiring.connect(replica, member.setup)
            if self.gated is not None and replica in self.wiring.entries:
                self.gated.append(replica.load)

    def shift(self, setup: ReplicaSetup, traffic_frac: float | None, stream: str) -> None:
        """Send a share of the requests to the replicas of a new version; None: as many as its router picks."""
        self.wiring.shift(setup, traffic_frac, stream)

    def drain(self, member: Member, why: Reason) -> None:
        """Send a member no more requests; it is gone when those it has, running or waiting, have ended."""
        member.reasons.append(why)
        if member.ready_ps is None:
            member.leave(self._clock.now_ps)
            return
        member.draining_ps = self._clock.now_ps
        self._shut(member)
        assert self.serving is not None, "the run has begun"
        on_empty = partial(member.note_empty, self.serving.is_empty)
        for replica in member.ranks:
            self.serving.drain(replica, on_empty, self._clock.now_ps)

    def freeze(self, member: Member) -> None:
        """Let a member answer no more, while routers still send it requests; it is to be failed once that is known."""
        assert self.serving is not None, "the run has begun"
        for rank in member.ranks:
            self.serving.freeze(rank, self._clock.now_ps)

    def fail(self, member: Member, why: Reason, rescue: Rescue) -> None:
        """Lose a member: its step in flight, its blocks and all its requests, also those on their way to or from it.
        Each request fails for its client unless it is rescued. A member that others fetch keys and values from is gone
        when they have them."""
        now_ps, lost = self._clock.now_ps, list[LostLife]()
        member.reasons.append(why)
        if member.ready_ps is not None and member.draining_ps is None:
            self._shut(member)
        member.gone_ps = now_ps  # before its ranks are empty, which is no end of a drain
        assert self.serving is not None, "the run has begun"
        departs = (lambda row: self._departs(row, why, rescue)) if rescue.with_kv else None
        for rank in member.ranks:
            lost += self.serving.fail(rank, now_ps, departs)
        sent_ps = self._rows.arrival_ps
        for each in sorted(lost, key=lambda each: (sent_ps[each.row], each.row)):
            self._on_loss(each, why, rescue)
        if all(map(self.serving.is_empty, member.ranks)):
            member.leave(now_ps)
        else:
            member.gone_ps = None
            self._on_ready()

    def _shut(self, member: Member) -> None:
        """Hide a member from routers and admission."""
        for replica in member.ranks:
            for view in self.wiring.views_of(member.setup):
                view.remove(replica.id)
            if self.gated is not None and replica.load in self.gated:
                self.gated.remove(replica.load)

    def _ranks(self, setup: ReplicaSetup) -> list[Replica]:
        """Return the ranks of a replica, each with its own copy of a policy that keeps state."""
        setups, store, first = setup.copies(setup.n_ranks), self._store(setup), len(self.replicas)
        self._recorder.add_replicas(len(setups))
        ranks = [
            Replica(first + i, each, self._clock, self._recorder, is_alone=self.is_alone, tier=each.tier(store))
            for i, each in enumerate(setups)
        ]
        if len(ranks) > 1:
            set_stepping(ranks, setup)
        return ranks

    def _store(self, setup: ReplicaSetup) -> HostStore | None:
        """Return the host memory that a replica shares with others; None: it has its own, if any."""
        tier = setup.host_tier
        if tier is None or tier.store is None or not setup.has_tier:
            return None
        return self._stores.setdefault(tier.store, HostStore(tier, self._clock))


def set_stepping(ranks: Sequence[Replica], setup: ReplicaSetup) -> None:
    """Let the ranks of one replica step together: in lockstep, and through the stages of a pipeline.

    ranks: `(n_stages * n_in_step,)`, those of the first lane first. The lanes of a rank share its GPUs.
    """
    pipeline, n_in_step, balance = Pipeline(setup.n_stages), setup.n_in_step, setup.balance
    hold = None if balance is None or n_in_step == 1 else Hold(balance)
    for first in range(0, len(ranks), n_in_step):
        together = ranks[first : first + n_in_step]
        ids = [rank.id for rank in together]
        step = LockStep(setup.cost, pipeline, n_in_step, together[0].slowness)
        lane = Lane(ids, setup.cost, step, setup.n_stages, hold)
        for rank, first_lane in zip(together, ranks, strict=False):
            rank.stepping.lane, rank.stepping.first_lane = lane, first_lane.id
            rank.decode.steps_singly = True
            if rank.tier is not None and first_lane.tier is not None:
                rank.tier.share_links(first_lane.tier)


class Control(Protocol):
    """Decides when members join and leave."""

    shifts: bool  # shares of the requests go to new versions

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        """Set alarms for its decisions, of FLEET_PHASE; called once, before the first event."""

    def goes_on(self) -> bool:
        """Return whether its alarms matter when nothing else happens any more."""
