"""The Kubernetes horizontal pod autoscaler: enough replicas for each metric to meet its target."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import STRICT, Autoscaler, Behavior, Interval, OneOrMore, Share, Threshold, check_bounds
from simserve.state import horizontal
from simserve.state.metric_values import Expression
from simserve.state.pool_view import PoolView, present
from simserve.state.queries import parse


@dataclass(config=STRICT)
class MetricTarget:
    """A metric and the value at which it shall stay."""

    metric: str
    """A metric's name, or a query in the part of PromQL that adapters use."""
    target: Threshold
    """Value to keep, in the metric's unit."""
    target_type: Literal["average_value", "value"] = "average_value"
    """`average_value`: the target is a replica's; `value`: the target is the whole pool's."""
    source: Literal["pods", "external"] | None = None
    """`pods`: a value a pod, where those that lack one are filled in; `external`: one value; null: `pods` if it has
    one."""

    def __post_init__(self) -> None:
        query = parse(self.metric)
        if self.source == "pods" and (self.target_type == "value" or not query.by_member):
            raise ValueError("source: pods needs a value a pod and target_type: average_value; use source: external")

    @property
    def is_of_pods(self) -> bool:
        """Each pod has a value of its own."""
        return self.source != "external" and self.target_type == "average_value" and self.query.by_member

    @property
    def query(self) -> Expression:
        """The metric, as parsed."""
        return parse(self.metric)


@dataclass(config=STRICT)
class Hpa(Autoscaler):
    """Keep each metric at its target: ceil(replicas * metric / target), the largest of several metrics.

    Pods that load a model have no sample: they count as idle on the way up and as at the target on the way down.
    Source: Kubernetes, pkg/controller/podautoscaler; the keys are its manifest's, with `_s` for seconds.
    """

    metrics: Annotated[list[MetricTarget], Field(min_length=1)]
    """Metrics and their targets; the one that asks for the most replicas wins."""
    max_replicas: OneOrMore
    """Most replicas."""
    min_replicas: OneOrMore = 1
    """Fewest replicas; zero needs KEDA."""
    behavior: Behavior = Field(default_factory=Behavior)
    """How fast replicas are added and removed."""
    interval_s: Interval = 15.0
    """[s] Time between two decisions (`--horizontal-pod-autoscaler-sync-period`)."""
    tolerance: Share = 0.1
    """Distance of metric / target from 1 at which nothing changes (`--horizontal-pod-autoscaler-tolerance`)."""

    def __post_init__(self) -> None:
        check_bounds(self.min_replicas, self.max_replicas)
        self._queries = [(target, target.query, target.is_of_pods) for target in self.metrics]

    @property
    def metric_names(self) -> frozenset[str]:
        """Metrics of all targets."""
        return frozenset[str]().union(*(query.metrics for _, query, _ in self._queries))

    def begin(self) -> None:
        """Start without recommendations."""
        up, down = self.behavior.scale_up, self.behavior.scale_down
        self._tolerance = horizontal.tolerance_of(up, down, self.tolerance)
        self._scaler = horizontal.HorizontalScaler(up, down, self.min_replicas, self.max_replicas)

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the largest wish of all metrics, within windows, rates and bounds."""
        wishes = [self._wish(pool, *each) for each in self._queries]
        return self._scaler.decide(pool.now_s, pool.wanted, wishes)

    def _wish(self, pool: PoolView, target: MetricTarget, query: Expression, is_of_pods: bool) -> int | None:
        if is_of_pods:
            return horizontal.wish_by_pods(_samples(pool, query), target.target, pool.wanted, self._tolerance)
        total = query.total(pool)
        if target.target_type == "value":
            return horizontal.wish_by_value(total, target.target, pool, self._tolerance)
        return horizontal.wish_by_average(total, target.target, pool.wanted, self._tolerance)


def _samples(pool: PoolView, query: Expression) -> horizontal.PodSamples:
    """Return the values of the pods that run, and how many lack one."""
    values = present(query.values(pool))
    n_pending = sum(member.phase == "pending" for member in pool.members)
    return horizontal.PodSamples(values, len(pool.members) - n_pending - len(values), n_pending)
