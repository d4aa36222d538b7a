"""KEDA: queries to Prometheus; between zero and one replica by itself, above by the Kubernetes autoscaler."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers import base
from simserve.state.horizontal import HorizontalScaler, tolerance_of, wish_by_average, wish_by_value
from simserve.state.pool_view import PoolView
from simserve.state.queries import parse
from simserve.state.tick import Tick


@dataclass(config=base.STRICT)
class Trigger:
    """A Prometheus query with the value at which it shall stay."""

    query: str
    """A query in the simulated part of PromQL, or a metric's name; several series are summed."""
    threshold: base.Threshold
    """Value to keep: of a replica, or of the pool with `metric_type: value`."""
    activation_threshold: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Value above which the pool leaves zero replicas (`activationThreshold`)."""
    metric_type: Literal["average_value", "value"] = "average_value"
    """`average_value`: the threshold is a replica's share of the value; `value`: it is that of the whole pool."""
    use_cached_metrics: bool = False
    """The Kubernetes autoscaler sees the value of KEDA's last poll, instead of a query of its own."""

    def __post_init__(self) -> None:
        parse(self.query)


@dataclass(config=base.STRICT)
class Keda(base.Autoscaler):
    """Leave and reach zero replicas by KEDA's poll; between one and the maximum the Kubernetes autoscaler decides.

    A query without a fresh sample activates nothing, and nothing is removed because of it. Source: KEDA's ScaledObject
    and its scale executor; `minReplicaCount` and `maxReplicaCount` are `min_replicas` and `max_replicas` here.
    """

    triggers: Annotated[list[Trigger], Field(min_length=1)]
    """Queries and their thresholds; the one that asks for the most replicas wins."""
    polling_interval_s: base.Interval = 30.0
    """[s] Time between two polls (`pollingInterval`)."""
    cooldown_period_s: base.Seconds = 300.0
    """[s] Time from the last active poll to zero replicas (`cooldownPeriod`); it delays no other removal."""
    initial_cooldown_period_s: base.Seconds = 0.0
    """[s] Time from the start to zero replicas, if no poll was active yet (`initialCooldownPeriod`)."""
    idle_replica_count: Literal[0] | None = None
    """Replicas while no trigger is active, below `min_replicas`: 0 (KEDA permits no other); null: `min_replicas`."""
    min_replicas: base.Replicas = 0
    """Fewest replicas while a trigger is active; 0 permits zero while none is."""
    max_replicas: base.OneOrMore = 100
    """Most replicas."""
    behavior: base.Behavior = Field(default_factory=base.Behavior)
    """How fast the Kubernetes autoscaler adds and removes replicas."""
    hpa_interval_s: base.Interval = 15.0
    """[s] Time between two decisions of the Kubernetes autoscaler (`--horizontal-pod-autoscaler-sync-period`)."""
    tolerance: base.Share = 0.1
    """Distance of value / threshold from 1 at which nothing changes (`--horizontal-pod-autoscaler-tolerance`)."""

    def __post_init__(self) -> None:
        base.check_bounds(self.min_replicas, self.max_replicas)
        if self.idle_replica_count == 0 and not self.min_replicas:
            raise ValueError("idle_replica_count must be below min_replicas, got 0 for both; leave it out")
        self.interval_s = base.common_interval_s(self.polling_interval_s, self.hpa_interval_s)
        self._queries = [parse(trigger.query) for trigger in self.triggers]

    @property
    def metric_names(self) -> frozenset[str]:
        """Metrics of all queries."""
        return frozenset[str]().union(*(query.metrics for query in self._queries))

    def begin(self) -> None:
        """Start without polls."""
        up, down = self.behavior.scale_up, self.behavior.scale_down
        self._tolerance = tolerance_of(up, down, self.tolerance)
        self._scaler = HorizontalScaler(up, down, max(1, self.min_replicas), self.max_replicas)
        self._poll, self._sync = Tick(self.polling_interval_s), Tick(self.hpa_interval_s)
        self._zero_at_s = self.initial_cooldown_period_s
        self._polled: list[float | None] = [None] * len(self._queries)

    def desired_replicas(self, pool: PoolView) -> int:
        """Return zero or the first replica at a poll, and at other times what the Kubernetes autoscaler decides."""
        n_replicas = pool.wanted
        if self._poll.is_due(pool.now_s):
            n_replicas = self._after_poll(pool)
        if n_replicas != pool.wanted or not n_replicas or not self._sync.is_due(pool.now_s):
            return n_replicas
        return self._scaler.decide(pool.now_s, n_replicas, self._wishes(pool))

    def _after_poll(self, pool: PoolView) -> int:
        """Poll the queries, and return the replicas that KEDA sets."""
        self._polled = [query.total(pool) for query in self._queries]
        read = [(trigger, now) for trigger, now in zip(self.triggers, self._polled, strict=True) if now is not None]
        if any(now > trigger.activation_threshold for trigger, now in read):
            self._zero_at_s = pool.now_s + self.cooldown_period_s
            return pool.wanted or max(1, self.min_replicas)
        may_be_zero = self.idle_replica_count == 0 or not self.min_replicas
        is_idle = len(read) == len(self.triggers) and pool.now_s > self._zero_at_s
        return 0 if may_be_zero and (is_idle or not pool.wanted) else pool.wanted

    def _wishes(self, pool: PoolView) -> list[int | None]:
        wishes = []
        for trigger, query, polled in zip(self.triggers, self._queries, self._polled, strict=True):
            value = polled if trigger.use_cached_metrics else query.total(pool)
            if trigger.metric_type == "value":
                wishes.append(wish_by_value(value, trigger.threshold, pool, self._tolerance))
            else:
                wishes.append(wish_by_average(value, trigger.threshold, pool.wanted, self._tolerance))
        return wishes
