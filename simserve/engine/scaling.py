"""Scaling: what changes a fleet: autoscalers, which see samples as a monitoring system takes them, and failures.

Autoscalers may also decide from the samples of a fleet that ran elsewhere, without a simulation.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isnan
from random import Random
from typing import ClassVar

from simserve.autoscalers.base import Autoscaler
from simserve.engine.alarm import FLEET_PHASE, Alarm, Clock
from simserve.engine.checks import checked_replicas
from simserve.engine.deployment import Deployment
from simserve.engine.failing import Failing
from simserve.engine.fleet import Fleet
from simserve.engine.losses import ALL_LOST, Rescue
from simserve.engine.placement import Placement
from simserve.engine.pods import PoolPlan, Site
from simserve.engine.replica import Replica
from simserve.engine.rollout import RollOut
from simserve.engine.starting import Starts
from simserve.scenario.fleet import AnyFailure, Scrape
from simserve.state.pool_view import MemberView, PoolView, Signals
from simserve.state.pool_view import ReplicaFacts as ReplicaFacts
from simserve.state.queries import METRICS
from simserve.state.tick import Tick
from simserve.tables.why import Reason, Why
from simserve.units import PS_PER_S, to_ps, to_s

Ranks = Sequence[Replica]


def _used_share(ranks: Ranks) -> float:
    return sum(each.load.held_blocks() / each.load.total_blocks for each in ranks) / len(ranks)


def _decode_tokens(rank: Replica, now_ps: int) -> int:
    """Count the tokens of decode steps that have ended, those of the step run in flight included."""
    step_run = rank.in_flight.step_run
    n_in_flight = 0 if step_run is None else step_run.n_decoding * step_run.steps_done(now_ps)
    return rank.recorder.computed_tokens(rank.id)[1] + n_in_flight


OF_MEMBER: dict[str, Callable[[Ranks, int], float]] = {
    "num_requests_running": lambda ranks, _: sum(each.load.n_outstanding - each.load.n_waiting for each in ranks),
    "num_requests_waiting": lambda ranks, _: sum(each.load.n_waiting for each in ranks),
    "kv_cache_usage_perc": lambda ranks, _: _used_share(ranks),
    "prompt_tokens_waiting": lambda ranks, _: sum(each.load.count_waiting() for each in ranks),
    "request_success_total": lambda ranks, _: sum(each.load.n_arrived - each.load.n_outstanding for each in ranks),
    "request_arrival_total": lambda ranks, _: sum(each.load.n_arrived for each in ranks),
    "request_prompt_tokens_total": lambda ranks, _: sum(each.load.prompt_tokens for each in ranks),
    "prompt_tokens_total": lambda ranks, _: sum(each.recorder.computed_tokens(each.id)[0] for each in ranks),
    "generation_tokens_total": lambda ranks, now_ps: sum(_decode_tokens(each, now_ps) for each in ranks),
}
"""How each metric of a replica is read from its ranks at an instant."""


class Scraper:
    """Samples what autoscalers read of their pools."""

    def __init__(self, scrape: Scrape, fleet: Fleet, stream: Random) -> None:
        self._scrape, self._fleet, self._stream = scrape, fleet, stream
        self._interval_ps = to_ps(scrape.interval_s)
        self.gateway = Signals()
        self._watched: list[tuple[Deployment, Sequence[str]]] = []
        self._counts_arrivals = False

    def watch(self, deployment: Deployment, metrics: frozenset[str]) -> None:
        """Sample these metrics of a pool from now on."""
        of_members = sorted(metrics & OF_MEMBER.keys())  # in one order, as each takes its noise
        self._watched.append((deployment, of_members))
        self._counts_arrivals = self._counts_arrivals or "gateway_arrival_total" in metrics

    def take(self, now_ps: int) -> int:
        """Take a sample of each; return the instant of the next."""
        at_s = to_s(now_ps)
        for deployment, metrics in self._watched:
            for pod in deployment.pods:
                if pod.phase == "ready" and not pod.is_frozen:
                    for metric in metrics:
                        self._add(pod.signals, metric, at_s, OF_MEMBER[metric](pod.ranks, now_ps))
        n_held = self._fleet.n_held()
        self._add(self.gateway, "gateway_queue_size", at_s, n_held)
        if self._counts_arrivals:
            first = (member for member in self._fleet.members if member.setup.role != "decode")
            n_sent = sum(rank.load.n_arrived for member in first for rank in member.ranks)
            self._add(self.gateway, "gateway_arrival_total", at_s, n_held + n_sent)
        return now_ps + self._interval_ps

    def _add(self, signals: Signals, metric: str, at_s: float, value: float) -> None:
        """Store a sample; that of a gauge has noise."""
        noise_frac = self._scrape.noise_frac
        if noise_frac and not metric.endswith("_total"):
            value = max(0.0, value * self._stream.gauss(1.0, noise_frac))
        signals.add(metric, at_s, value)


LONGEST_WAIT_PS = 86_400 * PS_PER_S
"""A run ends when requests have waited for a replica for a day in which nothing else happened."""


@dataclass(eq=False)
class Scaling:
    """Lets autoscalers and failures change a fleet."""

    plans: Sequence[PoolPlan]
    """One for each pool, in their order."""
    autoscalers: Sequence[Autoscaler | None]
    """Policy of each pool, if it has one; several pools may have one policy, which then decides for all of them."""
    seed: int
    placement: Placement
    scrape: Scrape
    failures: Sequence[AnyFailure] = ()
    gpu_budget: int | None = None
    rescue: Rescue = ALL_LOST
    rollout: RollOut | None = None

    def __post_init__(self) -> None:
        self.shifts = self.rollout is not None and self.rollout.shifts
        self._n_waiting, self._waits_since_ps = 0, 0
        """Requests that waited when nothing else happened, and since when as many do."""

    def begin(self, fleet: Fleet, clock: Clock) -> None:
        """Take over the replicas that are there, and set alarms."""
        self._clock, self._fleet = clock, fleet
        site = Site(fleet, clock, self.placement, self.seed, self.gpu_budget, self.rescue)
        starts = Starts(site)
        self._deployments = list[Deployment]()
        for pool, plan in enumerate(self.plans):
            deployment = Deployment(plan, site, starts, [each for each in fleet.members if each.setup.pool == pool])
            self._deployments.append(deployment)
            if site.free_gpus is not None:
                site.free_gpus -= plan.n_gpus * len(deployment.pods)
        failing = Failing(self.failures, site, self._deployments, self.rollout)
        for deployment in self._deployments:
            deployment.stock()
            deployment.on_ready = partial(failing.watch, deployment=deployment)
            for pod in deployment.pods:
                deployment.on_ready(pod)
        if self.rollout is not None:
            self.rollout.begin(site, self._deployments[self.rollout.pool])
        self._let_scale()

    def goes_on(self) -> bool:
        """Return whether requests wait for a replica, or in one that has failed, which is not known yet; nothing else
        matters when all have ended."""
        serving, now_ps = self._fleet.serving, self._clock.now_ps
        n_waiting = self._fleet.n_held() + (0 if serving is None else serving.n_held())
        n_waiting += sum(pod.n_outstanding for pool in self._deployments for pod in pool.there if pod.is_frozen)
        if n_waiting != self._n_waiting:
            self._n_waiting, self._waits_since_ps = n_waiting, now_ps
        return n_waiting > 0 and now_ps - self._waits_since_ps < LONGEST_WAIT_PS

    def _let_scale(self) -> None:
        """Set the alarms of samples and decisions; each begins at an instant of its own, as in reality."""
        stream = Random(f"scrape/{self.seed}")
        self._scraper = scraper = Scraper(self.scrape, self._fleet, stream)
        scaled = dict[int, list[Deployment]]()
        for deployment, policy in zip(self._deployments, self.autoscalers, strict=True):
            if policy is None:
                continue
            scraper.watch(deployment, frozenset(policy.metric_names))
            deployments = scaled.setdefault(id(policy), [])
            deployments.append(deployment)
            if len(deployments) == 1:
                policy.begin()
                decide = partial(self._decide, policy, deployments)
                Alarm(self._clock, decide, FLEET_PHASE).set(to_ps(stream.random() * policy.interval_s))
        if scaled:
            Alarm(self._clock, scraper.take, FLEET_PHASE).set(to_ps(stream.random() * self.scrape.interval_s))

    def _decide(self, policy: Autoscaler, deployments: Sequence[Deployment], now_ps: int) -> int:
        """Ask the policy of one pool, or of several, and follow it; return the instant of the next decision. Raises
        PolicyError."""
        delay_s = self.scrape.delay_s
        views = [each.view(now_ps, delay_s, self._scraper.gateway) for each in deployments]
        for deployment, wanted in zip(deployments, checked_replicas(policy, views, now_ps), strict=True):
            if wanted != deployment.wanted:
                change = f"{type(policy).__name__.lower()}: {deployment.wanted} -> {wanted}"
                deployment.wanted, deployment.why = wanted, Reason(Why.SCALED, change)
                deployment.bring()
        return now_ps + to_ps(policy.interval_s)


@dataclass(frozen=True)
class RecordedSignals:
    """Samples of a fleet that ran elsewhere, a row an instant; what a policy decides changes nothing in them."""

    at_s: Sequence[float]
    """Instants, ascending from 0."""
    replicas: Sequence[int]
    columns: Mapping[tuple[str, str], Sequence[float]]
    """Values by metric and pod, NaN where there is no sample; pod "": the mean over pods, or the gateway's."""
    silent_s: float = 0.0
    """Time from joining to the first sample, where pods have no names."""
    replica: ReplicaFacts = field(default_factory=ReplicaFacts)
    metrics: ClassVar[Sequence[str]] = METRICS

    def desired_by(self, policy: Autoscaler) -> list[int]:
        """Return what a policy wants at each row, given what was recorded until then. Raises PolicyError."""
        policy.begin()
        loop, desired = Tick(policy.interval_s), list[int]()
        for pool in self._views():
            is_due = loop.is_due(pool.now_s)
            desired += checked_replicas(policy, [pool], to_ps(pool.now_s)) if is_due else desired[-1:]
        return desired

    def _views(self) -> Iterator[PoolView]:
        """Yield the pool at each row: pods that report are ready, the others load."""
        signals = defaultdict[int | str, Signals](Signals)
        pods = [*dict.fromkeys(pod for _, pod in self.columns if pod)]
        joined_s = [-inf] * self.replicas[0]
        for row, (at_s, n) in enumerate(zip(self.at_s, self.replicas, strict=True)):
            joined_s = resized(joined_s, n, at_s)
            samples = defaultdict[int | str, dict[str, float]](dict)
            for (metric, pod), values in self.columns.items():
                if not isnan(values[row]):
                    samples[pod][metric] = values[row]
            spoken = (place for place, since_s in enumerate(joined_s) if at_s - since_s >= self.silent_s)
            reports: list[int | str] = [pod for pod in pods if pod in samples] if pods else [*spoken]
            for source in ("", *reports):
                signals[source].until_s = at_s
                for metric, value in (samples[""] | samples[source]).items():
                    signals[source].add(metric, at_s, value)
            ready = [MemberView(place, "ready", signals[source]) for place, source in enumerate(reports)]
            loading = [MemberView(place, "loading", Signals()) for place in range(len(ready), n)]
            yield PoolView(at_s, n, [*ready, *loading], signals[""], self.replica)


def resized(joined_s: Sequence[float], n: int, at_s: float) -> list[float]:
    """Return when each of n pods joined, after the youngest have left or new ones have joined."""
    return [*joined_s[:n], *[at_s] * (n - len(joined_s))]
