"""Deployment: keeps a pool at a number of replicas, which start, serve, drain and are replaced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.fleet import Fleet, Member
from simserve.engine.placement import Placement
from simserve.engine.replica_setup import ReplicaSetup
from simserve.scenario.fleet import Shutdown, Startup
from simserve.state.pool_view import MemberPhase, MemberView, PoolView, ReplicaFacts, Signals
from simserve.units import to_ps, to_s


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

    @property
    def facts(self) -> ReplicaFacts:
        """What autoscalers know of each replica."""
        setup, n_ranks = self.setup, self.setup.n_ranks * self.n_members
        kv_tokens = setup.layers.tokens_in(setup.n_blocks) * n_ranks
        return ReplicaFacts(setup.role, self.n_gpus, n_ranks, setup.max_model_len, kv_tokens)


@dataclass(eq=False)
class Pod:
    """A replica as its deployment keeps it."""

    members: Sequence[Member]
    taken: dict[int, int]
    """GPUs that it takes of each node."""
    phase: MemberPhase = "pending"
    ready_ps: int = 0
    is_leaving: bool = False
    """It was told to leave, or was lost."""
    signals: Signals = field(default_factory=Signals)

    @property
    def id(self) -> int:
        """The number of its first rank."""
        return self.members[0].ranks[0].id


@dataclass
class Site:
    """What all deployments share."""

    fleet: Fleet
    clock: Clock
    placement: Placement
    seed: int
    free_gpus: int | None
    """GPUs of the budget that no replica has; None: there is no budget."""
    resends: bool = False
    """The gateway sends once more what was lost before its first token."""
    on_ready: Callable[[Pod, "Deployment"], None] = lambda pod, deployment: None
    """Called with each replica that begins to serve."""
    deployments: "list[Deployment]" = field(default_factory=list)

    def take(self, n_gpus: int) -> bool:
        """Take GPUs of the budget, if it has as many."""
        if self.free_gpus is None:
            return True
        if self.free_gpus < n_gpus:
            return False
        self.free_gpus -= n_gpus
        return True

    def give(self, n_gpus: int, taken: dict[int, int]) -> None:
        """Free the GPUs of a replica, for those that wait for some."""
        self.placement.leave(taken)
        if self.free_gpus is not None:
            self.free_gpus += n_gpus
        for deployment in self.deployments:
            deployment.bring()

    def at(self, at_ps: int, action: Callable[[], None]) -> None:
        """Do something at an instant."""

        def act(now_ps: int) -> None:
            action()

        Alarm(self.clock, act, FLEET_PHASE).set(at_ps)


class Deployment:
    """Keeps a pool at the number of replicas that are wanted."""

    def __init__(self, plan: PoolPlan, site: Site, members: Sequence[Member]) -> None:
        """members: those that serve from the start."""
        self.plan, self._site, self._facts = plan, site, plan.facts
        self.pods: list[Pod] = []
        """Replicas that have not been told to leave, in the order of joining, and ..."""
        self.leaving: list[Pod] = []
        """... those that have, and still have GPUs."""
        site.deployments.append(self)
        for first in range(0, len(members), plan.n_members):
            self._add(members[first : first + plan.n_members], "ready")
        self.wanted = len(self.pods)
        """Replicas that the pool shall have."""
        self._n_missed = 0
        """Replicas that have failed and are not replaced: not before that is known, or never."""
        self._why = ""
        self._n_starts = 0

    def view(self, now_ps: int, delay_s: float, gateway: Signals) -> PoolView:
        """Return the pool as its autoscaler sees it."""
        gateway.until_s = to_s(now_ps) - delay_s
        for pod in self.pods:
            pod.signals.until_s = gateway.until_s
        there = [MemberView(pod.id, pod.phase, pod.signals) for pod in self.pods]
        waiting = [MemberView(-1, "pending", Signals())] * max(0, self.wanted - self._n_missed - len(there))
        return PoolView(to_s(now_ps), self.wanted, [*there, *waiting], gateway, self._facts)

    def scale(self, wanted: int, why: str) -> None:
        """Have another number of replicas from now on."""
        self.wanted, self._why = wanted, why
        self.bring()

    def bring(self) -> None:
        """Order replicas, or let some go, until there are as many as wanted, as far as there are GPUs."""
        while self._n_missed + len(self.pods) < self.wanted and self._site.take(self.plan.n_gpus):
            self._order(self._why)
        for pod in self._last(len(self.pods) + self._n_missed - self.wanted):
            self._stop(pod, self._why)

    def fail(self, pod: Pod, what: str, detect_s: float, *, in_place: bool, returns: bool) -> None:
        """Lose a replica with what failed. in_place: it starts again where it was. returns: it is replaced, once that
        is known."""
        self.pods.remove(pod)
        pod.is_leaving, self._n_missed = True, self._n_missed + 1
        for member in pod.members:
            member.on_gone = None
            self._site.fleet.fail(member, f"a {what} failed", resends=self._site.resends)
        if returns and in_place:
            self._n_missed -= 1
            self._order(f"restarted after a {what} failure", pod.taken, detect_s)
            return
        self._site.give(self.plan.n_gpus, pod.taken)
        if returns:
            self._site.at(self._site.clock.now_ps + to_ps(detect_s), lambda: self._replace(what))

    def lose_leaving(self, nodes: set[int], what: str) -> None:
        """Lose the replicas that leave and are on these nodes."""
        for pod in [each for each in self.leaving if nodes & each.taken.keys()]:
            self._cut(pod, f"a {what} failed")

    def _replace(self, what: str) -> None:
        """Order what replaces a replica that has failed."""
        self._n_missed -= 1
        self._why = f"replaces one after a {what} failure"
        self.bring()

    def _order(self, why: str, taken: dict[int, int] | None = None, detect_s: float = 0.0) -> None:
        """Order a replica, on GPUs that it has already or on others."""
        setups = self.plan.setup.copies(self.plan.n_members)
        pod = self._add([self._site.fleet.order(setup, why) for setup in setups], "pending", taken)
        stream = f"startup/{self.plan.name}/{self._n_starts}"
        self._n_starts += 1
        rng = np.random.default_rng([self._site.seed, crc32(stream.encode())])
        pending_s, loading_s = self.plan.startup.draw(rng, self.plan.weights_bytes, in_place=taken is not None)
        runs_ps = self._site.clock.now_ps + to_ps(detect_s + pending_s)
        self._site.at(runs_ps, lambda: self._run(pod))
        self._site.at(runs_ps + to_ps(loading_s), lambda: self._serve(pod))

    def _add(self, members: Sequence[Member], phase: MemberPhase, taken: dict[int, int] | None = None) -> Pod:
        n_gpus = self.plan.n_gpus
        pod = Pod(members, self._site.placement.place(n_gpus) if taken is None else taken, phase)
        self.pods.append(pod)
        for member in members:
            member.on_gone = lambda at_ps: self._note_gone(pod, at_ps)
        return pod

    def _run(self, pod: Pod) -> None:
        """Note that the containers of a replica run."""
        if not pod.is_leaving:
            pod.phase = "loading"

    def _serve(self, pod: Pod) -> None:
        """Let a replica receive requests."""
        if pod.is_leaving:
            return
        pod.phase, pod.ready_ps = "ready", self._site.clock.now_ps
        for member in pod.members:
            self._site.fleet.ready(member)
        self._site.on_ready(pod, self)

    def _last(self, n: int) -> list[Pod]:
        """Return the n replicas to let go, as Kubernetes does: first those that do not serve, the last ordered one
        before others; then those that have served for the shortest time."""
        if n <= 0:
            return []
        order = sorted(enumerate(self.pods), key=lambda each: (each[1].phase == "ready", -each[1].ready_ps, -each[0]))
        return [pod for _, pod in order[:n]]

    def _stop(self, pod: Pod, why: str) -> None:
        """Let a replica finish what it has, within its grace, or cut it at once."""
        self.pods.remove(pod)
        self.leaving.append(pod)
        pod.is_leaving, shutdown, fleet = True, self.plan.shutdown, self._site.fleet
        now_ps = self._site.clock.now_ps
        if shutdown.drain and shutdown.grace_s is not None and pod.phase == "ready":
            self._site.at(now_ps + to_ps(shutdown.grace_s), lambda: self._cut(pod, "its grace ended"))
        for member in pod.members:
            if pod.phase == "ready":
                member.keeps_until_ps = now_ps + to_ps(shutdown.pre_stop_s)
            fleet.drain(member, why)
        if not shutdown.drain:
            self._cut(pod, "it does not drain")

    def _cut(self, pod: Pod, why: str) -> None:
        """End what a replica that leaves has not finished."""
        for member in pod.members:
            if member.gone_ps is None:
                self._site.fleet.fail(member, why, resends=self._site.resends)

    def _note_gone(self, pod: Pod, at_ps: int) -> None:
        """Free the GPUs of a replica once all its members are gone."""
        gone_ps = [member.gone_ps for member in pod.members]
        if all(each is not None for each in gone_ps):
            self._site.at(max(at_ps, *filter(None, gone_ps), self._site.clock.now_ps), lambda: self._free(pod))

    def _free(self, pod: Pod) -> None:
        self.leaving.remove(pod)
        self._site.give(self.plan.n_gpus, pod.taken)
