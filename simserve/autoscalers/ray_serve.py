"""Ray Serve: ongoing requests per replica, with delays before replicas are added and removed."""

from math import ceil
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers import base
from simserve.state.metric_values import concurrency
from simserve.state.pool_view import PoolView

Factor = Annotated[float, Field(gt=0, le=1e6)]


@dataclass(config=base.STRICT)
class RayServe(base.Autoscaler):
    """Keep the ongoing requests per replica at a target, once a wish in one direction has lasted for its delay.

    Ongoing requests are those at the replicas and those that wait at the gateway. Source: Ray,
    serve/_private/autoscaling_policy.py and the class AutoscalingConfig, of which `initial_replicas` is the pool's
    `replicas`.
    """

    target_ongoing_requests: base.Threshold = 2.0
    """Ongoing requests per replica to keep."""
    min_replicas: base.Replicas = 1
    """Fewest replicas; 0 permits zero."""
    max_replicas: base.OneOrMore = 100
    """Most replicas; the default is that of `num_replicas: auto`."""
    look_back_period_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """[s] Window of the mean of the ongoing requests."""
    upscale_delay_s: base.Seconds = 30.0
    """[s] Time that a wish for more replicas must last."""
    downscale_delay_s: base.Seconds = 600.0
    """[s] Time that a wish for fewer replicas must last."""
    downscale_to_zero_delay_s: base.Seconds | None = None
    """[s] The delay from one replica to zero; null: `downscale_delay_s`."""
    upscaling_factor: Factor = 1.0
    """Share of the distance to the target that is made up on the way up (`smoothing_factor` in earlier versions)."""
    downscaling_factor: Factor = 1.0
    """Share of the distance to the target that is made up on the way down."""
    metrics_interval_s: base.Interval = 10.0
    """[s] Time between two decisions: that of the metrics, as Ray decides far more often than it gets them."""

    def __post_init__(self) -> None:
        base.check_bounds(self.min_replicas, self.max_replicas)
        self.interval_s = self.metrics_interval_s
        self._ongoing = concurrency(self.look_back_period_s)

    @property
    def metric_names(self) -> frozenset[str]:
        """Requests at the replicas and at the gateway."""
        return self._ongoing.metrics

    def begin(self) -> None:
        """Start without a wish."""
        self._wish_sign, self._wished_since_s = 0, 0.0

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the wish, if its direction has lasted for its delay."""
        n_ongoing = self._ongoing.total(pool) or 0.0
        if not pool.wanted:
            n_first = ceil(self.upscaling_factor) if n_ongoing else 0
            return min(max(n_first, self.min_replicas), self.max_replicas)
        wish = min(max(self._wish(n_ongoing, max(1, pool.n_ready)), self.min_replicas), self.max_replicas)
        sign = (wish > pool.wanted) - (wish < pool.wanted)
        if sign != self._wish_sign:
            self._wish_sign, self._wished_since_s = sign, pool.now_s
        if not sign or pool.now_s - self._wished_since_s < self._delay_s(sign, pool.wanted) - 1e-6:
            return pool.wanted
        self._wish_sign = 0
        return wish if sign > 0 or pool.wanted == 1 else max(1, wish)

    def _wish(self, n_ongoing: float, n_running: int) -> int:
        """Return the replicas at which each would have its target, smoothed."""
        distance = n_ongoing / (self.target_ongoing_requests * n_running) - 1
        distance *= self.upscaling_factor if distance >= 0 else self.downscaling_factor
        wish = max(0, ceil(n_running * (1 + distance)))
        is_stuck = not n_ongoing and wish == n_running
        return wish - 1 if is_stuck else wish

    def _delay_s(self, sign: int, n_now: int) -> float:
        if sign > 0:
            return self.upscale_delay_s
        to_zero_s = self.downscale_to_zero_delay_s
        return self.downscale_delay_s if n_now > 1 or to_zero_s is None else to_zero_s
