"""Autoscaler: desired_replicas(pool) -> how many replicas the pool shall have."""

from collections.abc import Collection
from typing import Annotated

from pydantic import ConfigDict, Field

from simserve.state.pool_view import PoolView

STRICT = ConfigDict(extra="forbid")
"""Config of a policy's pydantic dataclass: its fields are its YAML keys, and unknown keys are errors."""

Replicas = Annotated[int, Field(ge=0, le=10_000)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Interval = Annotated[float, Field(ge=0.1, le=86_400)]


class Autoscaler:
    """A policy: how many replicas a pool has. It is asked every `interval_s`, and sees nothing that was not scraped."""

    interval_s: float = 15.0
    """[s] Time between two decisions."""
    min_replicas: int = 1
    max_replicas: int = 1
    """Bounds that the policy keeps; the front end is sized for the upper one."""

    def begin(self) -> None:
        """Start a run: reset the state."""

    @property
    def metrics(self) -> Collection[str]:
        """Metrics that it reads, among those of `state/pool_view.py`."""
        return ()

    def desired_replicas(self, pool: PoolView) -> int:
        """Return how many replicas the pool shall have, those included that start. Members that start, drain or are
        replaced need not be counted by the policy: the pool is brought to this number."""
        raise NotImplementedError
