"""PoolView: a pool as an autoscaler sees it: samples of its members and of the gateway, never the present."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_waiting")
"""What is true of a member when it is scraped, by the engine's own names: requests with a slot, requests without one,
the share of its KV blocks in use, and the prompt tokens of the requests without a slot (ours: a sum of what Dynamo's
workers report). A member of several ranks has their sum, and their mean share."""

OF_REQUESTS: Final = ("request_success_total", "request_arrival_total", "request_prompt_tokens_total")
COUNTERS: Final = (*OF_REQUESTS, "prompt_tokens_total", "generation_tokens_total")
"""What a member has counted since it was started: requests that ended, requests that it was sent, tokens of their
prompts, prompt tokens that it computed, and tokens that its decode steps generated. A request's first token comes with
its prompt, and is left out."""

GATEWAY: Final = ("gateway_queue_size", "gateway_arrival_total")
"""What the gateway says: requests that wait there for a member, and those that have come."""

LONGEST_WINDOW_S: Final = 3600.0
"""Samples older than this are forgotten."""


class Signals:
    """The samples of one member, or of the gateway, by metric: pairs of the instant of the scrape and the value."""

    def __init__(self) -> None:
        self._series = defaultdict[str, deque[tuple[float, float]]](deque)
        self.until_s = 0.0
        """Instant of the youngest scrape that is visible yet."""

    def add(self, metric: str, at_s: float, value: float) -> None:
        """Store a sample; those of a metric come in order."""
        series = self._series[metric]
        series.append((at_s, value))
        while series[0][0] < at_s - LONGEST_WINDOW_S:
            series.popleft()

    def last(self, metric: str, since_s: float = -inf) -> float | None:
        """Return the youngest visible value, if it was taken after an instant; None: there is none."""
        for at_s, value in reversed(self._series.get(metric, ())):
            if at_s <= self.until_s:
                return value if at_s > since_s else None
        return None

    def over(self, metric: str, window_s: float) -> list[tuple[float, float]]:
        """Return the visible samples of the last window, oldest first."""
        first_s = self.until_s - window_s
        return [each for each in self._series.get(metric, ()) if first_s < each[0] <= self.until_s]


MemberPhase = Literal["pending", "loading", "ready"]
"""pending: its containers have not begun (no GPUs, no node, no image). loading: they run, and do not serve yet."""


@dataclass(frozen=True)
class MemberView:
    """A member that has not been told to leave."""

    id: int
    """-1: it waits for GPUs."""
    phase: MemberPhase
    signals: Signals
    """None but those of a ready member has samples."""


@dataclass(frozen=True)
class ReplicaFacts:
    """What is the same of all replicas of a pool at all times."""

    role: Literal["both", "prefill", "decode"] = "both"
    n_gpus: int = 1
    n_ranks: int = 1
    """Schedulers with a queue and KV blocks of their own."""
    max_model_len: int = 1
    """[tokens] Longest prompt with its answer."""
    kv_tokens: int = 1
    """[tokens] What the KV blocks of all ranks hold."""


@dataclass(frozen=True)
class PoolView:
    """A pool at the time of a decision."""

    now_s: float
    wanted: int
    """Replicas that it shall have, as decided last."""
    members: Sequence[MemberView]
    """Members that have not been told to leave, in the order of joining; those that wait for GPUs come last."""
    gateway: Signals
    replica: ReplicaFacts = ReplicaFacts()

    @property
    def n_ready(self) -> int:
        """Members that serve."""
        return sum(member.phase == "ready" for member in self.members)

    def last(self, metric: str) -> list[float]:
        """Return the youngest visible value of each member that has one."""
        return present(member.signals.last(metric) for member in self.members)


def present(values: Iterable[float | None]) -> list[float]:
    """Return the values that there are."""
    return [value for value in values if value is not None]
