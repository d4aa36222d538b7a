"""Autoscalers that do what none should, and three that note what they see."""

from pydantic.dataclasses import dataclass

from simserve.autoscalers.base import STRICT, Autoscaler
from simserve.state.pool_view import COUNTERS, GAUGES, PoolView

ANSWERS = {"-1": -1, "2.5": 2.5, "None": None}

SEEN: list[tuple[float, list[tuple[float, float]]]] = []
"""Instants of decisions, with the samples seen then."""


COUNTED: list[tuple[str, dict[str, float]]] = []
"""Role of a pool, and the samples of its first replica by metric."""


REMEMBERED: list[tuple[float, int, dict[float, float]]] = []
"""Instants of decisions, with the id of a member and its samples, all of a metric."""


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


class Counts(Odd):
    interval_s = 1.0
    metric_names = (*GAUGES, *COUNTERS)

    def desired_replicas(self, pool: PoolView) -> int:
        seen = [(name, pool.members[0].signals.last(name)) for name in self.metric_names]
        if all(value is not None for _, value in seen):
            COUNTED.append((pool.replica.role, {name: value for name, value in seen if value is not None}))
        return 1


class Remembers(Odd):
    interval_s = 2.0
    metric_names = ("num_requests_running",)

    def desired_replicas(self, pool: PoolView) -> int:
        for member in pool.members:
            seen = dict(member.signals.over("num_requests_running", 3600))
            assert member.phase == "ready" or not seen
            REMEMBERED.append((pool.now_s, member.id, seen))
        return 2 + int(pool.now_s // 15) % 2
