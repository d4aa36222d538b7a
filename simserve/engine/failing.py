"""Failing: replicas that fail or are slow, and links that carry less, at given instants or at a rate."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from simserve.engine.deployment import Deployment
from simserve.engine.placement import Gpus
from simserve.engine.pods import Pod, Site
from simserve.engine.rollout import RollOut
from simserve.engine.slowness import Window
from simserve.integers import NEVER
from simserve.scenario.fleet import AnyFailure, Event, Failure, Passing
from simserve.tables.why import Reason, Why
from simserve.units import LONGEST_S, to_ps, to_s


class Failing:
    """Lets replicas fail. A unit's life is exponential: each is drawn once, when the first replica on it serves."""

    def __init__(
        self, failures: Sequence[AnyFailure], site: Site, deployments: Sequence[Deployment], rollout: RollOut | None
    ) -> None:
        self._failures, self._site, self._deployments = failures, site, deployments
        self._drawn: set[tuple[int, str]] = set()
        """Numbers of failures, and units of which the lives are drawn."""
        self._emptied: list[tuple[Failure, Gpus]] = []
        """Nodes that replicas are to leave."""
        site.on_free.append(self._evict)
        for index, failure in enumerate(failures):
            if failure.what == "link":
                assert site.fleet.wiring.handoff is not None, "replicas hand over"
                ours = self._of(failure)
                also = [rollout.plan] if rollout is not None and deployments[rollout.pool] in ours else []
                for pool in {plan.setup.pool for plan in (*(each.plan for each in ours), *also)}:
                    site.fleet.wiring.handoff.weaken(pool, self._windows(failure, index))
            if failure.what == "link" or (failure.what == "slow" and failure.at_s is not None):
                self._let_pass(failure, self._windows(failure, index))
            elif failure.what != "slow" and failure.at_s is not None:
                site.at(to_ps(failure.at_s), partial(self._strike, failure, None, None))

    def watch(self, pod: Pod, deployment: Deployment) -> None:
        """Draw when a replica that begins to serve fails, or the nodes and racks it is on."""
        self._evict()
        for index, failure in enumerate(self._failures):
            if failure.mtbf_s is None or failure.what == "link" or deployment not in self._of(failure):
                continue
            if failure.what == "slow":
                windows = self._windows(failure, index, self._site.clock.now_ps, f"replica {pod.id}")
                self._let_pass(failure, windows, pod)
                continue
            for unit, place, n in self._units(failure, pod, deployment):
                if (index, unit) not in self._drawn:
                    self._drawn.add((index, unit))
                    life_s = Random(f"failures/{self._site.seed}/{index}/{unit}").expovariate(n / failure.mtbf_s)
                    if life_s < LONGEST_S:
                        at_ps = self._site.clock.now_ps + to_ps(life_s)
                        self._site.at(at_ps, partial(self._strike, failure, pod, place))

    def _units(self, failure: Failure, pod: Pod, deployment: Deployment) -> Iterator[tuple[str, int, int]]:
        """Yield the name of each unit of a replica, a node of it, and for how many units it stands."""
        match failure.what:
            case "node" | "drain" | "spot":
                yield from ((f"node {node}", node, 1) for node in pod.taken)
            case "rack":
                racks = {self._site.placement.rack_of(node): node for node in pod.taken}
                yield from ((f"rack {rack}", node, 1) for rack, node in racks.items())
            case "gpu":
                yield f"replica {pod.id}", min(pod.taken), pod.plan.n_gpus
            case _:
                yield f"replica {pod.id}", min(pod.taken), 1

    def _windows(self, failure: Passing, index: int, since_ps: int = 0, unit: str = "") -> Iterator[Window]:
        """Yield the windows of a failure that passes: the only one, or since then each a life after the one before."""
        lasts_ps = NEVER if failure.for_s is None else to_ps(failure.for_s)
        lives = Random(f"failures/{self._site.seed}/{index}/{unit}")
        while since_ps < to_ps(LONGEST_S):
            life_s = lives.expovariate(1 / failure.mtbf_s) if failure.mtbf_s else failure.at_s or 0.0
            start_ps = since_ps + to_ps(min(life_s, LONGEST_S))
            yield start_ps, min(start_ps + lasts_ps, NEVER), failure.speed_frac
            since_ps = start_ps + lasts_ps if failure.mtbf_s else NEVER

    def _let_pass(self, failure: Passing, windows: Iterator[Window], pod: Pod | None = None) -> None:
        """Let a replica, or the one that is chosen then, or a link have a part of its speed in each window."""
        window = next(windows, None)
        if window is None:
            return
        start_ps, end_ps, speed_frac = window
        span_s = to_s(start_ps), None if end_ps == NEVER else to_s(end_ps)
        kind = Why.LINK if failure.what == "link" else Why.SLOW
        reason = Reason(kind, failure.pool or "", span_s, speed_frac)

        def act() -> None:
            serving = self._site.fleet.serving
            assert serving is not None, "the run has begun"
            there = [each for pool in self._of(failure) for each in pool.there]
            for each in there if kind == Why.LINK else [pod or self._chosen(failure)]:
                if each is not None and not each.is_frozen and each.members[0].gone_ps is None:
                    for member in each.members:
                        for rank in member.ranks if kind == Why.SLOW else ():
                            serving.slow(rank, window)
                        member.reasons.append(reason)
            if pod is None or pod.members[0].gone_ps is None:
                self._let_pass(failure, windows, pod)

        self._site.at(start_ps, act)

    def _of(self, failure: Event) -> list[Deployment]:
        """Return the pools of which replicas fail."""
        return [each for each in self._deployments if failure.pool in (None, each.name)]

    def _strike(self, failure: Failure, pod: Pod | None, node: int | None) -> None:
        """Let all fail that a failure reaches."""
        if pod is None:
            pod = self._chosen(failure)
            if pod is None:
                return
            node = min(pod.taken)
        struck = [(deployment, pod) for deployment in self._deployments if pod in deployment.there]
        if failure.what not in ("process", "gpu"):
            assert node is not None, "a replica is on nodes"
            lost = self._site.placement.lose(node, whole_rack=failure.what == "rack")
            if failure.repair_s is not None:
                self._site.hold(lost)
            if failure.what in ("drain", "spot"):
                self._emptied.append((failure, lost))
                self._evict()
                if failure.what == "spot":
                    self._after(failure.notice_s, lambda: self._evict(lost))
                return
            struck = self._on(lost)
            self._after(failure.detect_s, lambda: self._repair(failure, lost))
        for deployment, each in struck:
            if not each.is_frozen:
                deployment.freeze(each)
                self._detect(failure, each, deployment)

    def _after(self, wait_s: float, action: Callable[[], None]) -> None:
        self._site.at(self._site.clock.now_ps + to_ps(wait_s), action)

    def _on(self, nodes: Gpus) -> list[tuple[Deployment, Pod]]:
        """Return all replicas on some nodes, and their pools."""
        there = ((deployment, pod) for deployment in self._deployments for pod in deployment.there)
        return [(deployment, pod) for deployment, pod in there if nodes.keys() & pod.taken.keys()]

    def _evict(self, reclaimed: Gpus | None = None) -> None:
        """Evict those that may leave their node now, end all on a reclaimed one, and repair those that are empty."""
        for failure, nodes in [*self._emptied]:
            for deployment, pod in self._on(nodes):
                if not (pod.is_leaving or pod.is_frozen) and (nodes is reclaimed or _may_leave(pod, deployment)):
                    deployment.n_missed += pod in deployment.pods and failure.recover == "none"
                    deployment.stop(pod, Reason(Why.EVICTED, failure.what))
                    deployment.why = Reason(Why.REPLACES, f"{failure.what} eviction")
                    deployment.bring()
                    deployment.stock()
                if nodes is reclaimed and not pod.is_frozen:
                    deployment.cut(pod, Reason(Why.RECLAIMED))
            if not self._on(nodes):
                self._emptied.remove((failure, nodes))
                self._repair(failure, nodes)

    def _repair(self, failure: Failure, nodes: Gpus) -> None:
        """Let the GPUs of nodes return, unless others are there anyway."""
        if failure.repair_s is not None:
            self._after(failure.repair_s, lambda: self._site.release(nodes))

    def _detect(self, failure: Failure, pod: Pod, deployment: Deployment) -> None:
        """Lose a replica once it is known that it has failed."""

        def lose() -> None:
            if failure.what == "gpu" and failure.repair_s is not None and pod in deployment.there:
                node = min(pod.taken)
                pod.taken[node] -= 1
                self._after(failure.repair_s, lambda: self._site.give({node: 1}))
            in_place = failure.what == "process" and self._site.placement.has(pod.taken)
            deployment.fail(pod, failure.what, in_place=in_place, returns=failure.recover == "restart")

        self._after(failure.detect_s, lose)

    def _chosen(self, failure: Event) -> Pod | None:
        """Return the replica of a failure at an instant: the given one, or the first that serves."""
        there = [pod for deployment in self._of(failure) for pod in deployment.pods]
        if failure.member is not None:
            there = [pod for pod in there if pod.id == failure.member]
        else:
            there = [pod for pod in there if pod.phase == "ready" and not pod.is_frozen]
        return min(there, key=lambda pod: pod.id, default=None)


def _may_leave(pod: Pod, deployment: Deployment) -> bool:
    """Return whether the eviction of a replica leaves as many ready ones as its pool shall have. As in Kubernetes, one
    that loads may go unless they are too few already, and one without containers always; spares may, too."""
    limits, n_ready = deployment.plan.shutdown, sum(each.phase == "ready" for each in deployment.pods)
    n_most = deployment.wanted if limits.max_unavailable is None else limits.max_unavailable
    n_least = max(limits.min_available or 0, deployment.wanted - n_most)
    return pod in deployment.spares or pod.phase == "pending" or n_ready - (pod.phase == "ready") >= n_least
