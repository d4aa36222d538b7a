"""RollOut: replaces the replicas of a pool by those of another version, as a Deployment of Kubernetes does."""

from dataclasses import dataclass

from simserve.engine.deployment import Deployment
from simserve.engine.pods import Pod, PoolPlan, Site, let_go
from simserve.scenario.rollout import RolloutSection
from simserve.tables.why import Reason, Why
from simserve.units import to_ps

ROLLED_OUT = Reason(Why.ROLLED_OUT)


@dataclass
class RollOut:
    """A rolling update of a pool; with a canary, some replicas first."""

    section: RolloutSection
    plan: PoolPlan
    """The new version."""
    pool: int

    @property
    def shifts(self) -> bool:
        """The canary has a share of the requests."""
        return any(step.traffic_frac is not None for step in self.section.steps)

    def begin(self, site: Site, deployment: Deployment) -> None:
        """Wait for its beginning."""
        self._site, self._deployment, self._steps = site, deployment, [*self.section.steps]
        self._waits = False
        """The canary serves, and the rest follows later."""

        def start() -> None:
            deployment.roll = self._step
            self._shift(0.0)
            self._step()

        site.at(to_ps(self.section.at_s), start)

    def _step(self) -> None:
        """Order and stop what the limits allow; called whenever a replica is ready or gone, or another number of them
        is wanted."""
        pool, wanted = self._deployment, self._deployment.wanted - self._deployment.n_missed
        canary = self._steps[0] if self._steps else None
        n_new, n_old, most = wanted, 0, wanted + self.section.max_surge
        if canary is not None:
            n_new = canary.n_of(wanted)
            n_old = wanted - n_new if canary.traffic_frac is None else wanted
            most = max(most, n_old + n_new)
        self._order(self.plan, n_new, most)
        self._order(pool.plan, n_old, most)
        new, old = self._versions()
        n_ready = sum(pod.phase == "ready" for pod in new)
        for pod in let_go(len(new) - n_new, new):
            pool.stop(pod, ROLLED_OUT)
        n_least = wanted - self.section.max_unavailable
        n_spare = len(pool.pods) - n_least - (len(new) - n_ready)
        for pod in let_go(min(len(old) - n_old, n_spare), old):
            if pod.phase != "ready" or sum(each.phase == "ready" for each in pool.pods) > n_least:
                pool.stop(pod, ROLLED_OUT)
        new, old = self._versions()
        if canary is not None and n_ready >= n_new and not self._waits:
            self._waits = True
            self._shift(canary.traffic_frac)
            self._site.at(self._site.clock.now_ps + to_ps(canary.for_s), self._go_on)
        elif canary is None and not old and len(new) >= wanted:
            pool.adopt(self.plan, ROLLED_OUT)

    def _versions(self) -> tuple[list[Pod], list[Pod]]:
        """Return the replicas of the new version, and of the old one."""
        pods = self._deployment.pods
        return [pod for pod in pods if pod.plan is self.plan], [pod for pod in pods if pod.plan is not self.plan]

    def _order(self, plan: PoolPlan, n_goal: int, most: int) -> None:
        """Order replicas of a version up to their goal, as far as the most of both and GPUs allow."""
        pool, why = self._deployment, ROLLED_OUT if plan is self.plan else self._deployment.why
        n_there = len(self._versions()[0 if plan is self.plan else 1])
        while n_there < n_goal and len(pool.pods) < most and self._site.take(plan.n_gpus):
            pool.order(why, plan)
            n_there += 1

    def _go_on(self) -> None:
        """Let the next step follow, or the rest."""
        del self._steps[0]
        self._waits = False
        if not self._steps:
            self._shift(None)
        self._step()

    def _shift(self, traffic_frac: float | None) -> None:
        """Send the canary a share of the requests; None: as many as routers pick."""
        if self.shifts:
            self._site.fleet.shift(self.plan.setup, traffic_frac, f"canary/{self._site.seed}")
