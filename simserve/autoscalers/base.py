"""Autoscaler: desired_replicas(pool) -> how many replicas the pool shall have."""

from collections.abc import Collection, Mapping, Sequence
from math import gcd
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from simserve.state.horizontal import LONGEST_PERIOD_S, SelectPolicy
from simserve.state.pool_view import PoolView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""

Replicas = Annotated[int, Field(ge=0, le=10_000)]
OneOrMore = Annotated[int, Field(ge=1, le=10_000)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Interval = Annotated[float, Field(ge=0.1, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
Threshold = Annotated[float, Field(gt=0, le=1e12)]


class Autoscaler:
    """A policy: how many replicas a pool has. It is asked every `interval_s`, and sees nothing that was not scraped.

    A policy gives these three as fields, or sets them after its fields were read.
    """

    interval_s: float
    """[s] Time between two decisions."""
    min_replicas: int
    max_replicas: int
    """Bounds that the policy keeps; the front end is sized for the upper one."""

    def begin(self) -> None:
        """Start a run: reset the state."""

    @property
    def metric_names(self) -> Collection[str]:
        """Metrics that it reads, among those of `state/pool_view.py`."""
        return ()

    @property
    def pools_by_role(self) -> Mapping[str, str]:
        """Names of the pools of a policy that decides for several, as `cluster.autoscaler`; else none."""
        return {}

    def check_pools(self, roles: Sequence[str], n_gpus: Sequence[int]) -> None:
        """Check that it can scale pools with these roles, and GPUs a replica. Raises ValueError."""

    def most_replicas(self, n_gpus: int) -> int:
        """Return the most replicas of a pool with this many GPUs each."""
        return self.max_replicas

    def desired_replicas(self, pool: PoolView) -> int:
        """Return how many replicas the pool shall have, those included that start. Members that start, drain or are
        replaced need not be counted by the policy: the pool is brought to this number."""
        raise NotImplementedError

    def desired_of_pools(self, pools: Sequence[PoolView]) -> Sequence[int]:
        """Return how many replicas each pool shall have; there is one, unless the policy names several."""
        return [self.desired_replicas(pool) for pool in pools]


@dataclass(config=STRICT)
class RatePolicy:
    """A limit on how fast replicas are added or removed."""

    type: Literal["pods", "percent"]
    """Unit of `value`: replicas, or percent of the replicas at the start of the period."""
    value: Annotated[int, Field(gt=0, le=100_000)]
    """Most replicas, or percent, that a period may add or remove."""
    period_s: Annotated[float, Field(gt=0, le=LONGEST_PERIOD_S)]
    """[s] Period that ends now (`periodSeconds`)."""


@dataclass(config=STRICT)
class ScaleUp:
    """How replicas are added."""

    stabilization_window_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """[s] Window of which the smallest recommendation counts (`stabilizationWindowSeconds`)."""
    policies: Annotated[list[RatePolicy], Field(min_length=1)] = Field(
        default_factory=lambda: [RatePolicy("percent", 100, 15), RatePolicy("pods", 4, 15)]
    )
    """Limits; by default the replicas may double, or grow by 4, in 15 s."""
    select_policy: SelectPolicy = "max"
    """Limit that counts: `max` permits the largest change, `min` the smallest, `disabled` none."""
    tolerance: Share | None = None
    """Distance of metric / target above 1 at which nothing is added; null: the autoscaler's own `tolerance`."""


@dataclass(config=STRICT)
class ScaleDown:
    """How replicas are removed."""

    stabilization_window_s: Annotated[float, Field(ge=0, le=3600)] = 300.0
    """[s] Window of which the largest recommendation counts (`stabilizationWindowSeconds`)."""
    policies: Annotated[list[RatePolicy], Field(min_length=1)] = Field(
        default_factory=lambda: [RatePolicy("percent", 100, 15)]
    )
    """Limits; by default all replicas may go in 15 s."""
    select_policy: SelectPolicy = "max"
    """Limit that counts: `max` permits the largest change, `min` the smallest, `disabled` none."""
    tolerance: Share | None = None
    """Distance of metric / target below 1 at which nothing is removed; null: the autoscaler's own `tolerance`."""


@dataclass(config=STRICT)
class Behavior:
    """How fast a Kubernetes autoscaler changes the replicas (`behavior`)."""

    scale_up: ScaleUp = Field(default_factory=ScaleUp)
    """Limits and window for adding replicas."""
    scale_down: ScaleDown = Field(default_factory=ScaleDown)
    """Limits and window for removing replicas."""


def check_bounds(min_replicas: int, max_replicas: int) -> None:
    """Check that some number of replicas lies between the bounds. Raises ValueError."""
    if min_replicas > max_replicas:
        raise ValueError(f"min_replicas must be at most max_replicas, got {min_replicas} > {max_replicas}; swap them")


def common_interval_s(*intervals_s: float) -> float:
    """Return the longest interval that divides all of these, to a tenth of a second."""
    return gcd(*(round(interval_s * 10) for interval_s in intervals_s)) / 10
