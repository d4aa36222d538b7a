"""Knative's pod autoscaler: concurrent requests per replica, over a stable and a panic window."""

from collections import deque
from math import ceil
from statistics import fmean
from typing import Annotated

from pydantic import Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from simserve.autoscalers import base
from simserve.state.metric_values import concurrency
from simserve.state.pool_view import PoolView


@dataclass(config=base.STRICT)
class Kpa(base.Autoscaler):
    """Keep the concurrent requests per replica at a target; in a panic, follow a short window and remove nothing.

    The concurrency is that of the last samples, waiting requests included, and those that wait at the gateway. Source:
    knative/serving, pkg/autoscaler/scaling/autoscaler.go, and its ConfigMap config-autoscaler, shares for percentages.
    """

    max_replicas: base.OneOrMore
    """Most replicas (`max-scale`; Knative's own default is no limit)."""
    min_replicas: base.Replicas = 0
    """Fewest replicas (`min-scale`); 0 permits zero."""
    container_concurrency: NonNegativeInt = 0
    """Most requests that a replica may get at once (`containerConcurrency`); 0: no limit, so `target` counts."""
    target: base.Threshold = 100.0
    """Concurrent requests per replica without `container_concurrency` (`container-concurrency-target-default`)."""
    target_utilization_frac: Annotated[float, Field(gt=0, le=1)] = 0.7
    """[share] Part of the target or of `container_concurrency` to keep (`container-concurrency-target-percentage`)."""
    stable_window_s: Annotated[float, Field(ge=6, le=3600)] = 60.0
    """[s] Window of the mean outside a panic (`stable-window`)."""
    panic_window_frac: Annotated[float, Field(ge=0.01, le=1)] = 0.10
    """[share] Part of the stable window that the panic window takes (`panic-window-percentage`)."""
    panic_threshold_frac: Annotated[float, Field(gt=1, le=10)] = 2.0
    """[share] Wished replicas over ready ones at which a panic begins (`panic-threshold-percentage`)."""
    max_scale_up_rate: Annotated[float, Field(gt=1, le=1e9)] = 1000.0
    """Largest ratio of wished to ready replicas on the way up (`max-scale-up-rate`)."""
    max_scale_down_rate: Annotated[float, Field(gt=1, le=1e9)] = 2.0
    """Largest ratio of ready to wished replicas on the way down (`max-scale-down-rate`)."""
    scale_to_zero_grace_period_s: base.Seconds = 30.0
    """[s] Time that the last replica stays after the stable window is empty (`scale-to-zero-grace-period`)."""
    interval_s: base.Interval = 2.0
    """[s] Time between two decisions (`tick-interval`)."""

    def __post_init__(self) -> None:
        base.check_bounds(self.min_replicas, self.max_replicas)

    @property
    def metric_names(self) -> frozenset[str]:
        """Requests at the replicas and at the gateway."""
        return concurrency().metrics

    def begin(self) -> None:
        """Start calm, without samples."""
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_ends_s: float | None = None
        self._panic_replicas = 0
        self._idle_since_s: float | None = None

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the replicas that keep the concurrency at its target."""
        n_requests = concurrency().total(pool)
        if n_requests is not None:
            self._seen.append((pool.now_s, n_requests))
        while self._seen and self._seen[0][0] <= pool.now_s - self.stable_window_s:
            self._seen.popleft()
        if not self._seen:
            return pool.wanted
        n_replicas = min(self._wish(pool), self.max_replicas)
        return max(n_replicas, self.min_replicas, self._least(pool, n_replicas))

    def _wish(self, pool: PoolView) -> int:
        n_ready = max(1, pool.n_ready)
        stable = self._replicas_for(self.stable_window_s, pool.now_s)
        panic = self._replicas_for(self.stable_window_s * self.panic_window_frac, pool.now_s)
        n_most, n_least = ceil(self.max_scale_up_rate * n_ready), int(n_ready / self.max_scale_down_rate)
        if panic / n_ready >= self.panic_threshold_frac:
            self._panic_ends_s = pool.now_s + self.stable_window_s
        elif self._panic_ends_s is not None and pool.now_s > self._panic_ends_s:
            self._panic_ends_s, self._panic_replicas = None, 0
        n_stable, n_panic = (min(max(wish, n_least), n_most) for wish in (stable, panic))
        if self._panic_ends_s is None:
            return n_stable
        self._panic_replicas = max(self._panic_replicas, n_stable, n_panic)
        return self._panic_replicas

    def _replicas_for(self, window_s: float, now_s: float) -> int:
        """Return the replicas that the mean concurrency of a window needs, without limits."""
        recent = [value for at_s, value in self._seen if at_s > now_s - window_s] or [self._seen[-1][1]]
        full = self.container_concurrency or self.target
        return ceil(fmean(recent) / (full * self.target_utilization_frac))

    def _least(self, pool: PoolView, n_replicas: int) -> int:
        """Return 1 while the last replica has its grace period, else 0."""
        if n_replicas or not pool.wanted:
            self._idle_since_s = None
            return 0
        if self._idle_since_s is None:
            self._idle_since_s = pool.now_s
        return int(pool.now_s - self._idle_since_s < self.scale_to_zero_grace_period_s)
