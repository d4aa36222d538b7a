"""Starting: the phases of a start, and stores of which the rate is shared by all replicas that load from them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from zlib import crc32

import numpy as np

from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.pods import Pod, Site
from simserve.units import PS_PER_S, to_ps


@dataclass(eq=False)
class Loading:
    """Weights that a replica has yet to load from a store; fractions, so that shares are exact."""

    pod: Pod
    n_left: Fraction
    """[bytes] Bytes yet to come."""
    own: Fraction
    """[bytes/ps] Most that it takes."""
    then: Callable[[], None]
    """Called once all are loaded."""
    rate: Fraction = Fraction()
    """[bytes/ps] Its share."""


class Store:
    """Weights for replicas that load them at the same time: each gets an equal share of the rate, or less if it cannot
    take as much, which leaves more to the others."""

    def __init__(self, clock: Clock, rate: Fraction) -> None:
        self.loads: list[Loading] = []
        self._clock, self._rate, self._since_ps = clock, rate, 0
        self._alarm = Alarm(clock, self._end, FLEET_PHASE)

    def change(self, loads: list[Loading]) -> None:
        """Let others load from now on."""
        now_ps = self._clock.now_ps
        for load in self.loads:
            load.n_left -= load.rate * (now_ps - self._since_ps)
        self.loads, self._since_ps, free = loads, now_ps, self._rate
        for n_before, load in enumerate(sorted(loads, key=lambda each: each.own)):
            load.rate = min(load.own, free / (len(loads) - n_before))
            free -= load.rate
        if loads:
            self._alarm.set(now_ps + max(0, min(ceil(each.n_left / each.rate) for each in loads)))

    def _end(self, now_ps: int) -> None:
        """Let those go on that have loaded all."""
        ended = [each for each in self.loads if each.n_left <= each.rate * (now_ps - self._since_ps)]
        self.change([each for each in self.loads if each not in ended])
        for load in ended:
            load.then()


class Starts:
    """Starts the replicas of all pools."""

    def __init__(self, site: Site) -> None:
        self._site, self._n = site, Counter[str]()
        self._stores: dict[tuple[str, int, Fraction], Store] = {}
        """Stores by source, node and rate; -1: all nodes have one."""

    def begin(self, pod: Pod, serve: Callable[[Pod], None], *, in_place: bool, loads: bool = True) -> None:
        """Let a replica load, and serve once it is ready. in_place: machine and image are there. loads: else it waits
        once they are."""
        plan, now_ps = pod.plan, self._site.clock.now_ps
        stream = f"startup/{plan.name}/{self._n[plan.name]}"
        self._n[plan.name] += 1
        rng = np.random.default_rng([self._site.seed, crc32(stream.encode())])
        pending_s, process_s, later_s = plan.startup.draw(rng, in_place=in_place)
        runs_ps, weights = now_ps + to_ps(pending_s), plan.startup.weights
        self._site.at(runs_ps, lambda: self._run(pod))

        def end() -> None:
            if not any(each.pod is pod for store in self._stores.values() for each in store.loads):
                self._site.at(self._site.clock.now_ps + to_ps(later_s), lambda: serve(pod))

        if loads and weights.shared_bytes_per_s is None:
            loading_s = process_s + later_s + plan.weights_bytes / weights.rate
            self._site.at(runs_ps + to_ps(loading_s), lambda: serve(pod))
        elif loads:
            self._site.at(runs_ps + to_ps(process_s), lambda: self._load(pod, end))

    def cancel(self, pod: Pod) -> None:
        """Leave the stores to others."""
        for store in self._stores.values():
            store.change([each for each in store.loads if each.pod is not pod])

    def _run(self, pod: Pod) -> None:
        """Note that the containers of a replica run."""
        if not pod.is_leaving:
            pod.phase = "loading"

    def _load(self, pod: Pod, then: Callable[[], None]) -> None:
        """Load the weights of a replica: from its own nodes to the GPUs that it has there, or over the network."""
        if pod.is_leaving or pod.is_frozen:
            return
        weights, n_gpus = pod.plan.startup.weights, pod.plan.n_gpus
        for node, n in ({-1: n_gpus} if weights.source == "network" else pod.taken).items():
            rate, part = Fraction(weights.shared_bytes_per_s or 0) / PS_PER_S, Fraction(n, n_gpus)
            store = self._stores.setdefault((weights.source, node, rate), Store(self._site.clock, rate))
            own = Fraction(weights.own_rate) / PS_PER_S
            store.change([*store.loads, Loading(pod, part * Fraction(pod.plan.weights_bytes), part * own, then)])
