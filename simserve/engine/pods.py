"""Pods: the replicas of a pool as what keeps it sees them, and the site that all pools share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.fleet import Fleet, Member
from simserve.engine.losses import ALL_LOST, Rescue
from simserve.engine.placement import Gpus, Placement
from simserve.engine.replica import Replica
from simserve.engine.replica_setup import ReplicaSetup
from simserve.scenario.fleet import Shutdown, Spares, Startup
from simserve.state.pool_view import MemberPhase, ReplicaFacts, Signals

SpareKind = Literal["warm", "cold", "sleeping"]


@dataclass(frozen=True)
class PoolPlan:
    """A pool, and how its replicas come and go."""

    name: str
    setup: ReplicaSetup
    """Setup of each of the members that are a replica; its policy has no state yet."""
    n_members: int
    """Members of a replica: several where its ranks share nothing."""
    n_gpus: int
    """GPUs of a replica."""
    weights_bytes: float
    """Bytes of weights on all GPUs of a replica."""
    startup: Startup
    shutdown: Shutdown
    spares: Spares

    @property
    def facts(self) -> ReplicaFacts:
        """What autoscalers know of each replica."""
        setup, n_ranks = self.setup, self.setup.n_ranks * self.n_members
        kv_tokens = setup.layers.tokens_in(setup.n_blocks) * n_ranks
        return ReplicaFacts(setup.role, self.n_gpus, n_ranks, setup.max_model_len, kv_tokens)


@dataclass(eq=False)
class Pod:
    """A replica as its deployment keeps it."""

    plan: PoolPlan
    """Its version."""
    members: Sequence[Member]
    taken: Gpus
    """GPUs that it takes of each node."""
    phase: MemberPhase = "pending"
    ready_ps: int = 0
    is_leaving: bool = False
    """It was told to leave, or was lost."""
    kind: SpareKind | None = None
    """How it stands by, or stood by, or will."""
    is_frozen: bool = False
    """It has failed, which is not known yet."""
    signals: Signals = field(default_factory=Signals)

    @cached_property
    def ranks(self) -> Sequence[Replica]:
        """The ranks of all members."""
        return [rank for member in self.members for rank in member.ranks]

    @cached_property
    def id(self) -> int:
        """The number of its first rank."""
        return self.ranks[0].id

    @property
    def n_outstanding(self) -> int:
        """Requests that it has."""
        return sum(rank.load.n_outstanding for rank in self.ranks)


def let_go(n: int, among: Sequence[Pod]) -> list[Pod]:
    """Return the n replicas to let go, as Kubernetes does: first those that do not serve, the last ordered one before
    others; then those that have served for the shortest time."""
    order = sorted(enumerate(among), key=lambda each: (each[1].phase == "ready", -each[1].ready_ps, -each[0]))
    return [pod for _, pod in order[: max(0, n)]]


@dataclass
class Site:
    """What all deployments share."""

    fleet: Fleet
    clock: Clock
    placement: Placement
    seed: int
    free_gpus: int | None
    """GPUs of the budget that no replica has; None: there is no budget."""
    rescue: Rescue = ALL_LOST
    on_free: list[Callable[[], None]] = field(default_factory=list)
    """Called once GPUs are free."""
    held: Gpus = field(default_factory=dict)
    """GPUs of the budget on each node that is being repaired; those of its replicas come to them."""

    def take(self, n_gpus: int) -> bool:
        """Take GPUs of the budget, if it has as many."""
        if self.free_gpus is None:
            return True
        if self.free_gpus < n_gpus:
            return False
        self.free_gpus -= n_gpus
        return True

    def take_again(self, taken: Gpus) -> bool:
        """Take GPUs where a replica had them, if they are free."""
        is_free = all(self.placement.free.get(node, 0) >= n for node, n in taken.items())
        if not is_free or not self.take(sum(taken.values())):
            return False
        self.placement.leave({node: -n for node, n in taken.items()})
        return True

    def give(self, taken: Gpus) -> None:
        """Free GPUs, for those that wait for some."""
        self.placement.leave(taken)
        for node, n in taken.items():
            if node in self.held:
                self.held[node] += n
            elif self.free_gpus is not None:
                self.free_gpus += n
        for act in self.on_free:
            act()

    def hold(self, lost: Gpus) -> None:
        """Take the free GPUs of lost nodes out of the budget."""
        for node, n in lost.items():
            idle = min(n, self.free_gpus or 0)
            self.held[node] = self.held.get(node, 0) + idle
            self.take(idle)

    def release(self, lost: Gpus) -> None:
        """Return the GPUs of nodes that are repaired, which come back under other numbers."""
        self.give({node: self.held.pop(node) for node in lost if node in self.held})

    def at(self, at_ps: int, action: Callable[[], None]) -> None:
        """Do something at an instant."""

        def act(now_ps: int) -> None:
            action()

        Alarm(self.clock, act, FLEET_PHASE).set(at_ps)
