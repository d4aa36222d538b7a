"""Deployment: keeps a pool at a number of replicas, which start, serve, drain and are replaced."""

from collections.abc import Callable, Sequence

from simserve.engine.fleet import Member
from simserve.engine.placement import Gpus
from simserve.engine.pods import Pod, PoolPlan, Site, SpareKind, let_go
from simserve.engine.starting import Starts
from simserve.state.pool_view import MemberPhase, MemberView, PoolView, Signals
from simserve.tables.why import Reason, Why
from simserve.units import to_ps, to_s


class Deployment:
    """Keeps a pool at the number of replicas that are wanted."""

    def __init__(self, plan: PoolPlan, site: Site, starts: Starts, members: Sequence[Member]) -> None:
        """members: those that serve from the start."""
        self.plan, self.name, self._site, self._starts, self._facts = plan, plan.name, site, starts, plan.facts
        self.pods: list[Pod] = []
        """Replicas that have not been told to leave, in the order of joining, ..."""
        self.leaving: list[Pod] = []
        """... those that have, and still have GPUs, and ..."""
        self.spares: list[Pod] = []
        """... those that stand by: warm ones load or are ready, and cold ones are pending until a machine is there."""
        self.on_ready: Callable[[Pod], None] = lambda pod: None
        """Called with each replica that begins to serve."""
        site.on_free.append(self.bring)
        for first in range(0, len(members), plan.n_members):
            self.pods.append(self._pod(members[first : first + plan.n_members], "ready", plan))
        self.wanted = len(self.pods)
        """Replicas that the pool shall have."""
        self.n_missed = 0
        """Replicas that have failed and are never replaced."""
        self._homes: list[Gpus] = []
        """GPUs that replicas had which sleep without them."""
        self.why = Reason(Why.SCALED)
        """Why the number of replicas changes."""
        self.roll: Callable[[], None] | None = None
        """Brings the replicas of another version, and lets the others go; None: there is one version."""

    def view(self, now_ps: int, delay_s: float, gateway: Signals) -> PoolView:
        """Return the pool as its autoscaler sees it."""
        gateway.until_s = to_s(now_ps) - delay_s
        for pod in self.pods:
            pod.signals.until_s = gateway.until_s
        there = [MemberView(pod.id, pod.phase, pod.signals) for pod in self.pods]
        waiting = [MemberView(-1, "pending", Signals())] * max(0, self.wanted - self.n_missed - len(there))
        return PoolView(to_s(now_ps), self.wanted, [*there, *waiting], gateway, self._facts)

    @property
    def there(self) -> list[Pod]:
        """All replicas that have GPUs."""
        return [*self.pods, *self.leaving, *self.spares]

    def stock(self) -> None:
        """Order the spares that are missing, as far as there are GPUs; those at the start of a run are ready."""
        kinds: Sequence[tuple[SpareKind, int]] = (("warm", self.plan.spares.warm), ("cold", self.plan.spares.cold))
        for kind, n in kinds:
            for _ in range(n - sum(spare.kind == kind for spare in self.spares)):
                if self._site.take(self.plan.n_gpus):
                    self._stand_by(kind)

    def bring(self) -> None:
        """Order replicas, or let some go, until there are as many as wanted, as far as there are GPUs."""
        if self.roll is not None:
            self.roll()
            return
        while self.n_missed + len(self.pods) < self.wanted:
            if sleeper := self._sleeper():
                self._call(sleeper, self.why)
            elif self._site.take(self.plan.n_gpus):
                self.order(self.why, self.plan)
            else:
                break
        for pod in let_go(len(self.pods) + self.n_missed - self.wanted, self.pods):
            pod.kind = "sleeping" if pod.phase == "ready" else None
            self.stop(pod, self.why)

    def _sleeper(self) -> Pod | None:
        """Return a replica that sleeps, if there is one; one without GPUs needs those that it had."""
        taken = next((each for each in self._homes if self._site.take_again(each)), None)
        if taken is not None:
            self._homes.remove(taken)
            self._stand_by("sleeping", taken)
        return next((each for each in self.spares if each.kind == "sleeping" and not each.is_frozen), None)

    def adopt(self, plan: PoolPlan, why: Reason) -> None:
        """End a roll-out: all replicas are of the new version, and spares follow."""
        self.plan, self.roll, self._homes = plan, None, []
        for spare in [*self.spares]:
            self.stop(spare, why)
        self.stock()

    def freeze(self, pod: Pod) -> None:
        """Let a replica answer no more; routers send it requests, and monitoring has no samples of it, until that is
        known."""
        pod.is_frozen = True
        self._starts.cancel(pod)
        for member in pod.members:
            self._site.fleet.freeze(member)

    def fail(self, pod: Pod, what: str, *, in_place: bool, returns: bool) -> None:
        """Lose a replica with what failed, as is known now. in_place: it starts again where it was. returns: it is
        replaced."""
        if pod in self.leaving:
            self.cut(pod, Reason(Why.FAILED, what))
        elif pod in self.spares or pod in self.pods:
            serves = pod in self.pods
            (self.pods if serves else self.spares).remove(pod)
            pod.is_leaving = True
            self._starts.cancel(pod)
            for member in pod.members:
                member.on_gone = None
                self._site.fleet.fail(member, Reason(Why.FAILED, what), self._site.rescue.dead)
            is_covered = returns and serves and self._take_over(what, only_warm=in_place)
            if returns and serves and in_place:
                if is_covered:
                    self._stand_by("warm", pod.taken, pod)
                else:
                    self.order(Reason(Why.RESTARTED, what), pod.plan, pod)
                return
            self.n_missed += serves and not returns
            if returns:
                self.why = Reason(Why.REPLACES, f"{what} failure")
            self._site.give(pod.taken)
            if returns:
                self.stock()

    def _take_over(self, what: str, *, only_warm: bool) -> bool:
        """Let a spare take the place of a failed replica, one that is loaded before others; return whether there is
        one. only_warm: a cold one would take as long as a restart."""
        known = [each for each in self.spares if each.kind != "sleeping" and not each.is_frozen]
        ready = [each for each in known if each.kind == "warm" or not (only_warm or each.phase == "pending")]
        spare = min(ready, key=lambda each: (each.kind != "warm", each.phase != "ready"), default=None)
        if spare is not None:
            self._call(spare, Reason(Why.TAKES_OVER, what))
        return spare is not None

    def _call(self, spare: Pod, why: Reason) -> None:
        """Let a spare serve, or a replica that sleeps."""
        self.spares.remove(spare)
        self.pods.append(spare)
        now_ps = self._site.clock.now_ps
        for member in spare.members:
            member.reasons.append(why)
            member.called_ps = now_ps
        if spare.kind == "sleeping":
            spare.phase = "loading"
            self._site.at(now_ps + to_ps(spare.plan.spares.wake_s), lambda: self._serve(spare))
        elif spare.kind == "cold":
            spare.phase = "pending"
            self._starts.begin(spare, self._serve, in_place=True)
        elif spare.phase == "ready":
            self._serve(spare)

    def _stand_by(self, kind: SpareKind, taken: Gpus | None = None, before: Pod | None = None) -> None:
        """Order a spare, on GPUs that another replica has left to it or on others."""
        spare = self._ordered(Reason(Why.SPARE, kind), self.plan, taken, before)
        spare.kind = kind
        self.spares.append(spare)
        for member in spare.members:
            member.called_ps = None
        if self._site.clock.now_ps and kind != "sleeping":
            self._starts.begin(spare, self._serve, in_place=taken is not None, loads=kind == "warm")
        else:
            spare.phase = "ready"

    def order(self, why: Reason, plan: PoolPlan, before: Pod | None = None) -> None:
        """Order a replica, where one was before or elsewhere."""
        pod = self._ordered(why, plan, None if before is None else before.taken, before)
        self.pods.append(pod)
        self._starts.begin(pod, self._serve, in_place=before is not None)

    def _ordered(self, why: Reason, plan: PoolPlan, taken: Gpus | None, before: Pod | None) -> Pod:
        """Order the members of a replica. before: it failed there, and its host memory may be left."""
        setups, fleet = plan.setup.copies(plan.n_members), self._site.fleet
        keeps = before is not None and self._site.rescue.keeps_host and before.plan is plan
        heirs: Sequence[Member | None] = before.members if before is not None and keeps else [None] * len(setups)
        members = [fleet.order(setup, why, member) for setup, member in zip(setups, heirs, strict=True)]
        return self._pod(members, "pending", plan, taken)

    def _pod(self, members: Sequence[Member], phase: MemberPhase, plan: PoolPlan, taken: Gpus | None = None) -> Pod:
        taken = self._site.placement.place(plan.n_gpus) if taken is None else taken
        pod = Pod(plan, members, taken, phase)
        for member in members:
            member.on_gone = lambda at_ps: self._note_gone(pod, at_ps)
        return pod

    def _serve(self, pod: Pod) -> None:
        """Let a replica receive requests."""
        if pod.is_leaving or pod.is_frozen:
            return
        pod.phase, pod.ready_ps = "ready", self._site.clock.now_ps
        if pod in self.spares:
            return
        for member in pod.members:
            self._site.fleet.ready(member)
        self.on_ready(pod)
        if self.roll is not None:
            self.roll()

    def stop(self, pod: Pod, why: Reason) -> None:
        """Let a replica finish what it has, within its grace, or cut it at once."""
        (self.pods if pod in self.pods else self.spares).remove(pod)
        self.leaving.append(pod)
        self._starts.cancel(pod)
        pod.is_leaving, shutdown, fleet = True, pod.plan.shutdown, self._site.fleet
        now_ps, grace_s, timeout_s = self._site.clock.now_ps, shutdown.grace_s, shutdown.timeout_s
        limits = [] if grace_s is None else [(grace_s, Why.GRACE)]
        limits += [] if timeout_s is None else [(shutdown.pre_stop_s + timeout_s, Why.TIMEOUT)]
        if shutdown.drain and limits and pod.phase == "ready":
            limit_s, why_cut = min(limits)
            self._site.at(now_ps + to_ps(limit_s), lambda: self.cut(pod, Reason(why_cut), lives=True))
        if self._site.rescue.with_kv and shutdown.kills_at_s is not None:
            self._site.at(now_ps + to_ps(shutdown.kills_at_s), lambda: self.cut(pod, Reason(Why.GRACE)))
        for member in pod.members:
            if pod.phase == "ready":
                member.keeps_until_ps = now_ps + to_ps(shutdown.pre_stop_s)
            fleet.drain(member, why)
        if not shutdown.drain:
            self.cut(pod, Reason(Why.NO_DRAIN), lives=True)

    def cut(self, pod: Pod, why: Reason, *, lives: bool = False) -> None:
        """End what a replica that leaves has not finished. lives: keys and values may be fetched from it afterward."""
        rescue = self._site.rescue if lives and not pod.is_frozen else self._site.rescue.dead
        for member in pod.members:
            if member.gone_ps is None:
                self._site.fleet.fail(member, why, rescue)

    def _note_gone(self, pod: Pod, at_ps: int) -> None:
        """Free the GPUs of a replica once all its members are gone."""
        gone_ps = [member.gone_ps for member in pod.members]
        if all(each is not None for each in gone_ps):
            self._site.at(max(at_ps, *filter(None, gone_ps), self._site.clock.now_ps), lambda: self._free(pod))

    def _free(self, pod: Pod) -> None:
        """Free the GPUs of a replica, or let it sleep, unless it or its node has failed or its version is old."""
        self.leaving.remove(pod)
        spares, has = self.plan.spares, self._site.placement.has
        n_asleep = sum(map(has, self._homes)) + sum(each.kind == "sleeping" for each in self.spares)
        is_fit = pod.plan is self.plan and has(pod.taken) and not pod.is_frozen
        sleeps = is_fit and pod.kind == "sleeping" and n_asleep < spares.sleeping
        if sleeps and spares.holds_gpus:
            self._stand_by("sleeping", pod.taken)
            self.bring()
            return
        self._homes += [pod.taken] * sleeps
        self._site.give(pod.taken)
