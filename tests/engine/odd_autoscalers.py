"""Autoscalers that do what none should, and one that notes what it sees."""

from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import STRICT, Autoscaler
from simserve.state.pool_view import PoolView

ANSWERS = {"-1": -1, "2.5": 2.5, "None": None}

SEEN: list[tuple[float, list[tuple[float, float]]]] = []
"""Instants of decisions, with the samples seen then."""


class Odd(Autoscaler):
    interval_s, min_replicas, max_replicas = 5.0, 1, 3


@dataclass(config=STRICT)
class Answers(Odd):
    answer: str

    def desired_replicas(self, pool: PoolView) -> int:
        return ANSWERS[self.answer]  # type: ignore[return-value]


class Raises(Odd):
    def desired_replicas(self, pool: PoolView) -> int:
        return 1 // 0


class Watches(Odd):
    interval_s = 2.0
    metric_names = ("num_requests_running",)

    def desired_replicas(self, pool: PoolView) -> int:
        seen = [each for member in pool.members for each in member.signals.over("num_requests_running", 30)]
        SEEN.append((pool.now_s, seen))
        return 2
