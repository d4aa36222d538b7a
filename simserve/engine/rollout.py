"""RollOut: replaces the replicas of a pool by those of another version, as a Deployment of Kubernetes does."""

from dataclasses import dataclass

from simserve.engine.deployment import Deployment
from simserve.engine.pods import Pod, PoolPlan, Site, let_go
from simserve.scenario.rollout import RolloutSection
from simserve.tables.facts import ROLLED_OUT
from simserve.units import to_ps


@dataclass
class RollOut:
    """A rolling update of a pool; with a canary, some replicas first."""

    section: RolloutSection
    plan: PoolPlan
    """The new version."""
    pool: int

    def begin(self, site: Site, deployment: Deployment) -> None:
        """Wait for its beginning."""
        self._site, self._deployment, self._canary = site, deployment, self.section.canary
        self._waits = False
        """The canary serves, and the rest follows later."""

        def start() -> None:
            deployment.roll = self._step
            self._step()

        site.at(to_ps(self.section.at_s), start)

    def _step(self) -> None:
        """Order and stop what the limits allow; called whenever a replica is ready or gone, or another number of them
        is wanted."""
        pool, wanted = self._deployment, self._deployment.wanted - self._deployment.n_missed
        n_new = wanted if self._canary is None else min(wanted, max(1, round(self._canary.share * wanted)))
        self._order(self.plan, n_new, wanted)
        self._order(pool.plan, wanted - n_new, wanted)
        new, old = self._versions()
        n_ready = sum(pod.phase == "ready" for pod in new)
        for pod in let_go(len(new) - n_new, new):
            pool.stop(pod, ROLLED_OUT)
        n_least = wanted - self.section.max_unavailable
        n_spare = len(pool.pods) - n_least - (len(new) - n_ready)
        for pod in let_go(min(len(old) - (wanted - n_new), n_spare), old):
            if pod.phase != "ready" or sum(each.phase == "ready" for each in pool.pods) > n_least:
                pool.stop(pod, ROLLED_OUT)
        new, old = self._versions()
        if self._canary is not None and n_ready >= n_new and not self._waits:
            self._waits = True
            self._site.at(self._site.clock.now_ps + to_ps(self._canary.for_s), self._go_on)
        elif self._canary is None and not old and len(new) >= wanted:
            pool.adopt(self.plan, ROLLED_OUT)

    def _versions(self) -> tuple[list[Pod], list[Pod]]:
        """Return the replicas of the new version, and of the old one."""
        pods = self._deployment.pods
        return [pod for pod in pods if pod.plan is self.plan], [pod for pod in pods if pod.plan is not self.plan]

    def _order(self, plan: PoolPlan, n_goal: int, wanted: int) -> None:
        """Order replicas of a version up to their goal, as far as the surge and GPUs allow."""
        pool, why = self._deployment, ROLLED_OUT if plan is self.plan else self._deployment.why
        n_there = len(self._versions()[0 if plan is self.plan else 1])
        while n_there < n_goal and len(pool.pods) < wanted + self.section.max_surge and self._site.take(plan.n_gpus):
            pool.order(why, plan)
            n_there += 1

    def _go_on(self) -> None:
        """Let the rest follow the canary."""
        self._canary = None
        self._step()
