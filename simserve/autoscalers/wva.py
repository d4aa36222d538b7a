"""llm-d's workload variant autoscaler, version 1: one replica more or less by spare KV cache and queue lengths."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import (
    STRICT,
    Autoscaler,
    Behavior,
    Interval,
    OneOrMore,
    ScaleDown,
    ScaleUp,
    Share,
    Threshold,
    check_bounds,
    common_interval_s,
)
from simserve.state.horizontal import HorizontalScaler, tolerance_of, wish_by_average
from simserve.state.metric_values import OverTime
from simserve.state.pool_view import PoolView
from simserve.state.tick import Tick

PEAK_S = 60.0
"""[s] Window of the peaks that it reads (WVA's queries: max_over_time(...[1m]))."""


@dataclass(config=STRICT)
class Wva(Autoscaler):
    """Add a replica when the spare capacity of the unsaturated replicas is low; remove one if the rest keeps enough.

    It publishes a number of replicas, and a Kubernetes autoscaler behind it follows. It changes nothing while that
    number is not reached, or while some replica reports nothing. Source: llm-d workload-variant-autoscaler,
    internal/saturation/analyzer.go.
    """

    max_replicas: OneOrMore
    """Most replicas."""
    min_replicas: OneOrMore = 1
    """Fewest replicas."""
    version: Literal["v1", "v2"] = "v1"
    """Rule: `v1`, by shares of KV cache and queue lengths. The token-based `v2` is not simulated."""
    kv_cache_threshold: Annotated[float, Field(gt=0, le=1)] = 0.80
    """[share] Peak KV cache use at which a replica is saturated."""
    queue_length_threshold: Threshold = 5.0
    """Peak of waiting requests at which a replica is saturated."""
    kv_spare_trigger: Share = 0.10
    """[share] Mean spare KV cache of the unsaturated replicas below which one is added."""
    queue_spare_trigger: Annotated[float, Field(ge=0, le=1e12)] = 3.0
    """Mean spare queue length of the unsaturated replicas below which one is added."""
    optimization_interval_s: Interval = 60.0
    """[s] Time between two decisions of WVA (`GLOBAL_OPT_INTERVAL`)."""
    behavior: Behavior = Field(
        default_factory=lambda: Behavior(ScaleUp(stabilization_window_s=240), ScaleDown(stabilization_window_s=240))
    )
    """How fast the Kubernetes autoscaler behind it adds and removes replicas."""
    hpa_interval_s: Interval = 15.0
    """[s] Time between two decisions of the Kubernetes autoscaler behind it."""
    tolerance: Share = 0.1
    """Distance of published / present replicas from 1 at which the Kubernetes autoscaler changes nothing."""

    metric_names: ClassVar[tuple[str, ...]] = ("kv_cache_usage_perc", "num_requests_waiting")

    def __post_init__(self) -> None:
        check_bounds(self.min_replicas, self.max_replicas)
        if self.version == "v2":
            raise ValueError("version: v2 is not simulated, as its token-based rule is not modeled; use version: v1")
        for name, threshold, trigger in (
            ("kv", self.kv_cache_threshold, self.kv_spare_trigger),
            ("queue", self.queue_length_threshold, self.queue_spare_trigger),
        ):
            if trigger >= threshold:
                raise ValueError(
                    f"{name}_spare_trigger must be below the {name} threshold, got {trigger} >= {threshold}"
                )
        self.interval_s = common_interval_s(self.optimization_interval_s, self.hpa_interval_s)

    def begin(self) -> None:
        """Start without a published number."""
        up, down = self.behavior.scale_up, self.behavior.scale_down
        self._tolerance = tolerance_of(up, down, self.tolerance)
        self._scaler = HorizontalScaler(up, down, self.min_replicas, self.max_replicas)
        self._optimize, self._sync = Tick(self.optimization_interval_s), Tick(self.hpa_interval_s)
        self._published: int | None = None

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the replicas that the Kubernetes autoscaler sets, after the number that WVA publishes."""
        if self._optimize.is_due(pool.now_s):
            self._published = self.published_replicas(pool)
        if not self._sync.is_due(pool.now_s):
            return pool.wanted
        wish = wish_by_average(self._published, 1.0, pool.wanted, self._tolerance)
        return self._scaler.decide(pool.now_s, pool.wanted, [wish])

    def published_replicas(self, pool: PoolView) -> int:
        """Return the number that WVA publishes."""
        if self._published is not None and self._published != pool.wanted:
            return self._published
        kv = OverTime("kv_cache_usage_perc", PEAK_S, "max").values(pool)
        queues = OverTime("num_requests_waiting", PEAK_S, "max").values(pool)
        reported = [(a, b) for a, b in zip(kv, queues, strict=True) if a is not None and b is not None]
        n_replicas = pool.wanted + (self.change(reported) if len(reported) == pool.wanted else 0)
        return min(max(n_replicas, self.min_replicas), self.max_replicas)

    def change(self, replicas: list[tuple[float, float]]) -> int:
        """Return 1, 0 or -1 from the peak KV cache use and queue length of each replica."""
        kv_full, queue_full = self.kv_cache_threshold, self.queue_length_threshold
        left = [(kv, queue) for kv, queue in replicas if kv < kv_full and queue < queue_full]
        n_left = len(left)
        if not n_left:
            return 1
        kv, queue = (sum(loads) / n_left for loads in zip(*left, strict=True))
        if kv_full - kv < self.kv_spare_trigger or queue_full - queue < self.queue_spare_trigger:
            return 1
        if n_left < 2:
            return 0
        growth = n_left / (n_left - 1)
        keeps_kv = kv_full - kv * growth >= self.kv_spare_trigger
        keeps_queue = queue_full - queue * growth >= self.queue_spare_trigger
        return -1 if keeps_kv and keeps_queue else 0
