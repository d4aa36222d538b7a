"""A plain target: as many replicas as keep a metric of each replica at a value, with hysteresis."""

from math import ceil

from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import STRICT, Autoscaler, Interval, OneOrMore, Seconds, Threshold, check_bounds
from simserve.state.forecast import Predictor, forecaster
from simserve.state.horizontal import Recommendations
from simserve.state.pool_view import PoolView
from simserve.state.queries import parse


@dataclass(config=STRICT)
class Target(Autoscaler):
    """Keep a metric per replica at a target: ceil(total / target), or one replica less while the metric is low.

    It is the bare rule that other autoscalers are compared with. Its windows are those of Kubernetes; its guard is that
    of NVIDIA Dynamo's planner, which removes a replica only if the load of N fits on N - 1.
    """

    metric: str
    """A metric's name, or a query in the simulated part of PromQL; several series are summed."""
    target: Threshold
    """Value per replica to keep."""
    max_replicas: OneOrMore
    """Most replicas."""
    min_replicas: OneOrMore = 1
    """Fewest replicas."""
    down_below: Threshold | None = None
    """Value per replica below which one replica at a time is removed; null: ceil(total / target) both ways."""
    down_only_if_load_fits: bool = True
    """A replica is removed by `down_below` only if N / (N - 1) times the value stays within the target."""
    scale_up_window_s: Seconds = 0.0
    """[s] Window of which the smallest number counts on the way up."""
    scale_down_window_s: Seconds = 0.0
    """[s] Window of which the largest number counts on the way down; 300 ends most flapping."""
    interval_s: Interval = 15.0
    """[s] Time between two decisions."""
    forecast: Predictor | None = None
    """Forecast of the metric's total that counts in place of it: `constant`, `kalman` or `arima`; null: none."""
    lead_s: Seconds = 120.0
    """[s] How far ahead `forecast` looks; with the time of a start, replicas serve when they are needed."""

    def __post_init__(self) -> None:
        check_bounds(self.min_replicas, self.max_replicas)
        if self.down_below is not None and self.down_below > self.target:
            raise ValueError(f"down_below must be at most the target {self.target}, got {self.down_below}")
        self._query = parse(self.metric)
        forecaster(self.forecast)

    @property
    def metric_names(self) -> frozenset[str]:
        """Metrics of the query."""
        return self._query.metrics

    def begin(self) -> None:
        """Start without earlier numbers."""
        self._recommendations = Recommendations(self.scale_up_window_s, self.scale_down_window_s)
        self._forecast = forecaster(self.forecast)

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the replicas at which the metric meets its target; without a sample, the present number."""
        total = self._query.total(pool)
        if total is None:
            return pool.wanted
        self._forecast.add(total)
        total = self._forecast.ahead(round(self.lead_s / self.interval_s))
        n_wished = min(max(self._wish(total, pool), self.min_replicas), self.max_replicas)
        return self._recommendations.stabilized(pool.now_s, pool.wanted, n_wished)

    def _wish(self, total: float, pool: PoolView) -> int:
        n_now, n_full = pool.wanted, ceil(round(total / self.target, 9))
        if self.down_below is None or n_full > n_now:
            return n_full
        fits = n_now > 1 and total <= self.target * (n_now - 1)
        is_low = total < self.down_below * max(1, pool.n_ready)
        return n_now - 1 if is_low and (fits or not self.down_only_if_load_fits) else n_now
