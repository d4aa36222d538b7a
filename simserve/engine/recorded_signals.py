"""Recorded signals: samples of a fleet that ran elsewhere, from which autoscalers decide without a simulation."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import ClassVar

from simserve.autoscalers.base import Autoscaler
from simserve.engine.checks import broke, raised
from simserve.state.pool_view import MemberView, PoolView, Signals
from simserve.state.queries import METRICS
from simserve.state.tick import Tick
from simserve.units import to_ps


@dataclass(frozen=True)
class RecordedSignals:
    """A row an instant; what a policy decides changes nothing in them."""

    at_s: Sequence[float]
    """Instants, ascending from 0."""
    replicas: Sequence[int]
    columns: Mapping[tuple[str, str], Sequence[float]]
    """Values by metric and pod, NaN where there is no sample; pod "": the mean over pods, or the gateway's."""
    silent_s: float = 0.0
    """Time from joining to the first sample, where pods have no names."""

    metrics: ClassVar[tuple[str, ...]] = METRICS
    """Metrics that a policy may read."""

    def desired_by(self, policy: Autoscaler) -> list[int]:
        """Return what a policy wants at each row, given the recorded replicas and samples until then. Raises
        PolicyError."""
        policy.begin()
        loop, desired = Tick(policy.interval_s), list[int]()
        for pool in self._views():
            desired.append(_decided(policy, pool) if loop.is_due(pool.now_s) else desired[-1])
        return desired

    def _views(self) -> Iterator[PoolView]:
        """Yield the pool at each row: pods that report are ready, the others load."""
        signals: defaultdict[object, Signals] = defaultdict(Signals)
        pods = dict.fromkeys(pod for _, pod in self.columns if pod)
        joined_s = [-inf] * self.replicas[0]
        for row, (at_s, n) in enumerate(zip(self.at_s, self.replicas, strict=True)):
            joined_s = resized(joined_s, n, at_s)
            shared = self._samples(row, "")
            reports: dict[object, dict[str, float]] = {
                each: {} for each in enumerate(joined_s) if at_s - each[1] >= self.silent_s
            }
            if pods:
                reports = {pod: samples for pod in pods if (samples := self._samples(row, pod))}
            for source, samples in {"gateway": {}, **reports}.items():
                _add(signals[source], at_s, shared | samples)
            ready = [MemberView(place, "ready", signals[pod]) for place, pod in enumerate(reports)]
            loading = [MemberView(place, "loading", Signals()) for place in range(len(ready), n)]
            yield PoolView(at_s, n, [*ready, *loading], signals["gateway"])

    def _samples(self, row: int, pod: str) -> dict[str, float]:
        of_pod = {metric: column[row] for (metric, name), column in self.columns.items() if name == pod}
        return {metric: value for metric, value in of_pod.items() if not isnan(value)}


def resized(joined_s: Sequence[float], n: int, at_s: float) -> list[float]:
    """Return when each of n pods joined, after the youngest have left or new ones have joined."""
    return [*joined_s[:n], *[at_s] * (n - len(joined_s))]


def _add(signals: Signals, at_s: float, samples: Mapping[str, float]) -> None:
    signals.until_s = at_s
    for metric, value in samples.items():
        signals.add(metric, at_s, value)


def _decided(policy: Autoscaler, pool: PoolView) -> int:
    try:
        wanted = policy.desired_replicas(pool)
    except Exception as error:
        raise raised(policy, "desired_replicas", to_ps(pool.now_s), error) from error
    if type(wanted) is not int or wanted < 0:
        raise broke(policy, "desired_replicas", to_ps(pool.now_s), "must return a whole number, 0 or more", wanted)
    return wanted
