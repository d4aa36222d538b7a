"""Failing: replicas that fail, at given instants or at a rate."""

from collections.abc import Iterator, Sequence
from random import Random

from simserve.engine.deployment import Deployment
from simserve.engine.pods import Pod, Site
from simserve.scenario.fleet import Failure
from simserve.units import LONGEST_S, to_ps


class Failing:
    """Lets replicas fail. A unit's life is exponential: each is drawn once, when the first replica on it serves."""

    def __init__(self, failures: Sequence[Failure], site: Site, deployments: Sequence[Deployment]) -> None:
        self._failures, self._site, self._deployments = failures, site, deployments
        self._drawn: set[tuple[int, str]] = set()
        """Numbers of failures, and units of which the lives are drawn."""
        for failure in failures:
            if failure.at_s is not None:
                self._set(to_ps(failure.at_s), failure)

    def watch(self, pod: Pod, deployment: Deployment) -> None:
        """Draw when a replica that begins to serve fails, or the nodes and racks it is on."""
        for index, failure in enumerate(self._failures):
            if failure.mtbf_s is None or deployment not in self._of(failure):
                continue
            for unit, place, n in self._units(failure, pod, deployment):
                if (index, unit) not in self._drawn:
                    self._drawn.add((index, unit))
                    life_s = Random(f"failures/{self._site.seed}/{index}/{unit}").expovariate(n / failure.mtbf_s)
                    if life_s < LONGEST_S:
                        self._set(self._site.clock.now_ps + to_ps(life_s), failure, pod, place)

    def _units(self, failure: Failure, pod: Pod, deployment: Deployment) -> Iterator[tuple[str, int, int]]:
        """Yield the name of each unit of a replica, a node of it, and for how many units it stands."""
        match failure.what:
            case "node":
                yield from ((f"node {node}", node, 1) for node in pod.taken)
            case "rack":
                racks = {self._site.placement.rack_of(node): node for node in pod.taken}
                yield from ((f"rack {rack}", node, 1) for rack, node in racks.items())
            case "gpu":
                yield f"replica {pod.id}", min(pod.taken), pod.plan.n_gpus
            case _:
                yield f"replica {pod.id}", min(pod.taken), 1

    def _of(self, failure: Failure) -> list[Deployment]:
        """Return the pools of which replicas fail."""
        return [each for each in self._deployments if failure.pool in (None, each.plan.name)]

    def _set(self, at_ps: int, failure: Failure, pod: Pod | None = None, node: int | None = None) -> None:
        """Let a failure strike at an instant: a replica or a node, or those that are chosen then."""
        self._site.at(at_ps, lambda: self._strike(failure, pod, node))

    def _strike(self, failure: Failure, pod: Pod | None, node: int | None) -> None:
        """Let all fail that a failure reaches."""
        if pod is None:
            pod = self._chosen(failure)
            if pod is None:
                return
            node = min(pod.taken)
        struck = {pod}
        if failure.what in ("node", "rack"):
            assert node is not None, "a replica is on nodes"
            nodes = self._site.placement.lose(node, whole_rack=failure.what == "rack")
            there = (each for pool in self._deployments for each in pool.there)
            struck = {each for each in there if nodes & each.taken.keys()}
        for deployment in self._deployments:
            for each in [pod for pod in deployment.there if pod in struck and not pod.is_frozen]:
                deployment.freeze(each)
                self._detect(failure, each, deployment)

    def _detect(self, failure: Failure, pod: Pod, deployment: Deployment) -> None:
        """Lose a replica once it is known that it has failed."""

        def lose() -> None:
            in_place = failure.what == "process" and self._site.placement.has(pod.taken)
            deployment.fail(pod, failure.what, in_place=in_place, returns=failure.recover == "restart")

        if failure.detect_s:
            self._site.at(self._site.clock.now_ps + to_ps(failure.detect_s), lose)
        else:
            lose()

    def _chosen(self, failure: Failure) -> Pod | None:
        """Return the replica of a failure at an instant: the given one, or the first that serves."""
        there = [pod for deployment in self._of(failure) for pod in deployment.pods]
        if failure.member is not None:
            there = [pod for pod in there if pod.id == failure.member]
        else:
            there = [pod for pod in there if pod.phase == "ready" and not pod.is_frozen]
        return min(there, key=lambda pod: pod.id, default=None)
