"""A schedule: replicas by the clock."""

from bisect import bisect_right
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import STRICT, Autoscaler, Interval, Replicas
from simserve.state.pool_view import PoolView


@dataclass(config=STRICT)
class ScheduleStep:
    """A change of the replicas."""

    at_s: Annotated[float, Field(ge=0, le=1e9)]
    """[s] Instant, from the start of the run or of the period."""
    replicas: Replicas
    """Replicas from then on."""


@dataclass(config=STRICT)
class Schedule(Autoscaler):
    """Change the replicas at given instants, once or in every period; before the first, the pool keeps its replicas."""

    steps: Annotated[list[ScheduleStep], Field(min_length=1)]
    """Instants and replicas, in order."""
    period_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """[s] Time after which the steps repeat; null: they do not. The last step lasts until the first of the next
    period."""
    interval_s: Interval = 1.0
    """[s] Time between two looks at the clock."""

    def __post_init__(self) -> None:
        self._at_s = [entry.at_s for entry in self.steps]
        if any(later <= earlier for earlier, later in zip(self._at_s, self._at_s[1:], strict=False)):
            raise ValueError("steps must be in the order of at_s, without two at the same instant")
        if self.period_s is not None and self._at_s[-1] >= self.period_s:
            raise ValueError(f"at_s must be below period_s, got {self._at_s[-1]} of {self.period_s}")
        self.min_replicas = min(entry.replicas for entry in self.steps)
        self.max_replicas = max(entry.replicas for entry in self.steps)
        if not self.max_replicas:
            raise ValueError("steps must have replicas above 0 at some time")

    def desired_replicas(self, pool: PoolView) -> int:
        """Return the replicas of the last step."""
        at_s = pool.now_s if self.period_s is None else pool.now_s % self.period_s
        n_past = bisect_right(self._at_s, at_s + 1e-6)  # instants are sums of intervals
        is_before_all = not n_past and (self.period_s is None or pool.now_s < self.period_s)
        return pool.wanted if is_before_all else self.steps[n_past - 1].replicas
