"""Scraper: takes samples of replicas and of the gateway, as a monitoring system does."""

from collections.abc import Callable, Collection, Sequence
from random import Random

from simserve.engine.deployment import Deployment
from simserve.engine.fleet import Fleet
from simserve.engine.live_view import LiveView
from simserve.scenario.fleet import Scrape
from simserve.state.pool_view import Signals
from simserve.units import to_ps, to_s

Loads = Sequence[LiveView]


def _used_share(ranks: Loads) -> float:
    return sum(each.held_blocks() / each.total_blocks for each in ranks) / len(ranks)


OF_MEMBER: dict[str, Callable[[Loads], float]] = {
    "num_requests_running": lambda ranks: sum(each.n_outstanding - each.n_waiting for each in ranks),
    "num_requests_waiting": lambda ranks: sum(each.n_waiting for each in ranks),
    "kv_cache_usage_perc": _used_share,
    "request_success_total": lambda ranks: sum(each.n_arrived - each.n_outstanding for each in ranks),
    "request_arrival_total": lambda ranks: sum(each.n_arrived for each in ranks),
}
"""How each metric of a replica is read from its ranks."""


class Scraper:
    """Samples what autoscalers read of their pools."""

    def __init__(self, scrape: Scrape, fleet: Fleet, stream: Random) -> None:
        self._scrape, self._fleet, self._stream = scrape, fleet, stream
        self._interval_ps = to_ps(scrape.interval_s)
        self.gateway = Signals()
        self._watched: list[tuple[Deployment, Collection[str]]] = []

    def watch(self, deployment: Deployment, metrics: Collection[str]) -> None:
        """Sample these metrics of a pool from now on."""
        self._watched.append((deployment, metrics))

    def take(self, now_ps: int) -> int:
        """Take a sample of each; return the instant of the next."""
        at_s = to_s(now_ps)
        for deployment, metrics in self._watched:
            for pod in deployment.pods:
                if pod.phase == "ready":
                    ranks = [rank.load for member in pod.members for rank in member.ranks]
                    for metric in metrics & OF_MEMBER.keys():
                        self._add(pod.signals, metric, at_s, OF_MEMBER[metric](ranks))
        n_held = self._fleet.n_held()
        self._add(self.gateway, "gateway_queue_size", at_s, n_held)
        self._add(self.gateway, "gateway_arrival_total", at_s, n_held + self._n_arrived())
        return now_ps + self._interval_ps

    def _n_arrived(self) -> int:
        """Count the requests that the gateway has sent to replicas."""
        first = (member for member in self._fleet.members if member.setup.role != "decode")
        return sum(rank.load.n_arrived for member in first for rank in member.ranks)

    def _add(self, signals: Signals, metric: str, at_s: float, value: float) -> None:
        """Store a sample; that of a gauge has noise."""
        noise_frac = self._scrape.noise_frac
        if noise_frac and not metric.endswith("_total"):
            value = max(0.0, value * self._stream.gauss(1.0, noise_frac))
        signals.add(metric, at_s, value)
